//! Embeddings of tokens, their types and positions: the beginning of a pass.

use super::layer::enter;
use super::linear::NormWeights;
use super::{Encoder, EncoderText, EncoderWorkspace};
use crate::compute::Compute;
use crate::rows;

impl Encoder {
    /// The residual streams: sums of the embeddings of token, type and position, normed where the
    /// model has a norm for them; and the input of the first layer.
    pub(super) fn embed(
        &self,
        compute: &Compute,
        workspace: &mut EncoderWorkspace,
        texts: &[EncoderText<'_>],
        next: Option<&NormWeights>,
    ) {
        let Compute { kernels, pool, .. } = compute;
        let (dim, weights, scale) = (self.config.model_dim, &self.weights, self.config.spec.embedding_scale);
        let tokens = texts.iter().flat_map(|text| {
            let tokens = text.tokens.iter().enumerate();
            tokens.map(|(position, &token)| (position, token, usize::from(position >= text.second_type)))
        });
        let residual = workspace.residual.chunks_exact_mut(dim);
        let rows = residual.zip(workspace.input.values_mut().chunks_exact_mut(dim)).zip(tokens);
        rows::for_each(pool, rows, |((sum, input), (position, token, kind))| {
            weights.embedding.dequantize_row(token as usize, sum);
            if scale != 1.0 {
                sum.iter_mut().for_each(|value| *value *= scale);
            }
            if let Some(token_type) = weights.token_types.get(kind).or(weights.token_types.first()) {
                kernels.add_assign(sum, token_type);
            }
            if let Some(positions) = &weights.positions {
                positions.dequantize_row(position, input);
                kernels.add_assign(sum, input);
            }
            enter(compute, weights.embedding_norm.as_ref(), next, sum, input);
        });
    }
}
