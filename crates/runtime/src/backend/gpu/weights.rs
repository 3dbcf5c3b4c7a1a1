//! Weights of a decoder on the device: matrices in the formats of the kernels, vectors in f32.

use ruvllm_gpu::{Buffer, Gpu, HeadValues, Matrix, Memory};
use ruvllm_models::{
    AttentionWeights, FeedForward, LatentWeights, LayerParts, LayerWeights, Mixer, Model, ModelConfig,
    SharedAttentionWeights,
};

use super::experts::DeviceExperts;
use super::latent::DeviceLatent;
use super::pairing::DevicePairing;
use super::per_layer::{DeviceLayerInput, DevicePerLayer};
use super::refusal::Refusal;
use super::states::DeviceState;
use super::streams::{DeviceLayerStreams, DeviceStreams};
use super::uploads::{Norm, Part, Projection, Stored, Uploader, Uploads, WeightBytes};

/// Norms of queries and keys.
#[derive(Debug)]
pub(super) struct HeadNorms {
    /// `[2, head_dim]`, of all heads together `[heads + kv_heads, head_dim]`.
    pub(super) weights: Buffer,
    /// All heads of the query, and all of the key, have one norm.
    pub(super) together: bool,
    pub(super) values: HeadValues,
}

/// A feed-forward network.
#[derive(Debug)]
pub(super) struct Network {
    /// Gate and up; up alone for an activation without a gate.
    pub(super) gate_up: Projection,
    pub(super) down: Projection,
}

/// Attention over keys and values.
#[derive(Debug)]
pub(super) struct DeviceAttention {
    /// Queries, keys and values, behind each head's query its gate if attention is gated; in latent
    /// attention queries or their latent, and the latent of keys and values with the rotated key.
    /// Without projections to values, or to keys and values, these are left as they are.
    pub(super) qkv: Projection,
    /// Further weights of latent attention.
    pub(super) latent: Option<DeviceLatent>,
    pub(super) head_norms: Option<HeadNorms>,
    /// Attention sinks of the query heads, `[heads]`.
    pub(super) sinks: Option<Buffer>,
    pub(super) output: Projection,
}

/// One transformer layer: a mixer, a network or experts, or both.
#[derive(Debug)]
pub(super) struct DeviceLayer {
    /// Norm of the input of attention and of what has a state.
    pub(super) attention_norm: Option<Norm>,
    pub(super) attention: Option<DeviceAttention>,
    /// In the place of attention, or beside it.
    pub(super) state: Option<DeviceState>,
    /// Times the factor of what layers add to the residual stream.
    pub(super) attention_post_norm: Option<Buffer>,
    pub(super) ffn_norm: Option<Norm>,
    /// The network of every token; of a mixture its shared experts, if it has any.
    pub(super) network: Option<Network>,
    /// In layers that are a mixture.
    pub(super) experts: Option<DeviceExperts>,
    /// Times the factor of what layers add to the residual stream.
    pub(super) ffn_post_norm: Option<Buffer>,
    /// In models with embeddings per layer.
    pub(super) input: Option<DeviceLayerInput>,
    /// In models with several residual streams.
    pub(super) streams: Option<DeviceLayerStreams>,
    /// Factor of the residual stream behind the layer.
    pub(super) output_scale: Option<Buffer>,
}

/// All weights.
#[derive(Debug)]
pub(super) struct DeviceWeights {
    pub(super) embedding: Matrix,
    /// In the place of the embedding, in a prediction head.
    pub(super) pairing: Option<DevicePairing>,
    pub(super) per_layer: Option<DevicePerLayer>,
    pub(super) streams: Option<DeviceStreams>,
    pub(super) layers: Vec<DeviceLayer>,
    pub(super) output_norm: Norm,
    pub(super) output: Projection,
    /// Layers with weights in memory of the host, the first ones.
    pub(super) host_layers: usize,
    /// With those of the head.
    pub(super) bytes: WeightBytes,
    /// Prediction head, wholly in memory of the device.
    pub(super) head: Option<Box<DeviceWeights>>,
}

impl DeviceWeights {
    /// Allocates the weights of `model` and uploads its vectors: those of the last `wanted` layers
    /// in memory of the device, or of as many as there is room for, the others in memory of the
    /// host. The matrices remain to be written, so that kernels can be compiled meanwhile.
    /// `with_head`: those of the prediction head too.
    pub(super) fn allocate<'m>(
        gpu: &Gpu,
        model: &'m Model,
        wanted: Option<usize>,
        with_head: bool,
    ) -> Result<(Self, Uploads<'m>), Refusal> {
        let all = model.weights().layers.len();
        let mut on_device = wanted.map_or(all, |wanted| wanted.min(all));
        loop {
            let mut placed = 0;
            match Self::with_layers(gpu, model, (on_device, with_head), &mut placed) {
                Err(refusal) if wanted.is_none() && on_device > 0 && refusal.is_lack_of_memory() => {
                    // Also the memory that the others are copied to takes room.
                    on_device = placed.min(on_device - 1);
                    let emptied = gpu.run(&[]).and_then(|()| gpu.wait());
                    emptied.map_err(|source| Refusal::Gpu { action: "release memory".into(), source })?;
                }
                result => return result,
            }
        }
    }

    /// Allocates with `on_device` layers in memory of the device, of which it counts those that
    /// have found room.
    fn with_layers<'m>(
        gpu: &Gpu,
        model: &'m Model,
        (on_device, with_head): (usize, bool),
        placed: &mut usize,
    ) -> Result<(Self, Uploads<'m>), Refusal> {
        let (config, weights) = (model.config(), model.weights());
        let host_layers = weights.layers.len() - on_device;
        let mut uploader = Uploader::new(gpu);
        if host_layers > 0 && weights.output.is_some() {
            // A pass reads one row per token of it.
            uploader.memory = Memory::Host;
        }
        let embedding = uploader.matrix("token_embd.weight", &[&weights.embedding])?;
        uploader.memory = Memory::Device;
        let memory = if host_layers > 0 { Memory::Host } else { Memory::Device };
        let per_layer = |weights| DevicePerLayer::allocate(&mut uploader, weights, memory);
        let per_layer = weights.per_layer.as_ref().map(per_layer).transpose()?;
        let streams = match &weights.streams {
            Some(streams) => DeviceStreams::allocate(&mut uploader, config, streams)?,
            None => None,
        };
        let output = match &weights.output {
            Some(linear) => uploader.projection(&[("output", linear)])?,
            None => Projection {
                outputs: embedding.rows(),
                parts: vec![Part { matrix: Stored { matrix: embedding.clone(), staged: None }, first: 0 }],
                bias: None,
            },
        };
        let output_norm = Norm {
            weight: uploader.vector(&weights.output_norm)?,
            bias: uploader.optional(weights.output_norm_bias.as_deref())?,
        };
        let shared = (&embedding, &output_norm, &output);
        let head = with_head.then(|| Self::of_head(&mut uploader, model, shared)).transpose()?;
        let mut layers = Vec::new();
        for (index, layer) in weights.layers.iter().enumerate().rev() {
            uploader.memory = if index < host_layers { Memory::Host } else { Memory::Device };
            layers.push(DeviceLayer::allocate(&mut uploader, config, (index, index), layer)?);
            *placed += usize::from(index >= host_layers);
        }
        layers.reverse();
        let (uploads, bytes) = uploader.finish();
        let (pairing, head) = (None, head.flatten().map(Box::new));
        let weights = Self {
            embedding,
            pairing,
            per_layer,
            streams,
            layers,
            output_norm,
            output,
            host_layers,
            bytes,
            head,
        };
        Ok((weights, uploads))
    }

    /// Allocates the weights of the prediction head of a model; `None` for a model without one.
    /// Embedding, norm and output matrix that it does not have are those of the model, uploaded
    /// once.
    fn of_head<'m>(
        uploader: &mut Uploader<'_, 'm>,
        model: &'m Model,
        (embedding, output_norm, output): (&Matrix, &Norm, &Projection),
    ) -> Result<Option<Self>, Refusal> {
        let Some(head) = model.prediction_head() else { return Ok(None) };
        let (before, place) = (uploader.bytes(), model.config().n_layers);
        let name = |part: &str| format!("blk.{place}.nextn.{part}");
        let embedding = match &head.embedding {
            Some(own) => uploader.matrix(&format!("{}.weight", name("embed_tokens")), &[own])?,
            None => embedding.clone(),
        };
        let output = match &head.output {
            Some(own) => uploader.projection(&[(&name("shared_head_head"), own)])?,
            None => output.clone(),
        };
        let output_norm = match &head.output_norm {
            Some(own) => Norm { weight: uploader.vector(own)?, bias: None },
            None => output_norm.clone(),
        };
        let pairing = DevicePairing::allocate(uploader, &name, head)?;
        let layers = vec![DeviceLayer::allocate(uploader, head.config(), (0, place), &head.layer)?];
        Ok(Some(Self {
            embedding,
            pairing: Some(pairing),
            per_layer: None,
            streams: None,
            layers,
            output_norm,
            output,
            host_layers: 0,
            bytes: uploader.bytes().since(before),
            head: None,
        }))
    }

    /// Matrices in memory of the device that every token is multiplied with.
    pub(super) fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        let projections = self.layers.iter().flat_map(DeviceLayer::projections).chain([&self.output]);
        let parts = projections.flat_map(|projection| &projection.parts);
        parts.filter(|part| part.matrix.staged.is_none()).map(|part| &part.matrix.matrix)
    }
}

impl DeviceLayer {
    /// True if it has attention or a state.
    pub(super) fn has_mixer(&self) -> bool {
        self.attention.is_some() || self.state.is_some()
    }

    /// True if it has a feed-forward network or experts.
    pub(super) fn has_network(&self) -> bool {
        self.network.is_some() || self.experts.is_some()
    }

    /// Projections of every token.
    fn projections(&self) -> impl Iterator<Item = &Projection> {
        let attention = self.attention.iter().flat_map(|attention| [&attention.qkv, &attention.output]);
        let state = self.state.iter().flat_map(DeviceState::projections);
        let network = self.network.iter().flat_map(|network| [&network.gate_up, &network.down]);
        let input = self.input.iter().flat_map(DeviceLayerInput::projections);
        let streams = self.streams.iter().flat_map(DeviceLayerStreams::projections);
        attention.chain(state).chain(network).chain(input).chain(streams)
    }

    /// Allocates the weights of layer `index` of a configuration, whose tensors are those of layer
    /// `place` of the file.
    fn allocate<'m>(
        uploader: &mut Uploader<'_, 'm>,
        config: &ModelConfig,
        (index, place): (usize, usize),
        layer: &'m LayerWeights,
    ) -> Result<Self, Refusal> {
        let name = |part: &str| format!("blk.{place}.{part}");
        let missing = |what| Refusal::Unsupported(format!("its layer {index} has no {what}"));
        let attention = match &layer.mixer {
            Mixer::Latent(weights) => Some(DeviceAttention::latent(uploader, &name, weights)?),
            Mixer::SharedAttention(weights) => {
                let heads = config.heads(index);
                let width = heads.query_dim() + 2 * heads.kv_dim();
                Some(DeviceAttention::shared(uploader, width, &name, weights)?)
            }
            mixer => {
                let weights = match mixer {
                    Mixer::Parallel(both) => Some(&both.attention),
                    other => other.attention(),
                };
                let layer = (config, index);
                weights.map(|weights| DeviceAttention::usual(uploader, layer, &name, weights)).transpose()?
            }
        };
        let state = DeviceState::allocate(uploader, config, &name, &layer.mixer)?;
        let parts = config.decoder.layers.parts_of(index);
        if attention.is_none() && state.is_none() && parts != LayerParts::Network {
            return Err(missing("attention"));
        }
        let scale = config.decoder.residual_scale;
        let post_norm = |norm: &Option<Vec<f32>>| {
            norm.as_ref().map(|norm| norm.iter().map(|weight| weight * scale).collect::<Vec<f32>>())
        };
        let is_shared = layer.experts.as_ref().is_some_and(|experts| experts.beside.is_none());
        let suffix = if is_shared { "_shexp" } else { "" };
        let network = layer.feed_forward.as_ref();
        if network.is_none() && layer.experts.is_none() && parts != LayerParts::Mixer {
            return Err(missing("feed-forward network"));
        }
        Ok(Self {
            attention_norm: norm(uploader, &layer.attention_norm, &layer.attention_norm_bias)?,
            attention,
            state,
            attention_post_norm: uploader.optional(post_norm(&layer.attention_post_norm).as_deref())?,
            ffn_norm: norm(uploader, &layer.ffn_norm, &layer.ffn_norm_bias)?,
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
            input: match &layer.input {
                Some(input) => Some(DeviceLayerInput::allocate(uploader, &name, input, scale)?),
                None => None,
            },
            streams: match &layer.streams {
                Some(streams) => Some(DeviceLayerStreams::allocate(uploader, &name, streams)?),
                None => None,
            },
            output_scale: match layer.output_scale {
                1.0 => None,
                scale => Some(uploader.vector(&[scale])?),
            },
        })
    }
}

impl DeviceAttention {
    /// Attention with keys and values of its own.
    fn usual<'m>(
        uploader: &mut Uploader<'_, 'm>,
        (config, index): (&ModelConfig, usize),
        name: &dyn Fn(&str) -> String,
        weights: &'m AttentionWeights,
    ) -> Result<Self, Refusal> {
        let [q, k, v, output] = ["attn_q", "attn_k", "attn_v", "attn_output"].map(name);
        let (query, key) = ((q.as_str(), &weights.query), (k.as_str(), &weights.key));
        Ok(Self {
            qkv: match &weights.value {
                Some(value) => uploader.projection(&[query, key, (&v, value)])?,
                None => {
                    let heads = config.heads(index);
                    uploader.wide_projection(&[query, key], heads.query_dim() + 2 * heads.kv_dim())?
                }
            },
            latent: None,
            head_norms: head_norms(uploader, config, weights)?,
            sinks: uploader.optional(weights.sinks.as_deref())?,
            output: uploader.projection(&[(&output, &weights.output)])?,
        })
    }

    /// Attention over the keys and values of another layer, in rows of `width` values.
    fn shared<'m>(
        uploader: &mut Uploader<'_, 'm>,
        width: usize,
        name: &dyn Fn(&str) -> String,
        weights: &'m SharedAttentionWeights,
    ) -> Result<Self, Refusal> {
        let [q, output] = ["attn_q", "attn_output"].map(name);
        let norms = weights.query_norm.as_ref().map(|norm| {
            // Keys are not read.
            let weights = uploader.vector(&norm.repeat(2))?;
            Ok(HeadNorms { weights, together: false, values: HeadValues::Kept })
        });
        Ok(Self {
            qkv: uploader.wide_projection(&[(&q, &weights.query)], width)?,
            latent: None,
            head_norms: norms.transpose()?,
            sinks: None,
            output: uploader.projection(&[(&output, &weights.output)])?,
        })
    }

    fn latent<'m>(
        uploader: &mut Uploader<'_, 'm>,
        name: &dyn Fn(&str) -> String,
        weights: &'m LatentWeights,
    ) -> Result<Self, Refusal> {
        let (latent, qkv) = DeviceLatent::allocate(uploader, name, weights)?;
        let output = uploader.projection(&[(&name("attn_output"), &weights.output)])?;
        Ok(Self { qkv, latent: Some(latent), head_norms: None, sinks: None, output })
    }
}

impl Network {
    fn allocate<'m>(
        uploader: &mut Uploader<'_, 'm>,
        name: &dyn Fn(&str) -> String,
        network: &'m FeedForward,
    ) -> Result<Self, Refusal> {
        let [gate, up, down] = ["ffn_gate", "ffn_up", "ffn_down"].map(name);
        let gates = network.gate.iter().map(|weights| (gate.as_str(), weights));
        let inputs: Vec<_> = gates.chain([(up.as_str(), &network.up)]).collect();
        Ok(Self {
            gate_up: uploader.projection(&inputs)?,
            down: uploader.projection(&[(&down, &network.down)])?,
        })
    }
}

/// A norm, if there are weights.
fn norm(
    uploader: &Uploader<'_, '_>,
    weight: &Option<Vec<f32>>,
    bias: &Option<Vec<f32>>,
) -> Result<Option<Norm>, Refusal> {
    let Some(weight) = weight else { return Ok(None) };
    Ok(Some(Norm { weight: uploader.vector(weight)?, bias: uploader.optional(bias.as_deref())? }))
}

fn head_norms(
    uploader: &Uploader<'_, '_>,
    config: &ModelConfig,
    attention: &AttentionWeights,
) -> Result<Option<HeadNorms>, Refusal> {
    let (Some(query), Some(key)) = (&attention.query_norm, &attention.key_norm) else { return Ok(None) };
    let weights = uploader.vector(&[query.as_slice(), key].concat())?;
    let values = match (&attention.value_norm, &attention.value) {
        (None, _) => HeadValues::Kept,
        (Some(_), Some(_)) => HeadValues::Normed,
        (Some(_), None) => HeadValues::Keys,
    };
    Ok(Some(HeadNorms { weights, together: config.decoder.row_norms, values }))
}
