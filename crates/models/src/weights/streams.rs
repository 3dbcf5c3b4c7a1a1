//! Weights of several residual streams.

use ruvllm_kernels::quant::PackedMatrix;

use super::Linear;

/// Projections between the embedding or the final hidden state and all streams but the first.
#[derive(Debug)]
#[non_exhaustive]
pub struct StreamWeights {
    /// From the embedding to each stream, `[model_dim, model_dim]` each.
    pub split: Vec<PackedMatrix>,
    /// From each stream to its part of the final hidden state, `[model_dim, model_dim]` each.
    pub merge: Vec<PackedMatrix>,
}

/// Prediction and correction of all streams by a layer, which computes one.
#[derive(Debug)]
#[non_exhaustive]
pub struct LayerStreamWeights {
    /// Norm of the router's input, with its factor, `[model_dim]`.
    pub router_norm: Vec<f32>,
    /// To the gates of streams, `[streams, model_dim]`.
    pub router: Vec<f32>,
    /// From the gates to the share of each stream in the prediction of each, `[streams (predicted),
    /// streams, streams (gates)]`.
    pub predict: Vec<f32>,
    /// From the gates to the share of the difference that each stream gets, `[streams, streams
    /// (gates)]`.
    pub correct: Vec<f32>,
    /// Factors of the corrected active stream as the input of the layer's embedding, `[model_dim]`.
    pub correct_scale: Vec<f32>,
    /// Low-rank projection of the mixer's input, first half, `[rank, model_dim]`.
    pub low_rank_down: Linear,
    /// Second half, `[model_dim, rank]`.
    pub low_rank_up: Linear,
    /// Norm of its output, `[model_dim]`.
    pub low_rank_norm: Vec<f32>,
}
