//! Changes of factors from one version of a [`MicroLora`](super::MicroLora) to the next.

use ruvllm_kernels::low_rank::LowRankShape;

use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::place::Site;

/// Sites by what an update must copy.
#[derive(Debug)]
pub(super) struct Changes {
    /// Sites at which the spare buffer differs from the current version.
    stale: Vec<bool>,
    /// Sites that this update changes.
    edited: Vec<bool>,
}

impl Changes {
    /// State before the first update, whose buffer is new.
    pub(super) fn new(n_sites: usize) -> Self {
        Self { stale: vec![true; n_sites], edited: vec![false; n_sites] }
    }

    /// Says that the next buffer holds nothing yet.
    pub(super) fn all_stale(&mut self) {
        self.stale.fill(true);
        self.edited.fill(false);
    }

    /// Says that the update was published: the former version lacks what it changed.
    pub(super) fn publish(&mut self) {
        std::mem::swap(&mut self.stale, &mut self.edited);
        self.edited.fill(false);
    }
}

/// Factors of the next version while an update makes them.
pub struct Edit<'a> {
    layout: &'a Layout,
    current: &'a [u8],
    next: &'a mut [u8],
    changes: &'a mut Changes,
}

/// Factors at one site of the next version.
pub struct SiteEdit<'a> {
    factors: &'a LowRankShape,
    /// From the start of the site's factors.
    values: &'a mut [f32],
}

impl<'a> Edit<'a> {
    pub(super) fn new(
        layout: &'a Layout,
        current: &'a [u8],
        next: &'a mut [u8],
        changes: &'a mut Changes,
    ) -> Self {
        Self { layout, current, next, changes }
    }

    /// Shapes and places of the factors.
    pub fn layout(&self) -> &'a Layout {
        self.layout
    }

    /// Factors at a site, with the values of the current version until they are changed; `None` if
    /// the adapter has none there.
    pub fn site(&mut self, layer: usize, site: Site) -> Option<SiteEdit<'_>> {
        let index =
            self.layout.sites().binary_search_by_key(&(layer, site), |at| (at.layer, at.site)).ok()?;
        let factors = &self.layout.sites()[index].factors;
        let range = factors.a()..factors.end();
        if !std::mem::replace(&mut self.changes.edited[index], true) && self.changes.stale[index] {
            self.next[range.clone()].copy_from_slice(&self.current[range.clone()]);
        }
        Some(SiteEdit { factors, values: bytemuck::cast_slice_mut(&mut self.next[range]) })
    }

    /// Takes all factors from a snapshot of the adapter.
    pub(super) fn replace(&mut self, factors: &[u8]) {
        self.next.copy_from_slice(factors);
        self.changes.edited.fill(true);
    }

    /// Copies what was not edited, and checks what was.
    pub(super) fn finish(self) -> Result<()> {
        for (index, at) in self.layout.sites().iter().enumerate() {
            let range = at.factors.a()..at.factors.end();
            if self.changes.edited[index] {
                let values: &[f32] = bytemuck::cast_slice(&self.next[range]);
                if !all_finite(values) {
                    let name = format!("{:?} of layer {}", at.site, at.layer);
                    return Err(Error::NotFinite { name });
                }
            } else if self.changes.stale[index] {
                self.next[range.clone()].copy_from_slice(&self.current[range]);
            }
        }
        Ok(())
    }
}

impl SiteEdit<'_> {
    /// Shapes of the factors.
    pub fn shape(&self) -> &LowRankShape {
        self.factors
    }

    /// `A` of all modules of the site, one below the other: `[rank, inputs]`.
    pub fn a(&mut self) -> &mut [f32] {
        &mut self.values[..self.factors.rank() * self.factors.inputs()]
    }

    /// `B` of an expansion, transposed: `[rank of the module, outputs]`.
    ///
    /// # Panics
    /// If there is no such expansion.
    pub fn b(&mut self, expansion: usize) -> &mut [f32] {
        let shape = &self.factors.expansions()[expansion];
        let start = (self.factors.b(expansion) - self.factors.a()) / size_of::<f32>();
        &mut self.values[start..][..shape.rank * shape.outputs]
    }
}

/// True if all values are numbers. Products with zero keep NaN, and make infinities NaN; sixteen
/// sums need no branch per value.
fn all_finite(values: &[f32]) -> bool {
    let mut sums = [0f32; 16];
    let chunks = values.chunks_exact(16);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (sum, value) in sums.iter_mut().zip(chunk) {
            *sum += value * 0.0;
        }
    }
    sums.iter().all(|sum| *sum == 0.0) && rest.iter().all(|value| value.is_finite())
}
