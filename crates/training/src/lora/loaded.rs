//! Factors as an adapter that inference computes with.

use std::sync::Arc;

use ruvllm_adapters::{Adapter, Digests, Layout, SiteShape};
use ruvllm_kernels::low_rank::{Expansion, FACTOR_ALIGN, FactorFormat};
use ruvllm_kernels::quant::SharedBytes;

use super::{Lora, SiteModules};
use crate::error::Result;

impl Lora {
    /// A copy of the factors in f32, as requests to an engine take it: answers are sampled from the
    /// factors of a step without a file.
    ///
    /// # Errors
    /// [`Error::Adapter`](crate::Error::Adapter) for factors that have no layout.
    pub fn to_loaded(&self) -> Result<Adapter> {
        let layout = Layout::new(FactorFormat::F32, self.sites.iter().map(|site| site.shape(self.rank)))?;
        let mut factors = Aligned::new(layout.bytes());
        let out = factors.values_mut();
        let mut place = |at: usize, values: &[f32], scale: f32| {
            let out = &mut out[at / size_of::<f32>()..][..values.len()];
            out.iter_mut().zip(values).for_each(|(out, value)| *out = scale * value);
        };
        for (site, at) in self.sites.iter().zip(layout.sites()) {
            place(at.factors.a(), &self.values[site.a.clone()], 1.0);
            for (expansion, block) in site.blocks.iter().enumerate() {
                place(at.factors.b(expansion), &self.values[block.values.clone()], self.scale);
            }
        }
        let digests = Digests::new(&self.base, &layout, factors.as_ref());
        let (base, bytes) = (Arc::clone(&self.base), SharedBytes::new(factors));
        Ok(Adapter::from_bytes(base, Arc::new(layout), bytes, digests)?)
    }
}

impl SiteModules {
    fn shape(&self, rank: usize) -> SiteShape {
        let expansion = |block: &super::Block| Expansion {
            target: block.target,
            first: block.module * rank,
            rank,
            outputs: block.rows.len(),
        };
        SiteShape {
            layer: self.layer,
            site: self.site,
            rank: rank * self.modules.len(),
            inputs: self.inputs,
            expansions: self.blocks.iter().map(expansion).collect(),
        }
    }
}

/// Floats that start at a multiple of [`FACTOR_ALIGN`] bytes.
struct Aligned {
    values: Vec<f32>,
    start: usize,
    len: usize,
}

impl Aligned {
    fn new(bytes: usize) -> Self {
        let len = bytes.div_ceil(size_of::<f32>());
        let values = vec![0.0_f32; len + FACTOR_ALIGN / size_of::<f32>()];
        // The memory of a vector stays where it is when the vector is moved.
        let past = values.as_ptr().addr() % FACTOR_ALIGN;
        let start = (FACTOR_ALIGN - past) % FACTOR_ALIGN / size_of::<f32>();
        Self { values, start, len }
    }

    fn values_mut(&mut self) -> &mut [f32] {
        &mut self.values[self.start..][..self.len]
    }
}

impl AsRef<[u8]> for Aligned {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.values[self.start..][..self.len])
    }
}
