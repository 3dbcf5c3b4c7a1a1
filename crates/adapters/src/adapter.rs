//! An adapter in memory: factors of one or several files, as a model's products take them.

use std::collections::BTreeMap;
use std::fmt;

use ruvllm_kernels::{BlockFormat, PackedMatrix, SharedBytes};
use ruvllm_memory::{PagePool, Pages, Request};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::file::{LoraFile, RowOrder, Update};
use crate::low_rank::{Expansion, LowRank};
use crate::place::{BaseModel, Site, Target};

/// A file and how much of it counts.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// The adapter.
    pub file: &'a LoraFile,
    /// What its changes are multiplied by; 1 is as it was trained.
    pub scale: f32,
}

/// One or several adapters, made ready for one model: what they change is added up.
///
/// Immutable; dropping it gives its pages back.
pub struct Adapter {
    base: BaseModel,
    layers: Vec<[Option<LowRank>; Site::OF_LAYER.len()]>,
    logits: Option<LowRank>,
    digest: [u8; 32],
    bytes: usize,
}

/// An update at its site.
struct Placed<'a> {
    file: &'a LoraFile,
    update: &'a Update,
    /// That of the file and of the part.
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
        let values = sites.values().flatten().map(|placed| placed.update.values()).sum::<usize>();
        let bytes = values.saturating_mul(size_of::<f32>());
        let mut pages = pool
            .allocate(bytes.div_ceil(pool.page_bytes()).max(1), request)
            .map_err(|source| Error::Memory { bytes, source })?;
        let memory: &mut [f32] = bytemuck::cast_slice_mut(&mut pages.bytes_mut()[..bytes]);
        for (placed, memory) in split(&sites, memory) {
            placed.fill(base, memory).map_err(|error| error.in_file(&placed.file.path))?;
        }
        let digest = digest(&sites, memory);
        let shared = SharedBytes::new(Resident(pages));
        let mut adapter = Self {
            base: base.clone(),
            layers: std::iter::repeat_with(|| [const { None }; Site::OF_LAYER.len()])
                .take(base.n_layers)
                .collect(),
            logits: None,
            digest,
            bytes,
        };
        let mut first = 0;
        for (&(layer, site), placed) in &sites {
            let low_rank = low_rank(base.inputs(site), placed, &shared, &mut first);
            *adapter.slot(layer, site) = Some(low_rank);
        }
        Ok(adapter)
    }

    /// What it adds at a site of a layer; `None` if nothing.
    pub fn at(&self, layer: usize, site: Site) -> Option<&LowRank> {
        match Site::OF_LAYER.iter().position(|&other| other == site) {
            Some(index) => self.layers.get(layer)?[index].as_ref(),
            None => self.logits.as_ref(),
        }
    }

    fn slot(&mut self, layer: usize, site: Site) -> &mut Option<LowRank> {
        match Site::OF_LAYER.iter().position(|&other| other == site) {
            Some(index) => &mut self.layers[layer][index],
            None => &mut self.logits,
        }
    }

    /// The model that it was made for.
    pub fn base(&self) -> &BaseModel {
        &self.base
    }

    /// Stands for what it does: adapters of other factors or scales have another one.
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

/// Pages that are only read from now on.
struct Resident(Pages);

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

/// The memory of each update: `A` of all updates of a site, then `B` of all of them.
struct Memory<'m> {
    a: &'m mut [f32],
    b: &'m mut [f32],
}

/// Cuts the memory up as [`low_rank`] will look for it.
fn split<'s, 'm>(
    sites: &'s BTreeMap<(usize, Site), Vec<Placed<'s>>>,
    mut memory: &'m mut [f32],
) -> Vec<(&'s Placed<'s>, Memory<'m>)> {
    let mut take = |len: usize| memory.split_off_mut(..len).expect("the sum of all");
    let mut parts = Vec::new();
    for placed in sites.values() {
        let a: Vec<_> = placed.iter().map(|placed| take(placed.update.rank * placed.update.inputs)).collect();
        let b: Vec<_> =
            placed.iter().map(|placed| take(placed.update.rank * placed.update.outputs)).collect();
        parts.extend(placed.iter().zip(a.into_iter().zip(b).map(|(a, b)| Memory { a, b })));
    }
    parts
}

impl Placed<'_> {
    /// Writes the factors: `A` as it is, of `B` the part of each target, transposed and scaled.
    fn fill(&self, base: &BaseModel, memory: Memory<'_>) -> Result<()> {
        let Memory { a, mut b } = memory;
        let rank = self.update.rank;
        self.update.a.read(a);
        let columns = self.update.b.values();
        let interleave = base.interleaved_heads && self.file.row_order == RowOrder::HuggingFace;
        for Target { rows, heads, .. } in &self.targets {
            let out = b.split_off_mut(..rank * rows.len()).expect("the targets cover all rows");
            for (row, values) in columns.chunks_exact(rank).skip(rows.start).take(rows.len()).enumerate() {
                let row = if *heads && interleave { base.interleaved_row(row) } else { row };
                for (i, value) in values.iter().enumerate() {
                    out[i * rows.len() + row] = value * self.scale;
                }
            }
        }
        let is_finite = |values: &[f32]| values.iter().all(|value| value.is_finite());
        let scaled = columns.iter().all(|value| (value * self.scale).is_finite());
        if is_finite(a) && scaled { Ok(()) } else { Err(Error::NotFinite { name: self.update.name.clone() }) }
    }
}

impl Update {
    /// Values of both factors.
    fn values(&self) -> usize {
        self.rank * (self.inputs + self.outputs)
    }
}

/// The factors of a site, which begin at value `first` of the memory; moves that behind them.
fn low_rank(inputs: usize, placed: &[Placed<'_>], memory: &SharedBytes, first: &mut usize) -> LowRank {
    let mut take = |values: usize| {
        let start = *first * size_of::<f32>();
        *first += values;
        memory.slice(start..*first * size_of::<f32>())
    };
    let rank = placed.iter().map(|placed| placed.update.rank).sum();
    let shrink =
        PackedMatrix::new(BlockFormat::F32, rank, inputs, take(rank * inputs)).expect("as many bytes");
    let mut expansions = Vec::new();
    let mut start = 0;
    for Placed { update, targets, .. } in placed {
        let weights = start..start + update.rank;
        start = weights.end;
        for Target { index, rows, .. } in targets {
            let outputs = rows.len();
            let rows = take(update.rank * outputs);
            expansions.push(Expansion { target: *index, weights: weights.clone(), outputs, rows });
        }
    }
    LowRank::new(shrink, expansions)
}

/// A hash of the values and of what they mean.
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
