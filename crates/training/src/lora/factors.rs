//! Factors of one site as matrices for the kernels.

use ruvllm_adapters::Site;
use ruvllm_kernels::quant::{PackedMatrix, SharedBytes, WeightFormat};

use super::{Block, Lora, SiteModules};
use crate::error::Result;

/// Factors of a site, copied from the values at the start of a pass.
pub(crate) struct SiteFactors<'a> {
    pub(crate) modules: &'a SiteModules,
    pub(crate) rank: usize,
    pub(crate) scale: f32,
    /// All values of the adapter.
    values: &'a [f32],
    /// `A` of all modules, `[site rank, inputs]`.
    pub(crate) a: PackedMatrix,
    /// `B` of all modules, transposed and placed at their targets' columns, else zero: `[site rank,
    /// outputs of all targets]`.
    pub(crate) b: PackedMatrix,
    /// First column of each target in the outputs of all targets.
    pub(crate) starts: Vec<usize>,
}

impl Lora {
    /// Factors of a site; `None` without modules there.
    pub(crate) fn factors(&self, layer: usize, site: Site) -> Result<Option<SiteFactors<'_>>> {
        let found = self.sites.iter().find(|modules| (modules.layer, modules.site) == (layer, site));
        found.map(|modules| self.site_factors(modules)).transpose()
    }

    fn site_factors<'a>(&'a self, modules: &'a SiteModules) -> Result<SiteFactors<'a>> {
        let (rank, values) = (self.rank, &self.values[..]);
        let site_rank = rank * modules.modules.len();
        let widths = self.base.output_widths(modules.site);
        let starts: Vec<usize> = widths
            .iter()
            .scan(0, |end, width| {
                *end += width;
                Some(*end - width)
            })
            .collect();
        let outputs = widths.iter().sum();
        let mut b = vec![0.0; site_rank * outputs];
        for block in &modules.blocks {
            let rows = values[block.values.clone()].chunks_exact(block.rows.len());
            for (i, row) in rows.enumerate() {
                let at = (block.module * rank + i) * outputs + starts[block.target];
                b[at..at + row.len()].copy_from_slice(row);
            }
        }
        let a = matrix(site_rank, modules.inputs, values[modules.a.clone()].to_vec())?;
        Ok(SiteFactors {
            modules,
            rank,
            scale: self.scale,
            values,
            a,
            b: matrix(site_rank, outputs, b)?,
            starts,
        })
    }
}

impl SiteFactors<'_> {
    /// Rank of all modules together.
    pub(crate) fn site_rank(&self) -> usize {
        self.rank * self.modules.modules.len()
    }

    /// Values of `A`, `[site rank, inputs]`.
    pub(crate) fn a_values(&self) -> &[f32] {
        &self.values[self.modules.a.clone()]
    }

    /// Values of a block of `B`, `[rank, outputs]`.
    pub(crate) fn b_values(&self, block: &Block) -> &[f32] {
        &self.values[block.values.clone()]
    }
}

/// An f32 matrix of the kernels.
fn matrix(rows: usize, cols: usize, values: Vec<f32>) -> Result<PackedMatrix> {
    Ok(PackedMatrix::new(WeightFormat::F32, rows, cols, SharedBytes::new(Floats(values)))?)
}

/// Values as bytes. F32 matrices are stored in little-endian order, as all supported machines have
/// it.
struct Floats(Vec<f32>);

impl AsRef<[u8]> for Floats {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}
