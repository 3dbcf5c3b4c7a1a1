//! Kernel launches of final hidden states.

use std::sync::Arc;

use ruvllm_adapters::Site;
use ruvllm_gpu::{Buffer, Result, RowOutput};

use super::FinalStates;
use crate::backend::gpu::launches::{Builder, Phase};

impl Builder<'_> {
    /// Prepares the final hidden states of the rows with logits, whose residual stream is complete;
    /// or of all rows of a prompt, if `out` has room for them. These go through the part of the
    /// layers from `layer` on that is left out for them: keys, values and queries are there.
    pub(in crate::backend::gpu) fn final_states(
        &mut self,
        out: &Buffer,
        layer: usize,
    ) -> Result<FinalStates> {
        let (gpu, config, weights) = (self.parts.gpu, self.parts.config, self.parts.weights);
        let all = self.all_rows();
        let has_all = out.len() == u64::from(all.n) * config.model_dim as u64 * 4;
        if has_all && !Arc::ptr_eq(&self.rows, &all) {
            (self.rows, self.phase, self.pending) = (all, Phase::Prefill, None);
            for (index, weights) in weights.layers.iter().enumerate().skip(layer) {
                if index > layer {
                    self.keys(index, weights)?;
                }
                self.attend(index)?;
                self.feed_forward(index, weights)?;
                self.end_layer(index, weights)?;
            }
            self.merge_streams()?;
        }
        let pending = self.pending.take();
        let target = RowOutput::F32(out.clone());
        let norm = self.normalized(Some(&weights.output_norm), pending.as_ref(), &target)?;
        self.launches.extend(norm);
        if let Some((factors, lists)) = self.factors((0, Site::FinalHidden)) {
            let updates = factors.add(gpu, &out.clone().into(), lists, out)?;
            self.launches.extend(updates);
        }
        Ok(FinalStates { launches: std::mem::take(&mut self.launches), out: out.clone() })
    }
}
