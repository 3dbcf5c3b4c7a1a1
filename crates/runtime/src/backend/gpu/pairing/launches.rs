//! Kernel launches at the beginning of a pass of a prediction head.

use std::sync::Arc;

use ruvllm_gpu::{Result, RowOutput};

use super::DevicePairing;
use crate::backend::gpu::launches::Builder;
use crate::backend::gpu::rows::Rows;

impl Builder<'_> {
    /// Residual stream of the pairs of a token and the final hidden state before it.
    pub(in crate::backend::gpu) fn pair(&mut self, pairing: &DevicePairing) -> Result<()> {
        let (gpu, config, weights) = (self.parts.gpu, self.parts.config, self.parts.weights);
        let rows = Arc::clone(&self.rows);
        let Rows { tokens, delta: embedded, n, .. } = &*rows;
        let own = rows.pairs();
        let scale = config.decoder.embedding_scale;
        self.launches.push(weights.embedding.gather_scaled(gpu, tokens, embedded, scale)?);
        let norms = [(embedded, &pairing.embedding_norm), (&own.states, &pairing.hidden_norm)];
        for ((x, weight), out) in norms.into_iter().zip(&own.halves) {
            let out = RowOutput::F32(out.clone());
            self.launches.push(gpu.rms_norm(x, weight, config.norm_eps, *n, &out)?);
        }
        let ([left, right], width) = (&own.halves, config.model_dim as u32);
        self.launches.extend(own.joined.fill(gpu, pairing.projection.formats(), true, |out| {
            Ok(vec![gpu.join_rows([left, right], (*n, width), out)?])
        })?);
        self.project(&pairing.projection, |format| own.joined.of(format), &rows.residual)
    }
}
