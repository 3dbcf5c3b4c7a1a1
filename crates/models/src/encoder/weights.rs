//! Tensors of an encoder: names, shapes and loading.

use ruvllm_kernels::quant::PackedMatrix;

use super::config::{DENSE, EncoderConfig, TOKEN_TYPES};
use super::head::Head;
use super::linear::{NormWeights, joint, linear, norm};
use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::family::{EncoderNetwork, EncoderNorms};
use crate::tensor_names::EMBEDDING;
use crate::weights::{Linear, LoadProgress, TensorSource, WeightBytes};

/// One transformer layer.
pub(super) struct LayerWeights {
    pub(super) query: Linear, // [n_heads * head_dim, model_dim]
    pub(super) key: Linear,   // [n_kv_heads * head_dim, model_dim]
    pub(super) value: Linear, // [n_kv_heads * head_dim, model_dim]
    pub(super) query_norm: Option<NormWeights>,
    pub(super) key_norm: Option<NormWeights>,
    pub(super) attention: Branch,    // [model_dim, n_heads * head_dim]
    pub(super) gate: Option<Linear>, // [ffn_dim, model_dim]
    pub(super) up: Linear,           // [ffn_dim, model_dim]
    pub(super) network: Branch,      // [model_dim, ffn_dim]
}

/// Output projection of a branch and the norms around it.
pub(super) struct Branch {
    /// Norm of the residual stream, for the branch's input.
    pub(super) before: Option<NormWeights>,
    pub(super) output: Linear,
    /// Norm of the output.
    pub(super) behind: Option<NormWeights>,
    /// Norm of the output's sum with the residual stream.
    pub(super) of_sum: Option<NormWeights>,
}

/// All weights of an encoder.
pub(super) struct Weights {
    pub(super) embedding: PackedMatrix,         // [vocab_size, model_dim]
    pub(super) positions: Option<PackedMatrix>, // [context_length, model_dim]
    /// Embeddings of the first two token types: of a text alone, and of the second text of a pair.
    /// Fewer in models without.
    pub(super) token_types: Vec<Vec<f32>>, // up to 2 of [model_dim]
    pub(super) embedding_norm: Option<NormWeights>,
    pub(super) layers: Vec<LayerWeights>,
    pub(super) output_norm: Option<NormWeights>,
    /// Matrices behind the pooling.
    pub(super) dense: Vec<PackedMatrix>,
    /// `None`: the model gives states alone.
    pub(super) head: Option<Head>,
    pub(super) bytes: WeightBytes,
}

impl Weights {
    /// Loads the tensors that `config` asks for.
    ///
    /// # Errors
    /// A tensor is missing, left over, of an unsupported type or of another shape.
    pub(super) fn load(
        checkpoint: &dyn Checkpoint,
        config: &EncoderConfig,
        progress: &mut dyn FnMut(LoadProgress<'_>),
    ) -> Result<Self> {
        let mut source = TensorSource::new(checkpoint, progress);
        let (dim, spec) = (config.model_dim, &config.spec);
        let embedding = source.matrix(EMBEDDING, config.vocab_size, dim)?;
        let positions = match spec.rotary {
            None => Some(source.matrix("position_embd.weight", config.context_length, dim)?),
            Some(_) => None,
        };
        let mut token_types = vec![vec![0.0; dim]; config.n_token_types.min(2)];
        if config.n_token_types > 0 {
            let table = source.matrix(TOKEN_TYPES, config.n_token_types, dim)?;
            token_types.iter_mut().enumerate().for_each(|(row, out)| table.dequantize_row(row, out));
        }
        let has_embedding_norm = spec.norms != EncoderNorms::Around;
        let embedding_norm =
            has_embedding_norm.then(|| norm(&mut source, config, "token_embd_norm", dim)).transpose()?;
        // `n_layers` is at most the number of tensors, see `EncoderConfig`.
        let mut layers = Vec::with_capacity(config.n_layers);
        for layer in 0..config.n_layers {
            layers.push(load_layer(&mut source, config, layer)?);
        }
        let has_output_norm = spec.norms != EncoderNorms::Sums;
        let output_norm =
            has_output_norm.then(|| norm(&mut source, config, "output_norm", dim)).transpose()?;
        let dense = load_dense(&mut source, config)?;
        let head = if spec.may_rank { Head::load(&mut source, config)? } else { None };
        let bytes = source.finish(&config.architecture)?;
        Ok(Self {
            embedding,
            positions,
            token_types,
            embedding_norm,
            layers,
            output_norm,
            dense,
            head,
            bytes,
        })
    }
}

/// Matrices behind the pooling; `config` has the widths of those that the file has.
fn load_dense(source: &mut TensorSource<'_>, config: &EncoderConfig) -> Result<Vec<PackedMatrix>> {
    let names: Vec<String> =
        DENSE.iter().map(|name| format!("{name}.weight")).filter(|name| source.has(name)).collect();
    let mut inputs = config.model_dim;
    let mut load = |(name, &outputs): (String, &usize)| {
        let matrix = source.matrix(&name, outputs, inputs);
        inputs = outputs;
        matrix
    };
    names.into_iter().zip(&config.dense_dims).map(&mut load).collect()
}

fn load_layer(source: &mut TensorSource<'_>, config: &EncoderConfig, layer: usize) -> Result<LayerWeights> {
    let (dim, ffn_dim, spec) = (config.model_dim, config.ffn_dim, &config.spec);
    let (query_dim, kv_dim) = (config.query_dim(), config.kv_dim());
    let name = |part: &str| format!("blk.{layer}.{part}");
    let (query, key, value) = if spec.joint_projection {
        let shape = (query_dim + 2 * kv_dim, dim);
        let mut rows = joint(source, config, &name("attn_qkv"), shape)?;
        (rows.next(query_dim)?, rows.next(kv_dim)?, rows.next(kv_dim)?)
    } else {
        let mut load = |part, rows| linear(source, config, &name(part), (rows, dim));
        (load("attn_q", query_dim)?, load("attn_k", kv_dim)?, load("attn_v", kv_dim)?)
    };
    let mut head_norm =
        |part| spec.head_norms.then(|| norm(source, config, &name(part), config.head_dim)).transpose();
    let (query_norm, key_norm) = (head_norm("attn_q_norm")?, head_norm("attn_k_norm")?);
    let output = linear(source, config, &name("attn_output"), (dim, query_dim))?;
    let names = ["attn_norm", "post_attention_norm", "attn_output_norm"].map(name);
    let attention = load_branch(source, config, output, &names, layer == 0)?;
    let inner = (ffn_dim, dim);
    let (gate, up) = match spec.network {
        EncoderNetwork::Gelu => (None, linear(source, config, &name("ffn_up"), inner)?),
        EncoderNetwork::JointGeGlu => {
            let mut rows = joint(source, config, &name("ffn_up"), (2 * ffn_dim, dim))?;
            (Some(rows.next(ffn_dim)?), rows.next(ffn_dim)?)
        }
        EncoderNetwork::TanhGeGlu | EncoderNetwork::SwiGlu => {
            let gate = linear(source, config, &name("ffn_gate"), inner)?;
            (Some(gate), linear(source, config, &name("ffn_up"), inner)?)
        }
    };
    let output = linear(source, config, &name("ffn_down"), (dim, ffn_dim))?;
    let names = ["ffn_norm", "post_ffw_norm", "layer_output_norm"].map(name);
    let network = load_branch(source, config, output, &names, false)?;
    Ok(LayerWeights { query, key, value, query_norm, key_norm, attention, gate, up, network })
}

/// The norms of a branch, by their names before it, behind it and of the sum.
fn load_branch(
    source: &mut TensorSource<'_>,
    config: &EncoderConfig,
    output: Linear,
    [before, behind, of_sum]: &[String; 3],
    is_first: bool,
) -> Result<Branch> {
    let norms = config.spec.norms;
    let mut load = |is_there: bool, name: &str| {
        is_there.then(|| norm(source, config, name, config.model_dim)).transpose()
    };
    // The input of the first branch is normed already.
    let is_before = norms == EncoderNorms::Around || norms == EncoderNorms::Before && !is_first;
    Ok(Branch {
        before: load(is_before, before)?,
        output,
        behind: load(norms == EncoderNorms::Around, behind)?,
        of_sum: load(norms == EncoderNorms::Sums, of_sum)?,
    })
}
