//! Weights of latent attention on the device (ADR-0150): a matrix per head into the space of the
//! latent, and another back to the values of the head.

use ruvllm_gpu::{Buffer, ExpertMatrix, Memory};
use ruvllm_kernels::quant::PackedMatrix;
use ruvllm_models::LatentWeights;

use super::refusal::Refusal;
use super::uploads::{Projection, Uploader};

/// Weights of latent attention, but for its first projection and that of its output.
#[derive(Debug)]
pub(super) struct DeviceLatent {
    /// Norm of the latent of queries, and the projection from it; if there is one.
    pub(super) query: Option<(Buffer, Projection)>,
    /// Norm of the latent of keys and values, `[rank]`.
    pub(super) norm: Buffer,
    /// From a head's query to the space of the latent, `[heads, rank, still_dim]`.
    pub(super) keys: ExpertMatrix,
    /// From the latent to a head's value, `[heads, value_dim, rank]`.
    pub(super) values: ExpertMatrix,
}

impl DeviceLatent {
    /// Allocates the weights; also the projection of a row to its latents and the rotated key.
    pub(super) fn allocate<'m>(
        uploader: &mut Uploader<'_, 'm>,
        name: &dyn Fn(&str) -> String,
        weights: &'m LatentWeights,
    ) -> Result<(Self, Projection), Refusal> {
        let [query_down, query_up, latent] = ["attn_q_a", "attn_q_b", "attn_kv_a_mqa"].map(name);
        let (first_name, first) = match &weights.query_latent {
            Some((down, _)) => (query_down, down),
            None => (name("attn_q"), &weights.query),
        };
        let projection = uploader.projection(&[(&first_name, first), (&latent, &weights.latent)])?;
        let query = match &weights.query_latent {
            Some((_, norm)) => {
                Some((uploader.vector(norm)?, uploader.padded_projection(&query_up, &weights.query)?))
            }
            None => None,
        };
        let keys = heads(uploader, &name("attn_k_b.weight"), &weights.keys)?;
        let values = heads(uploader, &name("attn_v_b.weight"), &weights.values)?;
        Ok((Self { query, norm: uploader.vector(&weights.latent_norm)?, keys, values }, projection))
    }
}

/// Matrices of all heads, a small part of a layer, which are always in memory of the device.
fn heads<'m>(
    uploader: &mut Uploader<'_, 'm>,
    name: &str,
    matrices: &'m [PackedMatrix],
) -> Result<ExpertMatrix, Refusal> {
    let memory = std::mem::replace(&mut uploader.memory, Memory::Device);
    let matrix = uploader.padded_matrix(name, &matrices.iter().collect::<Vec<_>>());
    uploader.memory = memory;
    let matrix = matrix?;
    ExpertMatrix::new(matrix, matrices.len() as u32)
        .map_err(|source| Refusal::Gpu { action: format!("upload {name}"), source })
}
