//! Activation buffers on the device, shared by all layers and all passes with the same number of
//! rows.

use ruvllm_gpu::{
    Activations, Buffer, Choices, Dispatch, Format, Gpu, KvRows, Quantized, Result, RowOutput, SortedPairs,
};
use ruvllm_models::{Experts, LatentAttention, ModelConfig};

/// Most pairs of a row and a head of a pass of latent attention.
pub(super) const MOST_PAIRS: u32 = 32_768;

/// Latents of queries and unrotated parts are filled up to multiples of it, as F16 matrices are.
pub(super) const PAD: usize = 8;

use super::gates::GateRows;
use super::states::StateRows;

/// Input rows of products: f32 for F16 matrices, 8 bits for quantized ones.
#[derive(Debug)]
pub(super) struct Input {
    f32: Buffer,
    /// `None` if rows are not multiples of 32 values, which quantized formats require.
    q8: Option<Quantized>,
}

impl Input {
    pub(super) fn new(gpu: &Gpu, rows: u32, cols: usize) -> Result<Self> {
        let q8 = cols.is_multiple_of(32).then(|| Quantized::new(gpu, rows, cols as u32)).transpose()?;
        Ok(Self { f32: zeroed(gpu, rows, cols)?, q8 })
    }

    /// Launches that fill the rows in every form that matrices of `formats` read. `make` returns
    /// the launches that compute an output; `direct`: these can write 8 bits.
    pub(super) fn fill(
        &self,
        gpu: &Gpu,
        formats: impl Iterator<Item = Format>,
        direct: bool,
        make: impl FnOnce(&RowOutput) -> Result<Vec<Dispatch>>,
    ) -> Result<Vec<Dispatch>> {
        match self.forms(formats, direct) {
            (None, Some(q8)) => make(&RowOutput::Quantized(q8.clone())),
            (_, q8) => {
                let mut launches = make(&RowOutput::F32(self.f32.clone()))?;
                if let Some(q8) = q8 {
                    launches.push(gpu.quantize(&self.f32, q8)?);
                }
                Ok(launches)
            }
        }
    }

    /// As [`fill`](Self::fill) by launches that write f32 alone.
    pub(super) fn fill_f32(
        &self,
        gpu: &Gpu,
        formats: impl Iterator<Item = Format>,
        make: impl FnOnce(&Buffer) -> Result<Vec<Dispatch>>,
    ) -> Result<Vec<Dispatch>> {
        self.fill(gpu, formats, false, |_| make(&self.f32))
    }

    /// Forms that [`fill`](Self::fill) writes: f32, and 8 bits.
    fn forms(
        &self,
        formats: impl Iterator<Item = Format>,
        direct: bool,
    ) -> (Option<&Buffer>, Option<&Quantized>) {
        let (quantized, whole): (Vec<Format>, Vec<Format>) = formats.partition(|f| f.takes_quantized());
        let q8 = self.q8.as_ref().filter(|_| !quantized.is_empty());
        let is_q8_alone = q8.is_some() && direct && whole.is_empty();
        ((!is_q8_alone).then_some(&self.f32), q8)
    }

    /// Rows in the most precise form that [`fill`](Self::fill) writes.
    pub(super) fn best(&self, formats: impl Iterator<Item = Format>, direct: bool) -> Activations {
        match self.forms(formats, direct) {
            (None, Some(q8)) => q8.clone().into(),
            _ => self.f32.clone().into(),
        }
    }

    /// Rows in f32, once filled for a format that reads them.
    pub(super) fn values(&self) -> &Buffer {
        &self.f32
    }

    /// Rows in the form that a matrix of `format` reads.
    pub(super) fn of(&self, format: Format) -> Activations {
        match self.q8.as_ref().filter(|_| format.takes_quantized()) {
            Some(q8) => q8.clone().into(),
            None => self.f32.clone().into(),
        }
    }
}

/// Activations within a feed-forward network of one width.
#[derive(Debug)]
pub(super) struct NetworkRows {
    /// `[n, 2, width]`.
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
    /// `[pairs, 2, ffn_dim]`.
    pub(super) gate_up: Buffer,
    /// `[pairs, ffn_dim]`.
    pub(super) gated: Input,
    /// `[pairs, model_dim]`.
    pub(super) down: Buffer,
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
    fn new(gpu: &Gpu, n: u32, width: usize) -> Result<Self> {
        let (gate_up, gated) = (zeroed(gpu, n, 2 * width)?, Input::new(gpu, n, width)?);
        Ok(Self { gate_up, gated, width: width as u32 })
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
            gate_up: zeroed(gpu, pairs, 2 * spec.ffn_dim)?,
            gated: Input::new(gpu, pairs, spec.ffn_dim)?,
            down: zeroed(gpu, pairs, model_dim)?,
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
    pub(super) qkv: Buffer,
    pub(super) queries: Buffer,
    pub(super) normed: Input,
    pub(super) attended: Input,
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
        let mut widths = match experts {
            Some(spec) => vec![spec.dense_dim, spec.shared_dim],
            None => vec![config.ffn_dim],
        };
        widths.retain(|&width| width > 0);
        widths.dedup();
        Ok(Self {
            n,
            tokens: indices()?,
            kv: KvRows { positions: indices()?, slots: indices()? },
            last: gpu.zeroed(4)?,
            residual: zeroed(gpu, n, dim)?,
            delta: zeroed(gpu, n, dim)?,
            post: zeroed(gpu, n, post)?,
            qkv: zeroed(gpu, n, qkv)?,
            queries: zeroed(gpu, n, query)?,
            normed: Input::new(gpu, n, dim)?,
            attended: Input::new(gpu, n, attended)?,
            networks: widths
                .into_iter()
                .map(|width| NetworkRows::new(gpu, n, width))
                .collect::<Result<_>>()?,
            experts: experts.map(|spec| ExpertRows::new(gpu, spec, dim, n)).transpose()?,
            gates: config.decoder.gated_attention.then(|| GateRows::new(gpu, config, n)).transpose()?,
            states: recurrent.map(|spec| StateRows::new(gpu, config, spec, n)).transpose()?,
            latent: latent.map(|latent| LatentRows::new(gpu, config, latent, n)).transpose()?,
        })
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

pub(super) fn zeroed(gpu: &Gpu, rows: u32, cols: usize) -> Result<Buffer> {
    gpu.zeroed(u64::from(rows) * cols as u64 * 4)
}
