//! Interface to the output projection of a language model.

use ruvllm_kernels::Kernels;

/// Output projection of a language model: `logits = W h`, with `W` of `[vocab_size, model_dim]`,
/// maybe behind a soft cap.
pub trait OutputHead: Send + Sync {
    /// Width of the final hidden state.
    fn model_dim(&self) -> usize;

    /// Number of logits.
    fn vocab_size(&self) -> usize;

    /// Writes the row of a token, `[model_dim]`. `token` is below [`vocab_size`](Self::vocab_size).
    fn row(&self, token: u32, row: &mut [f32]);

    /// Bias of a token's logit.
    fn bias(&self, token: u32) -> f32 {
        let _ = token;
        0.0
    }

    /// Cap of `cap * tanh(logit / cap)`, if the model caps its logits.
    fn soft_cap(&self) -> Option<f32> {
        None
    }

    /// Kernels for dot products and sums.
    fn kernels(&self) -> Kernels;
}
