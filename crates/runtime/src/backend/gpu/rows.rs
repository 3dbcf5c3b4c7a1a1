//! Activation buffers on the device, shared by all layers and all passes with the same number of
//! rows.

use ruvllm_gpu::{Buffer, Choices, Dispatch, Gpu, KvRows, Result, SortedPairs, stored_head_dim};
use ruvllm_models::{Activation, Experts, LatentAttention, ModelConfig};

use super::beside::BesideRows;
use super::filled::FilledRows;
use super::gates::GateRows;
use super::heads::{HeadRows, kinds, last_writer};
use super::inputs::{Input, PAD, zeroed};
use super::pairing::PairRows;
use super::per_layer::PerLayerRows;
use super::states::StateRows;
use super::streams::StreamBuffers;

/// Most pairs of a row and a head of a pass of latent attention.
pub(super) const MOST_PAIRS: u32 = 32_768;

/// Activations within a feed-forward network of one width.
#[derive(Debug)]
pub(super) struct NetworkRows {
    /// `[n, 2, width]`, without a gate `[n, width]`.
    pub(super) gate_up: Buffer,
    /// `[n, width]`.
    pub(super) gated: Input,
    width: u32,
}

/// Choices and activations of the experts of a mixture.
#[derive(Debug)]
pub(super) struct ExpertRows {
    /// Logits of the router, and behind them those of the gate of the shared experts.
    pub(super) logits: Buffer,
    pub(super) choices: Choices,
    /// Pairs of a row and an expert by expert.
    pub(super) sorted: SortedPairs,
    /// `[pairs, 2, ffn_dim]`, without a gate `[pairs, ffn_dim]`.
    pub(super) gate_up: Buffer,
    /// `[pairs, ffn_dim]`.
    pub(super) gated: Input,
    /// `[pairs, model_dim]`.
    pub(super) down: Buffer,
    /// Of experts beside a network.
    pub(super) beside: Option<BesideRows>,
}

/// Activations within latent attention of `n` rows.
#[derive(Debug)]
pub(super) struct LatentRows {
    /// Normed latents of queries, `[n, query_rank]`, filled up.
    pub(super) query_latents: Option<Input>,
    /// `[n, heads, still_dim + rotary_dim]`, where queries have a latent.
    pub(super) queries: Option<Buffer>,
    /// Unrotated parts of queries, `[n, heads, still_dim]`, filled up.
    pub(super) still: Input,
    /// Outputs of attention, `[n, heads, rank]`.
    pub(super) attended: Input,
    /// Every row with every head.
    pub(super) pairs: Choices,
    pub(super) sorted: SortedPairs,
}

impl NetworkRows {
    fn new(gpu: &Gpu, activation: Activation, n: u32, width: usize) -> Result<Self> {
        let gate_up = zeroed(gpu, n, inputs(activation) * width)?;
        Ok(Self { gate_up, gated: Input::new(gpu, n, width)?, width: width as u32 })
    }
}

impl ExpertRows {
    fn new(gpu: &Gpu, spec: &Experts, model_dim: usize, n: u32) -> Result<Self> {
        let choices = Choices::new(gpu, n, spec.used as u32)?;
        let pairs = choices.pairs();
        let outputs = spec.count + usize::from(spec.shared_gate && spec.shared_dim > 0);
        Ok(Self {
            logits: zeroed(gpu, n, outputs)?,
            sorted: SortedPairs::new(gpu, &choices, spec.count as u32)?,
            choices,
            gate_up: zeroed(gpu, pairs, inputs(spec.activation) * spec.ffn_dim)?,
            gated: Input::new(gpu, pairs, spec.ffn_dim)?,
            down: zeroed(gpu, pairs, model_dim)?,
            beside: spec.is_beside.then(|| BesideRows::new(gpu, model_dim, n)).transpose()?,
        })
    }
}

impl LatentRows {
    fn new(gpu: &Gpu, config: &ModelConfig, latent: &LatentAttention, n: u32) -> Result<Self> {
        let heads = config.n_heads as u32;
        let pairs = Choices::new(gpu, n, heads)?;
        let list: Vec<u32> = (0..n).flat_map(|_| 0..heads).collect();
        gpu.write(pairs.experts(), &list)?;
        let queries = (u64::from(n) * u64::from(heads) * 4).saturating_mul(latent.query_dim() as u64);
        let rank = latent.query_rank.map(|rank| rank.next_multiple_of(PAD));
        Ok(Self {
            query_latents: rank.map(|rank| Input::new(gpu, n, rank)).transpose()?,
            queries: rank.map(|_| gpu.zeroed(queries)).transpose()?,
            still: Input::new(gpu, n * heads, latent.still_dim.next_multiple_of(PAD))?,
            attended: Input::new(gpu, n * heads, latent.rank)?,
            sorted: SortedPairs::new(gpu, &pairs, heads)?,
            pairs,
        })
    }

    /// The launch that sorts the pairs, once for all layers.
    pub(super) fn sort(&self, gpu: &Gpu) -> Result<Dispatch> {
        gpu.sort_pairs(&self.pairs, &self.sorted)
    }
}

/// Projections that an activation is computed from.
fn inputs(activation: Activation) -> usize {
    1 + usize::from(activation.is_gated())
}

/// Widths of the feed-forward networks of every token.
fn network_widths(config: &ModelConfig) -> Vec<usize> {
    let mut widths = match &config.decoder.experts {
        Some(spec) => vec![spec.dense_dim, spec.shared_dim],
        None if config.decoder.layers.ffn_dims.is_empty() => vec![config.ffn_dim],
        None => config.decoder.layers.ffn_dims.clone(),
    };
    widths.retain(|&width| width > 0);
    widths.sort_unstable();
    widths.dedup();
    widths
}

/// Width of the first projection: queries or their latent, then the latent of keys and values and
/// the rotated key.
fn input_width(config: &ModelConfig, latent: &LatentAttention) -> usize {
    latent.query_rank.unwrap_or(config.n_heads * latent.query_dim()) + latent.rank + latent.rotary_dim
}

/// Activations of `n` rows, `[n, ...]` each.
#[derive(Debug)]
pub(super) struct Rows {
    pub(super) n: u32,
    pub(super) tokens: Buffer,
    /// Positions, and slots of keys and values.
    pub(super) kv: KvRows,
    /// Index of the row whose logits are computed.
    pub(super) last: Buffer,
    pub(super) residual: Buffer,
    /// Output of attention or of the feed-forward network.
    pub(super) delta: Buffer,
    /// `delta` after its post-norm.
    pub(super) post: Buffer,
    pub(super) normed: Input,
    /// Of most layers.
    pub(super) usual: HeadRows,
    /// Of layers with other heads, in models that have some.
    local: Option<HeadRows>,
    /// In models whose heads are filled up.
    pub(super) filled: Option<FilledRows>,
    /// Positions, and the slots of padding rows for each: of layers without keys and values of
    /// their own, in models that have some.
    pub(super) unwritten: Option<KvRows>,
    /// One for each width of the networks of every token.
    networks: Vec<NetworkRows>,
    /// In mixtures of experts.
    experts: Option<ExpertRows>,
    /// In models with gated attention.
    pub(super) gates: Option<GateRows>,
    /// In models whose layers keep a state.
    pub(super) states: Option<StateRows>,
    /// In models of latent attention.
    latent: Option<LatentRows>,
    /// In models with embeddings per layer.
    pub(super) per_layer: Option<PerLayerRows>,
    /// In models with several residual streams.
    pub(super) streams: Option<StreamBuffers>,
    /// In prediction heads.
    pub(super) pairs: Option<PairRows>,
}

impl Rows {
    pub(super) fn new(gpu: &Gpu, config: &ModelConfig, n: u32) -> Result<Self> {
        let (dim, query, kv) = (config.model_dim, config.query_dim(), config.kv_dim());
        let indices = || gpu.zeroed(u64::from(n) * 4);
        let latent = config.decoder.latent.as_ref();
        let qkv = latent.map_or(query + 2 * kv, |latent| input_width(config, latent));
        let attended = latent.map_or(query, |latent| config.n_heads * latent.value_dim);
        let post = if config.decoder.post_norms { dim } else { 0 };
        let (experts, recurrent) = (config.decoder.experts.as_ref(), config.decoder.recurrent.as_ref());
        let kv = KvRows { positions: indices()?, slots: indices()? };
        let unwritten = || Ok(KvRows { positions: kv.positions.clone(), slots: indices()? });
        let local = config.decoder.layers.local_heads.is_some();
        let local = kinds(config).last().filter(|_| local).map(|layer| config.heads(layer));
        let queries = config.n_heads * stored_head_dim(config.head_dim as u32) as usize;
        Ok(Self {
            n,
            tokens: indices()?,
            unwritten: (last_writer(config) + 1 < config.n_layers).then(unwritten).transpose()?,
            kv,
            last: gpu.zeroed(4)?,
            residual: zeroed(gpu, n, dim)?,
            delta: zeroed(gpu, n, dim)?,
            post: zeroed(gpu, n, post)?,
            normed: Input::new(gpu, n, dim)?,
            usual: HeadRows::of_widths(gpu, [qkv, queries, attended], n)?,
            local: local.map(|heads| HeadRows::new(gpu, heads, n)).transpose()?,
            filled: FilledRows::new(gpu, config, n)?,
            networks: network_widths(config)
                .into_iter()
                .map(|width| NetworkRows::new(gpu, config.decoder.activation, n, width))
                .collect::<Result<_>>()?,
            experts: experts.map(|spec| ExpertRows::new(gpu, spec, dim, n)).transpose()?,
            gates: config.decoder.gated_attention.then(|| GateRows::new(gpu, config, n)).transpose()?,
            states: recurrent.map(|spec| StateRows::new(gpu, config, spec, n)).transpose()?,
            latent: latent.map(|latent| LatentRows::new(gpu, config, latent, n)).transpose()?,
            per_layer: PerLayerRows::new(gpu, config, n)?,
            streams: StreamBuffers::new(gpu, config, n)?,
            pairs: None,
        })
    }

    /// Adds the activations at the beginning of a pass of a prediction head.
    pub(super) fn with_pairs(self, gpu: &Gpu, config: &ModelConfig) -> Result<Self> {
        Ok(Self { pairs: Some(PairRows::new(gpu, config, self.n)?), ..self })
    }

    /// Activations at the beginning of a pass of a prediction head.
    pub(super) fn pairs(&self) -> &PairRows {
        self.pairs.as_ref().expect("the rows are those of a prediction head")
    }

    /// Activations of the heads of a layer.
    pub(super) fn heads(&self, config: &ModelConfig, layer: usize) -> &HeadRows {
        let local = config.decoder.layers.local_heads_of(layer).and(self.local.as_ref());
        local.unwrap_or(&self.usual)
    }

    /// Activations of layers with a state.
    pub(super) fn state(&self) -> &StateRows {
        self.states.as_ref().expect("the model has layers with a state")
    }

    /// Activations within a network of this width, which a layer of the model has.
    pub(super) fn network(&self, width: u32) -> &NetworkRows {
        let network = self.networks.iter().find(|network| network.width == width);
        network.expect("networks have the widths of the configuration")
    }

    /// Activations of the experts of a mixture.
    pub(super) fn experts(&self) -> &ExpertRows {
        self.experts.as_ref().expect("the model is a mixture")
    }

    /// Activations within latent attention.
    pub(super) fn latent(&self) -> &LatentRows {
        self.latent.as_ref().expect("the model has latent attention")
    }
}

#[cfg(test)]
mod tests {
    use ruvllm_models::HfFolder;
    use ruvllm_testkit::model_data;

    use super::*;

    #[test]
    fn networks_of_one_width_share_activations() {
        let widths = |name: &str, listed: &[usize]| {
            let folder = HfFolder::open(model_data("forms").join(name)).expect("a folder");
            let mut config = ModelConfig::from_checkpoint(&folder).expect("a configuration");
            if !listed.is_empty() {
                config.decoder.layers.ffn_dims = listed.to_vec();
            }
            network_widths(&config)
        };
        assert_eq!(widths("granite", &[]).len(), 1);
        assert_eq!(widths("nemotron_h", &[]), [48]);
        assert_eq!(widths("nemotron_h", &[0, 48, 0, 96, 0, 48]), [48, 96]);
        assert_eq!(widths("nemotron_h_moe", &[]), [40], "the shared expert");
        assert!(widths("mixtral", &[]).is_empty());
    }
}
