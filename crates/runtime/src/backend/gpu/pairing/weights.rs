//! Weights at the beginning of a pass of a prediction head.

use ruvllm_gpu::Buffer;
use ruvllm_models::PredictionHead;

use crate::backend::gpu::refusal::Refusal;
use crate::backend::gpu::uploads::{Projection, Uploader};

/// A projection of the normed embedding of a token beside the normed final hidden state of the one
/// before it.
#[derive(Debug)]
pub(in crate::backend::gpu) struct DevicePairing {
    /// `[model_dim]`.
    pub(super) embedding_norm: Buffer,
    /// `[model_dim]`.
    pub(super) hidden_norm: Buffer,
    /// From `[2 * model_dim]` to the residual stream.
    pub(super) projection: Projection,
}

impl DevicePairing {
    /// `name` names the tensors of the head.
    pub(in crate::backend::gpu) fn allocate<'m>(
        uploader: &mut Uploader<'_, 'm>,
        name: &dyn Fn(&str) -> String,
        head: &'m PredictionHead,
    ) -> Result<Self, Refusal> {
        Ok(Self {
            embedding_norm: uploader.vector(&head.embedding_norm)?,
            hidden_norm: uploader.vector(&head.hidden_norm)?,
            projection: uploader.projection(&[(&name("eh_proj"), &head.projection)])?,
        })
    }
}
