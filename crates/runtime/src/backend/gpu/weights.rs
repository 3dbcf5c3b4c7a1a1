//! Weights of a decoder on the device: matrices in the formats of the kernels, vectors in f32.

use ruvllm_gpu::{Buffer, Gpu, Matrix};
use ruvllm_models::{AttentionWeights, FeedForward, LayerWeights, Model, ModelConfig};

use super::experts::DeviceExperts;
use super::refusal::Refusal;
use super::uploads::{Part, Projection, Uploader, Uploads};

/// Norms of queries and keys.
#[derive(Debug)]
pub(super) struct HeadNorms {
    /// `[2, head_dim]`, of all heads together `[heads + kv_heads, head_dim]`.
    pub(super) weights: Buffer,
    /// All heads of the query, and all of the key, have one norm.
    pub(super) together: bool,
}

/// A gated feed-forward network.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) gate_up: Projection,
    pub(super) down: Projection,
}

/// One transformer layer.
#[derive(Debug)]
pub(super) struct DeviceLayer {
    pub(super) attention_norm: Option<Buffer>,
    /// Queries, keys and values.
    pub(super) qkv: Projection,
    pub(super) head_norms: Option<HeadNorms>,
    /// Attention sinks of the query heads, `[heads]`.
    pub(super) sinks: Option<Buffer>,
    pub(super) attention_output: Projection,
    /// Times the factor of what layers add to the residual stream.
    pub(super) attention_post_norm: Option<Buffer>,
    pub(super) ffn_norm: Option<Buffer>,
    /// The network of every token; of a mixture its shared experts, if it has any.
    pub(super) network: Option<Network>,
    /// In layers that are a mixture.
    pub(super) experts: Option<DeviceExperts>,
    /// Times the factor of what layers add to the residual stream.
    pub(super) ffn_post_norm: Option<Buffer>,
}

/// All weights.
#[derive(Debug)]
pub(super) struct DeviceWeights {
    pub(super) embedding: Matrix,
    pub(super) layers: Vec<DeviceLayer>,
    pub(super) output_norm: Buffer,
    pub(super) output: Projection,
    /// True if the output matrix is the embedding (tied).
    tied: bool,
}

impl DeviceWeights {
    /// Allocates the weights of `model` and uploads its vectors. The matrices remain to be written,
    /// so that kernels can be compiled meanwhile.
    pub(super) fn allocate<'m>(gpu: &Gpu, model: &'m Model) -> Result<(Self, Uploads<'m>), Refusal> {
        let (config, weights) = (model.config(), model.weights());
        let mut uploader = Uploader::new(gpu);
        let layer = |(index, layer)| DeviceLayer::allocate(&mut uploader, config, index, layer);
        let layers = weights.layers.iter().enumerate().map(layer).collect::<Result<_, _>>()?;
        let embedding = uploader.matrix("token_embd.weight", &[&weights.embedding])?;
        let output = match &weights.output {
            Some(linear) => uploader.projection(&[("output", linear)])?,
            None => Projection {
                outputs: embedding.rows(),
                parts: vec![Part { matrix: embedding.clone(), first: 0 }],
                bias: None,
            },
        };
        let output_norm = uploader.vector(&weights.output_norm)?;
        let tied = weights.output.is_none();
        Ok((Self { embedding, layers, output_norm, output, tied }, uploader.finish()))
    }

    /// Bytes of the matrices on the device.
    pub(super) fn bytes(&self) -> u64 {
        let layers: u64 = self.layers.iter().map(DeviceLayer::bytes).sum();
        let embedding = if self.tied { 0 } else { self.embedding.bytes() };
        layers + self.output.bytes() + embedding
    }
}

impl DeviceLayer {
    fn allocate<'m>(
        uploader: &mut Uploader<'_, 'm>,
        config: &ModelConfig,
        index: usize,
        layer: &'m LayerWeights,
    ) -> Result<Self, Refusal> {
        let name = |part: &str| format!("blk.{index}.{part}");
        let [q, k, v, output] = ["attn_q", "attn_k", "attn_v", "attn_output"].map(name);
        let missing = |what| Refusal::Unsupported(format!("its layer {index} has no {what}"));
        let attention = layer.mixer.attention().ok_or_else(|| missing("attention"))?;
        let value = attention.value.as_ref().ok_or_else(|| missing("projection to values"))?;
        let scale = config.decoder.residual_scale;
        let post_norm = |norm: &Option<Vec<f32>>| {
            norm.as_ref().map(|norm| norm.iter().map(|weight| weight * scale).collect::<Vec<f32>>())
        };
        let suffix = if layer.experts.is_some() { "_shexp" } else { "" };
        let network = layer.feed_forward.as_ref();
        if network.is_none() && layer.experts.is_none() {
            return Err(missing("feed-forward network"));
        }
        Ok(Self {
            attention_norm: uploader.optional(layer.attention_norm.as_deref())?,
            qkv: uploader.projection(&[(&q, &attention.query), (&k, &attention.key), (&v, value)])?,
            head_norms: head_norms(uploader, config, attention)?,
            sinks: uploader.optional(attention.sinks.as_deref())?,
            attention_output: uploader.projection(&[(&output, &attention.output)])?,
            attention_post_norm: uploader.optional(post_norm(&layer.attention_post_norm).as_deref())?,
            ffn_norm: uploader.optional(layer.ffn_norm.as_deref())?,
            network: network
                .map(|network| Network::allocate(uploader, &|part| name(&format!("{part}{suffix}")), network))
                .transpose()?,
            experts: match (&config.decoder.experts, &layer.experts) {
                (Some(spec), Some(weights)) => {
                    Some(DeviceExperts::allocate(uploader, spec, &name, weights, network.is_some())?)
                }
                _ => None,
            },
            ffn_post_norm: uploader.optional(post_norm(&layer.ffn_post_norm).as_deref())?,
        })
    }

    fn bytes(&self) -> u64 {
        let network = self.network.as_ref().map_or(0, |n| n.gate_up.bytes() + n.down.bytes());
        let experts = self.experts.as_ref().map_or(0, DeviceExperts::bytes);
        self.qkv.bytes() + self.attention_output.bytes() + network + experts
    }
}

impl Network {
    fn allocate<'m>(
        uploader: &mut Uploader<'_, 'm>,
        name: &dyn Fn(&str) -> String,
        network: &'m FeedForward,
    ) -> Result<Self, Refusal> {
        let [gate, up, down] = ["ffn_gate", "ffn_up", "ffn_down"].map(name);
        let missing = || Refusal::Unsupported(format!("it has no {gate}"));
        let gate_weights = network.gate.as_ref().ok_or_else(missing)?;
        Ok(Self {
            gate_up: uploader.projection(&[(&gate, gate_weights), (&up, &network.up)])?,
            down: uploader.projection(&[(&down, &network.down)])?,
        })
    }
}

fn head_norms(
    uploader: &Uploader<'_, '_>,
    config: &ModelConfig,
    attention: &AttentionWeights,
) -> Result<Option<HeadNorms>, Refusal> {
    let (Some(query), Some(key)) = (&attention.query_norm, &attention.key_norm) else { return Ok(None) };
    let weights = uploader.vector(&[query.as_slice(), key].concat())?;
    Ok(Some(HeadNorms { weights, together: config.decoder.row_norms }))
}
