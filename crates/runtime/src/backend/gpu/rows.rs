//! Activation buffers on the device, shared by all layers and all passes with the same number of
//! rows.

use ruvllm_gpu::{Buffer, Dispatch, Format, Gpu, KvRows, Quantized, Result, RowOutput};
use ruvllm_models::ModelConfig;

/// Input rows of products: f32 for F16 matrices, 8 bits for quantized ones.
#[derive(Debug)]
pub(super) struct Input {
    f32: Buffer,
    /// `None` if rows are not multiples of 32 values, which quantized formats require.
    q8: Option<Quantized>,
}

impl Input {
    fn new(gpu: &Gpu, rows: u32, cols: usize) -> Result<Self> {
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
        let (quantized, whole): (Vec<Format>, Vec<Format>) = formats.partition(|f| f.takes_quantized());
        match self.q8.as_ref().filter(|_| !quantized.is_empty()) {
            Some(q8) if direct && whole.is_empty() => make(&RowOutput::Quantized(q8.clone())),
            q8 => {
                let mut launches = make(&RowOutput::F32(self.f32.clone()))?;
                if let Some(q8) = q8 {
                    launches.push(gpu.quantize(&self.f32, q8)?);
                }
                Ok(launches)
            }
        }
    }

    /// Rows in the form that a matrix of `format` reads.
    pub(super) fn of(&self, format: Format) -> ruvllm_gpu::Activations {
        match self.q8.as_ref().filter(|_| format.takes_quantized()) {
            Some(q8) => q8.clone().into(),
            None => self.f32.clone().into(),
        }
    }
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
    pub(super) gate_up: Buffer,
    pub(super) normed: Input,
    pub(super) attended: Input,
    pub(super) gated: Input,
}

impl Rows {
    pub(super) fn new(gpu: &Gpu, config: &ModelConfig, n: u32) -> Result<Self> {
        let (dim, query, kv) = (config.model_dim, config.query_dim(), config.kv_dim());
        let indices = || gpu.zeroed(u64::from(n) * 4);
        let post = if config.decoder.post_norms { dim } else { 0 };
        Ok(Self {
            n,
            tokens: indices()?,
            kv: KvRows { positions: indices()?, slots: indices()? },
            last: gpu.zeroed(4)?,
            residual: zeroed(gpu, n, dim)?,
            delta: zeroed(gpu, n, dim)?,
            post: zeroed(gpu, n, post)?,
            qkv: zeroed(gpu, n, query + 2 * kv)?,
            queries: zeroed(gpu, n, query)?,
            gate_up: zeroed(gpu, n, 2 * config.ffn_dim)?,
            normed: Input::new(gpu, n, dim)?,
            attended: Input::new(gpu, n, query)?,
            gated: Input::new(gpu, n, config.ffn_dim)?,
        })
    }
}

fn zeroed(gpu: &Gpu, rows: u32, cols: usize) -> Result<Buffer> {
    gpu.zeroed(u64::from(rows) * cols as u64 * 4)
}
