//! Memory of the largest passes, held while weights take what is left.

use ruvllm_gpu::{Buffer, Gpu, MAX_SPLIT_BYTES, Result};
use ruvllm_models::ModelConfig;

use super::{BATCH_ROWS, MAX_ROWS, MAX_SCRATCH, MIN_ROWS, MOST_PAIRS, Rows, kinds, scratch_bytes};

/// Products of a layer that scale their activation rows.
const FACTORS: u64 = 8;

/// Buffers as large as those of the largest prefill pass and of the largest batch's logits.
/// Dropping them makes room for the real ones.
#[derive(Debug)]
pub(in crate::backend::gpu) struct Reserve {
    _rows: Rows,
    _others: [Buffer; 4],
    _splits: Option<Buffer>,
}

impl Reserve {
    /// Allocates the buffers for contexts of `context` tokens.
    ///
    /// # Errors
    /// Too little memory for them.
    pub(in crate::backend::gpu) fn new(gpu: &Gpu, config: &ModelConfig, context: usize) -> Result<Self> {
        let [.., batch] = BATCH_ROWS.map(u64::from);
        // Latent attention has a pair for each row and head.
        let heads = if config.decoder.latent.is_some() { config.n_heads as u32 } else { 1 };
        let rows = MAX_ROWS.min(MOST_PAIRS / heads.max(1)).max(MIN_ROWS);
        // Activations of products with cooperative matrices, as f16.
        let queries = kinds(config).map(|layer| config.heads(layer).query_dim());
        let networks = config.decoder.layers.ffn_dims.iter().copied();
        let others = queries.chain(networks).max().unwrap_or(0);
        let widest = config.ffn_dim.max(config.model_dim).max(others) as u64;
        Ok(Self {
            _rows: Rows::new(gpu, config, rows)?,
            _others: [
                gpu.zeroed(scratch_bytes(config, true, rows, context).min(MAX_SCRATCH).next_power_of_two())?,
                gpu.zeroed(batch * config.vocab_size as u64 * 4)?,
                gpu.zeroed((u64::from(rows) * widest.next_multiple_of(64) * 2).next_power_of_two())?,
                gpu.zeroed(u64::from(rows) * FACTORS * config.n_layers as u64 * 4)?,
            ],
            // Sums of split columns; narrow matrices have no splits.
            _splits: (gpu.target().cooperative.is_some() && widest >= 1024)
                .then(|| gpu.zeroed(MAX_SPLIT_BYTES))
                .transpose()?,
        })
    }
}
