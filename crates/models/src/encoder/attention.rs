//! Attention of the tokens of a text to all of them, or to those within a window around each.

use std::ops::Range;

use ruvllm_kernels::attention::{
    AttentionCall, AttentionScratch, AttentionShape, KvBlock, KvBuffer, KvFormat, KvLayout, KvPlane,
    KvPlaneMut, KvRole, KvView, Mask,
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

    /// The results of a text's queries over its keys and values. `reach` is the number of tokens on
    /// either side that each attends to; `None` for all.
    ///
    /// # Shapes
    /// `queries`, `out`: `[tokens, n_heads, head_dim]`; `keys`, `values`: `[tokens, n_kv_heads,
    /// head_dim]`.
    pub(super) fn attend(
        &mut self,
        compute: &Compute,
        config: &EncoderConfig,
        [queries, keys, values]: [&[f32]; 3],
        reach: Option<usize>,
        out: &mut [f32],
    ) {
        let Compute { kernels, pool, .. } = compute;
        let n_tokens = queries.len() / config.query_dim();
        let layout = layout(config, n_tokens).expect("`prepare` made one of more tokens");
        let bytes = &mut self.planes.as_bytes_mut()[..2 * layout.plane_bytes()];
        let (key_plane, value_plane) = bytes.split_at_mut(layout.plane_bytes());
        kernels.store_kv(KvPlaneMut::new(layout, KvRole::Keys, key_plane), 0, keys);
        kernels.store_kv(KvPlaneMut::new(layout, KvRole::Values, value_plane), 0, values);
        let blocks = [KvBlock {
            keys: KvPlane::new(layout, KvRole::Keys, key_plane),
            values: KvPlane::new(layout, KvRole::Values, value_plane),
        }];
        let kv = KvView::new(&blocks, n_tokens);
        let call = |(queries, query_start, mask): (Range<usize>, usize, Mask)| AttentionCall {
            shape: AttentionShape {
                n_heads: config.n_heads,
                n_kv_heads: config.n_kv_heads,
                head_dim: config.head_dim,
                query_start,
                n_queries: queries.len(),
                scale: config.spec.attention_scale,
                mask,
                soft_cap: None,
                alibi: None,
            },
            kv,
            sinks: None,
        };
        let calls: Vec<AttentionCall<'_>> = parts(n_tokens, reach).into_iter().map(call).collect();
        kernels.attention_batch(pool, &calls, queries, out, &mut self.scratch);
    }
}

/// Queries of a text in calls, each with the position of its first query and a mask that together
/// admit the keys up to `reach` tokens before and behind each.
///
/// Kernels know windows that end at a query. One that begins `reach` positions later has its window
/// around the token, as long as the text goes so far; the last tokens are calls of their own, or
/// one of all keys if they see these.
fn parts(n_tokens: usize, reach: Option<usize>) -> Vec<(Range<usize>, usize, Mask)> {
    let Some(reach) = reach.filter(|&reach| reach + 1 < n_tokens) else {
        return vec![(0..n_tokens, 0, Mask::Full)];
    };
    // Behind these the window of a token goes beyond the end; up to `sees_start` it goes to the
    // beginning.
    let (sees_end, sees_start) = (n_tokens - reach, reach + 1);
    let window = |tokens| Mask::Causal { window: Some(tokens) };
    let mut parts = vec![(0..sees_end, reach, window(2 * reach + 1))];
    if sees_end < sees_start {
        parts.push((sees_end..sees_start, 0, Mask::Full));
    }
    let last = n_tokens - 1;
    parts.extend(
        (sees_end.max(sees_start)..n_tokens)
            .map(|query| (query..query + 1, last, window(n_tokens + reach - query))),
    );
    parts
}

/// Layout of a text's keys and values: F32, one block.
fn layout(config: &EncoderConfig, n_tokens: usize) -> Result<KvLayout> {
    let block_tokens = n_tokens.max(1).next_multiple_of(KV_STEP);
    Ok(KvLayout::new(KvFormat::F32, config.n_kv_heads, block_tokens, config.head_dim)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_admit_the_keys_around_each_query() {
        for n_tokens in 1..20_usize {
            for reach in (0..22).map(Some).chain([None]) {
                let mut next = 0;
                for (queries, start, mask) in parts(n_tokens, reach) {
                    assert_eq!(queries.start, next);
                    next = queries.end;
                    for (index, query) in queries.enumerate() {
                        let seen = match mask {
                            Mask::Full => 0..n_tokens,
                            Mask::Causal { window } => {
                                let end = start + index + 1;
                                end.saturating_sub(window.unwrap_or(end))..end
                            }
                        };
                        let reach = reach.unwrap_or(n_tokens);
                        let expected = query.saturating_sub(reach)..(query + reach + 1).min(n_tokens);
                        assert_eq!(seen, expected, "{query} of {n_tokens} within {reach}");
                    }
                }
                assert_eq!(next, n_tokens);
            }
        }
    }
}
