//! LoRA adapters in memory: factors of one or several files, laid out for the products of a model.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use ruvllm_kernels::quant::{PackedMatrix, SharedBytes, WeightFormat};
use ruvllm_memory::{PagePool, Pages, Request};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::file::{LoraFile, Update};
use crate::low_rank::{Expansion, LowRank};
use crate::place::{BaseModel, RowOrder, Site, Target};

/// Adapter file and its scale.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// The adapter.
    pub file: &'a LoraFile,
    /// Multiplier of the update; 1 = as trained.
    pub scale: f32,
}

/// One or several LoRA adapters, loaded for one model; their updates add up.
///
/// Immutable; dropping it gives its pages back.
pub struct Adapter {
    pub(crate) base: BaseModel,
    pub(crate) sites: BTreeMap<(usize, Site), LowRank>,
    pub(crate) digest: [u8; 32],
    pub(crate) bytes: usize,
}

/// An update at its site.
struct Placed<'a> {
    file: &'a LoraFile,
    update: &'a Update,
    /// Scale of the file times that of the part.
    scale: f32,
    targets: Vec<Target>,
}

impl Adapter {
    /// Reads the factors of `parts` into pages of `pool`.
    ///
    /// # Errors
    /// Files for another model, values that are not finite, and no memory.
    pub fn new(base: &BaseModel, parts: &[Part<'_>], pool: &PagePool, request: &Request) -> Result<Self> {
        let mut sites: BTreeMap<(usize, Site), Vec<Placed<'_>>> = BTreeMap::new();
        for part in parts {
            check(base, part.file).map_err(|error| error.in_file(&part.file.path))?;
            for update in &part.file.updates {
                let projection = base.meant(update.projection, part.file.row_order);
                let site = base.site(projection);
                sites.entry((update.layer, site)).or_default().push(Placed {
                    file: part.file,
                    update,
                    scale: update.scale * part.scale,
                    targets: base.targets(projection),
                });
            }
        }
        let values = |placed: &Placed<'_>| placed.update.a.len() + placed.update.b.len();
        let bytes = sites.values().flatten().map(values).sum::<usize>().saturating_mul(size_of::<f32>());
        let mut pages = pool
            .allocate(bytes.div_ceil(pool.page_bytes()).max(1), request)
            .map_err(|source| Error::Memory { bytes, source })?;
        let mut memory = Memory::new(bytemuck::cast_slice_mut(&mut pages.bytes_mut()[..bytes]));
        let mut written = Vec::with_capacity(sites.len());
        for (&at, placed) in &sites {
            written.push((at, Written::new(base, placed, &mut memory)?));
        }
        let digest = digest(&sites, memory.values());
        let shared = SharedBytes::new(Resident(pages));
        let sites = written
            .into_iter()
            .map(|(at, written)| (at, written.low_rank(base.inputs(at.1), &shared)))
            .collect();
        Ok(Self { base: base.clone(), sites, digest, bytes })
    }

    /// Update at a site of a layer; `None` if there is none.
    pub fn at(&self, layer: usize, site: Site) -> Option<&LowRank> {
        self.sites.get(&(layer, site))
    }

    /// Shape of the model it was loaded for.
    pub fn base(&self) -> &BaseModel {
        &self.base
    }

    /// Digest of factors and scales: equal for equal updates only.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// Bytes of its factors.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adapter")
            .field("base", &self.base)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// Pages that are read-only after loading.
pub(crate) struct Resident(pub(crate) Pages);

impl AsRef<[u8]> for Resident {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

/// Checks that a file is for the model.
fn check(base: &BaseModel, file: &LoraFile) -> Result<()> {
    if let Some(found) = file.architecture.as_ref().filter(|found| **found != base.architecture) {
        let (found, expected) = (found.clone(), base.architecture.clone());
        return Err(Error::Architecture { found, expected });
    }
    for update in &file.updates {
        let &Update { layer, inputs, outputs, .. } = update;
        let projection = base.meant(update.projection, file.row_order);
        if layer >= base.n_layers {
            let name = update.name.clone();
            return Err(Error::Layer { name, layer, n_layers: base.n_layers });
        }
        let expected_outputs = base.targets(projection).last().map_or(0, |target| target.rows.end);
        let (found, expected) = ([inputs, outputs], [base.inputs(base.site(projection)), expected_outputs]);
        if found != expected {
            return Err(Error::Sizes { name: update.name.clone(), projection, found, expected });
        }
    }
    Ok(())
}

/// Memory that is filled from its beginning.
pub(crate) struct Memory<'m> {
    values: &'m mut [f32],
    used: usize,
}

impl<'m> Memory<'m> {
    pub(crate) fn new(values: &'m mut [f32]) -> Self {
        Self { values, used: 0 }
    }

    /// All values, also those that are not used.
    pub(crate) fn values(&self) -> &[f32] {
        self.values
    }

    /// Bytes that are used.
    pub(crate) fn bytes(&self) -> usize {
        self.used * size_of::<f32>()
    }

    /// The next `len` values, and where their bytes are.
    pub(crate) fn take(&mut self, len: usize) -> (&mut [f32], Range<usize>) {
        let (first, start) = (self.used, self.bytes());
        self.used += len;
        let bytes = start..self.bytes();
        (&mut self.values[first..self.used], bytes)
    }
}

/// Location of a site's factors: `A` of all its updates, then `B` of each.
pub(crate) struct Written {
    pub(crate) rank: usize,
    pub(crate) shrink: Range<usize>,
    pub(crate) expansions: Vec<Expansion>,
}

impl Written {
    /// Writes the factors of the updates of a site.
    fn new(base: &BaseModel, placed: &[Placed<'_>], memory: &mut Memory<'_>) -> Result<Self> {
        let (mut rank, mut shrink) = (0, memory.bytes()..memory.bytes());
        for placed in placed {
            let (values, bytes) = memory.take(placed.update.a.len());
            placed.update.a.read(values);
            placed.check(values.iter().copied())?;
            rank += placed.update.rank;
            shrink.end = bytes.end;
        }
        let mut expansions = Vec::new();
        let mut first = 0;
        for placed in placed {
            let weights = first..first + placed.update.rank;
            first = weights.end;
            let values = placed.update.b.values();
            placed.check(values.iter().map(|value| value * placed.scale))?;
            for target in &placed.targets {
                let outputs = target.rows.len();
                let (out, rows) = memory.take(placed.update.rank * outputs);
                placed.transpose(base, target, &values, out);
                expansions.push(Expansion { target: target.index, weights: weights.clone(), outputs, rows });
            }
        }
        Ok(Self { rank, shrink, expansions })
    }

    pub(crate) fn low_rank(self, inputs: usize, memory: &SharedBytes) -> LowRank {
        let shrink = PackedMatrix::new(WeightFormat::F32, self.rank, inputs, memory.slice(self.shrink));
        LowRank::new(shrink.expect("as many bytes"), memory.clone(), self.expansions)
    }
}

impl Placed<'_> {
    /// Writes the rows of `b` that belong to a target, `[outputs, rank]`, scaled and transposed.
    fn transpose(&self, base: &BaseModel, target: &Target, b: &[f32], out: &mut [f32]) {
        let Target { rows, heads, .. } = target;
        let interleave = *heads && base.interleaved_heads && self.file.row_order == RowOrder::HuggingFace;
        let outputs = b.chunks_exact(self.update.rank).skip(rows.start).take(rows.len());
        for (row, values) in outputs.enumerate() {
            let row = if interleave { base.interleaved_row(row) } else { row };
            for (i, value) in values.iter().enumerate() {
                out[i * rows.len() + row] = value * self.scale;
            }
        }
    }

    /// Checks that values are numbers.
    fn check(&self, mut values: impl Iterator<Item = f32>) -> Result<()> {
        if values.all(f32::is_finite) {
            return Ok(());
        }
        Err(Error::NotFinite { name: self.update.name.clone() }.in_file(&self.file.path))
    }
}

/// Hash of the values and their meaning (site, shape, scale).
fn digest(sites: &BTreeMap<(usize, Site), Vec<Placed<'_>>>, memory: &[f32]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for ((layer, site), placed) in sites {
        for Placed { update, targets, .. } in placed {
            hash.update(format!("{layer} {site:?} {} {targets:?};", update.rank));
        }
    }
    hash.update(bytemuck::cast_slice::<f32, u8>(memory));
    hash.finalize().into()
}
