//! LoRA adapters in memory: factors of one or several files, laid out for the products of a model.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use ruvllm_kernels::low_rank::{Expansion, FACTOR_ALIGN, Factor, FactorFormat, LowRank, LowRankShape};
use ruvllm_kernels::quant::SharedBytes;
use ruvllm_memory::{PagePool, Pages, Request};

use crate::digest::Digests;
use crate::error::{Error, Result};
use crate::file::{LoraFile, Update};
use crate::layout::{Layout, SiteShape};
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
/// Immutable; dropping it gives its pages back. The scales of files and parts and the row order of
/// the model are in the factors `B`.
pub struct Adapter {
    base: Arc<BaseModel>,
    layout: Arc<Layout>,
    bytes: Bytes,
    digests: Digests,
    /// Number among the versions of an adapter that changes.
    version: u64,
}

/// Memory of the factors.
enum Bytes {
    /// Given by the caller, never written to.
    Shared(SharedBytes),
    /// Pages of this adapter alone.
    Own(Resident),
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
    /// Reads the factors of `parts` into pages of `pool`, in `format`.
    ///
    /// # Errors
    /// Files for another model, values that are not finite (in `format`), and no memory.
    pub fn new(
        base: &Arc<BaseModel>,
        parts: &[Part<'_>],
        format: FactorFormat,
        pool: &PagePool,
        request: &Request,
    ) -> Result<Self> {
        let mut sites: BTreeMap<(usize, Site), Vec<Placed<'_>>> = BTreeMap::new();
        for part in parts {
            part.file.check(base)?;
            for update in &part.file.updates {
                let projection = base.meant(update.projection, part.file.row_order);
                sites.entry((update.layer, base.site(projection))).or_default().push(Placed {
                    file: part.file,
                    update,
                    scale: update.scale * part.scale,
                    targets: base.targets(projection),
                });
            }
        }
        let shapes = sites.iter().map(|(&(layer, site), placed)| shape(base, layer, site, placed));
        let layout = Layout::new(format, shapes)?;
        let mut memory = Memory::new(layout, pool, request)?;
        for (index, placed) in sites.values().enumerate() {
            memory.write_site(index, base, placed)?;
        }
        Ok(memory.finish(base))
    }

    /// An adapter whose factors are in `bytes` as `layout` places them, with the digests of when
    /// they were loaded. The caller vouches for the contents, such as by a checksum.
    ///
    /// # Errors
    /// [`Error::Layout`] if the sites are not those of the model, or the bytes have another length
    /// or do not start at a multiple of 64.
    pub fn from_bytes(
        base: Arc<BaseModel>,
        layout: Arc<Layout>,
        bytes: SharedBytes,
        digests: Digests,
    ) -> Result<Self> {
        layout.check(&base)?;
        let found = bytes.as_ref();
        if found.len() != layout.bytes() {
            let what = format!("there are {} bytes of {}", found.len(), layout.bytes());
            return Err(Error::Layout { what });
        }
        if !found.as_ptr().addr().is_multiple_of(FACTOR_ALIGN) {
            return Err(Error::Layout { what: "they do not start at a multiple of 64 bytes".to_owned() });
        }
        Ok(Self { base, layout, bytes: Bytes::Shared(bytes), digests, version: 0 })
    }

    /// The adapter in another number format, in pages of `pool`.
    ///
    /// # Errors
    /// [`Error::NotFinite`] for values beyond the format, and [`Error::Memory`].
    pub fn to_format(&self, format: FactorFormat, pool: &PagePool, request: &Request) -> Result<Self> {
        let mut memory = Memory::new(Layout::new(format, self.layout.shapes())?, pool, request)?;
        for (index, at) in self.layout.sites().iter().enumerate() {
            let from = LowRank::new(&at.factors, self.factors());
            let fault = || Error::NotFinite { name: format!("{:?} of layer {}", at.site, at.layer) };
            memory.write_a(index, &from.a().values()).ok_or_else(fault)?;
            for b in 0..at.factors.expansions().len() {
                memory.write_b(index, b, &from.b(b).values()).ok_or_else(fault)?;
            }
        }
        Ok(memory.finish(&self.base))
    }

    /// Update at a site of a layer; `None` if there is none.
    pub fn at(&self, layer: usize, site: Site) -> Option<LowRank<'_>> {
        self.layout.at(layer, site).map(|shape| LowRank::new(shape, self.factors()))
    }

    /// Shape of the model it was loaded for.
    pub fn base(&self) -> &Arc<BaseModel> {
        &self.base
    }

    /// Format and places of the factors.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// The factors as [`layout`](Self::layout) places them, in native byte order.
    pub fn factors(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Shared(bytes) => bytes.as_ref(),
            Bytes::Own(resident) => resident.as_ref(),
        }
    }

    /// An adapter of the same shapes whose factors are zero, in pages of `pool`.
    pub(crate) fn buffer(&self, pool: &PagePool, request: &Request) -> Result<Self> {
        let memory = Memory::new(Layout::clone(&self.layout), pool, request)?;
        Ok(memory.finish_with(&self.base, |_| self.digests))
    }

    /// Begins to write another version of factors into the adapter's own pages.
    ///
    /// # Panics
    /// If it has none: [`Adapter::from_bytes`].
    pub(crate) fn begin_version(&mut self, version: u64, digests: Digests) -> &mut [u8] {
        (self.version, self.digests) = (version, digests);
        match &mut self.bytes {
            Bytes::Own(Resident { pages, len }) => &mut pages.bytes_mut()[..*len],
            Bytes::Shared(_) => unreachable!("versions are made by `buffer`"),
        }
    }

    /// Number of the version of an adapter that changes ([`MicroLora`](crate::MicroLora)); else 0.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Digests of the factors.
    pub fn digests(&self) -> &Digests {
        &self.digests
    }

    /// Digest of factors and scales, in their format: equal for equal updates only.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digests.factors
    }

    /// Digest of the sites that cached keys and values depend on ([`BaseModel::changes_kv`]);
    /// `None` without any.
    pub fn kv_digest(&self) -> Option<[u8; 32]> {
        self.digests.kv
    }

    /// Bytes of its factors.
    pub fn bytes(&self) -> usize {
        self.layout.bytes()
    }
}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adapter")
            .field("base", &self.base)
            .field("format", &self.layout.format())
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}

/// Pages that are read-only after loading.
pub(crate) struct Resident {
    pages: Pages,
    len: usize,
}

impl Resident {
    /// The first `len` bytes of `pages`.
    pub(crate) fn new(pages: Pages, len: usize) -> Self {
        Self { pages, len }
    }
}

impl AsRef<[u8]> for Resident {
    fn as_ref(&self) -> &[u8] {
        &self.pages.bytes()[..self.len]
    }
}

/// Shapes of the factors of the updates of a site: `A` of all, then `B` of each update and target.
fn shape(base: &BaseModel, layer: usize, site: Site, placed: &[Placed<'_>]) -> SiteShape {
    let (mut rank, mut expansions) = (0, Vec::new());
    for placed in placed {
        expansions.extend(placed.targets.iter().map(|target| Expansion {
            target: target.index,
            first: rank,
            rank: placed.update.rank,
            outputs: target.rows.len(),
        }));
        rank += placed.update.rank;
    }
    SiteShape { layer, site, rank, inputs: base.inputs(site), expansions }
}

/// Factors that are being written.
pub(crate) struct Memory {
    layout: Layout,
    pages: Pages,
}

impl Memory {
    pub(crate) fn new(layout: Layout, pool: &PagePool, request: &Request) -> Result<Self> {
        let bytes = layout.bytes();
        let mut pages = pool
            .allocate(bytes.div_ceil(pool.page_bytes()).max(1), request)
            .map_err(|source| Error::Memory { bytes, source })?;
        // The padding between factors is hashed as well.
        pages.bytes_mut()[..bytes].fill(0);
        Ok(Self { layout, pages })
    }

    /// Writes the factors of the updates of site `index`.
    fn write_site(&mut self, index: usize, base: &BaseModel, placed: &[Placed<'_>]) -> Result<()> {
        let a: Vec<f32> = placed.iter().flat_map(|placed| placed.update.a.values()).collect();
        let mut expansion = 0;
        if self.write_a(index, &a).is_none() {
            // Names the first update with such a value.
            let mut rest = &a[..];
            for placed in placed {
                let (values, others) = rest.split_at(placed.update.a.len());
                placed.check(self.layout.format(), values)?;
                rest = others;
            }
        }
        for placed in placed {
            let b = placed.update.b.values();
            for target in &placed.targets {
                let rows = placed.transpose(base, target, &b);
                self.write_b(index, expansion, &rows).ok_or_else(|| placed.not_finite())?;
                expansion += 1;
            }
        }
        Ok(())
    }

    /// Writes `A` of site `index`; `None` if a value is not finite in the format.
    fn write_a(&mut self, index: usize, values: &[f32]) -> Option<()> {
        let factors = &self.layout.sites()[index].factors;
        let (format, width, place) = (factors.format(), factors.inputs(), factors.a());
        write(&mut self.pages, format, width, place, values)
    }

    /// Writes `B` of expansion `expansion` of site `index`, transposed; `None` as `write_a`.
    fn write_b(&mut self, index: usize, expansion: usize, values: &[f32]) -> Option<()> {
        let factors: &LowRankShape = &self.layout.sites()[index].factors;
        let (width, place) = (factors.expansions()[expansion].outputs, factors.b(expansion));
        write(&mut self.pages, factors.format(), width, place, values)
    }

    /// `A` of site `index` in f32, and its width.
    ///
    /// # Panics
    /// In another format.
    pub(crate) fn a_mut(&mut self, index: usize) -> (&mut [f32], usize) {
        let factors = &self.layout.sites()[index].factors;
        assert_eq!(factors.format(), FactorFormat::F32, "values in place");
        let (place, width) = (factors.a(), factors.inputs());
        let bytes = factors.rank() * width * size_of::<f32>();
        (bytemuck::cast_slice_mut(&mut self.pages.bytes_mut()[place..][..bytes]), width)
    }

    /// The adapter, with digests of its contents.
    fn finish(self, base: &Arc<BaseModel>) -> Adapter {
        let bytes = &self.pages.bytes()[..self.layout.bytes()];
        let digests = Digests::new(base, &self.layout, bytes);
        self.finish_with(base, |_| digests)
    }

    /// The adapter, with digests that the caller knows.
    pub(crate) fn finish_with(
        self,
        base: &Arc<BaseModel>,
        digests: impl FnOnce(&Layout) -> Digests,
    ) -> Adapter {
        let Self { layout, pages } = self;
        let (digests, len) = (digests(&layout), layout.bytes());
        let bytes = Bytes::Own(Resident::new(pages, len));
        Adapter { base: Arc::clone(base), layout: Arc::new(layout), bytes, digests, version: 0 }
    }
}

/// Writes a factor of rows of `width` values at `place`; `None` if a value is not finite then.
fn write(pages: &mut Pages, format: FactorFormat, width: usize, place: usize, values: &[f32]) -> Option<()> {
    let rank = values.len() / width;
    let bytes = &mut pages.bytes_mut()[place..][..format.bytes(rank, width)];
    format.quantize(width, values, bytes);
    Factor::new(format, rank, width, bytes).is_finite().then_some(())
}

impl Placed<'_> {
    /// Rows of `b` that belong to a target, scaled and transposed: `[rank, outputs]`.
    fn transpose(&self, base: &BaseModel, target: &Target, b: &[f32]) -> Vec<f32> {
        let Target { rows, heads, .. } = target;
        let interleave = *heads && base.interleaved_heads && self.file.row_order == RowOrder::HuggingFace;
        let outputs = b.chunks_exact(self.update.rank).skip(rows.start).take(rows.len());
        let mut out = vec![0.0; self.update.rank * rows.len()];
        for (row, values) in outputs.enumerate() {
            let row = if interleave { base.interleaved_row(row) } else { row };
            for (i, value) in values.iter().enumerate() {
                out[i * rows.len() + row] = value * self.scale;
            }
        }
        out
    }

    /// Checks that values are numbers in `format`.
    fn check(&self, format: FactorFormat, values: &[f32]) -> Result<()> {
        let largest = if format == FactorFormat::F16 { 65520.0 } else { f32::INFINITY };
        if values.iter().all(|value| value.abs() < largest) { Ok(()) } else { Err(self.not_finite()) }
    }

    fn not_finite(&self) -> Error {
        Error::NotFinite { name: self.update.name.clone() }.in_file(&self.file.path)
    }
}
