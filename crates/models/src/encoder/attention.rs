//! Attention of all tokens of a text to all of them.

use ruvllm_kernels::attention::{
    AttentionScratch, AttentionShape, KvBlock, KvBuffer, KvFormat, KvLayout, KvPlane, KvPlaneMut, KvRole,
    KvView, Mask,
};

use super::config::EncoderConfig;
use crate::compute::Compute;
use crate::error::{Error, Result};

/// Positions that keys and values are stored in multiples of.
const KV_STEP: usize = 32;

/// The memory of attention over one text at a time.
#[derive(Default)]
pub(super) struct TextAttention {
    /// Keys, then values, of a text.
    planes: KvBuffer,
    scratch: AttentionScratch,
}

impl TextAttention {
    /// Makes room for texts of `longest` tokens.
    pub(super) fn prepare(&mut self, config: &EncoderConfig, longest: usize) -> Result<()> {
        let bytes = layout(config, longest)?.plane_bytes().saturating_mul(2);
        if self.planes.as_bytes().len() < bytes {
            self.planes =
                KvBuffer::zeroed(bytes).ok_or(Error::OutOfMemory { what: "keys and values", bytes })?;
        }
        Ok(())
    }

    /// The results of a text's queries over its keys and values, `[tokens, n_heads, head_dim]`
    /// each.
    pub(super) fn attend(
        &mut self,
        compute: &Compute,
        config: &EncoderConfig,
        [queries, keys, values]: [&[f32]; 3],
        out: &mut [f32],
    ) {
        let Compute { kernels, pool, .. } = compute;
        let (n_tokens, head_dim) = (queries.len() / config.model_dim, config.head_dim());
        let layout = layout(config, n_tokens).expect("`prepare` made one of more tokens");
        let bytes = &mut self.planes.as_bytes_mut()[..2 * layout.plane_bytes()];
        let (key_plane, value_plane) = bytes.split_at_mut(layout.plane_bytes());
        kernels.store_kv(KvPlaneMut::new(layout, KvRole::Keys, key_plane), 0, keys);
        kernels.store_kv(KvPlaneMut::new(layout, KvRole::Values, value_plane), 0, values);
        let blocks = [KvBlock {
            keys: KvPlane::new(layout, KvRole::Keys, key_plane),
            values: KvPlane::new(layout, KvRole::Values, value_plane),
        }];
        let shape = AttentionShape {
            n_heads: config.n_heads,
            n_kv_heads: config.n_heads,
            head_dim,
            query_start: 0,
            n_queries: n_tokens,
            scale: (1.0 / (head_dim as f64).sqrt()) as f32,
            mask: Mask::Full,
            soft_cap: None,
            alibi: None,
        };
        kernels.attention(pool, &shape, queries, &KvView::new(&blocks, n_tokens), out, &mut self.scratch);
    }
}

/// Layout of a text's keys and values: F32, one block.
fn layout(config: &EncoderConfig, n_tokens: usize) -> Result<KvLayout> {
    let block_tokens = n_tokens.max(1).next_multiple_of(KV_STEP);
    Ok(KvLayout::new(KvFormat::F32, config.n_heads, block_tokens, config.head_dim())?)
}
