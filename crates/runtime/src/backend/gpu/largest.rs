//! The largest logits of a pass, found on the device (ADR-0146).

use std::collections::HashMap;

use ruvllm_gpu::{Buffer, Dispatch, Gpu, LARGEST_VALUES, Readback, Result};
use ruvllm_text::TokenId;

use super::launches::Pass;
use crate::backend::batch::TokenLogit;

/// Number of the largest logits of a row that the device finds.
pub(super) const MOST_LARGEST: usize = LARGEST_VALUES as usize;

/// Prepared lists, by number of rows.
#[derive(Debug, Default)]
pub(super) struct Prepared(HashMap<u32, Lists>);

/// Lists of the largest logits of some rows, [`MOST_LARGEST`] of each.
#[derive(Debug)]
pub(super) struct Lists {
    /// Logits that the launches read.
    pub(super) values: Buffer,
    pub(super) launches: Vec<Dispatch>,
    /// Pairs of an id and the bits of its logit.
    pub(super) out: Buffer,
    pub(super) readback: Readback,
}

impl Prepared {
    /// Takes the lists of a pass; makes them if they are not there.
    ///
    /// # Errors
    /// Too little memory.
    pub(super) fn take(&mut self, gpu: &Gpu, pass: &Pass, ids: u32) -> Result<Lists> {
        match self.0.remove(&pass.last.n).filter(|lists| lists.values.is_same(&pass.values)) {
            Some(lists) => Ok(lists),
            None => {
                let bytes = u64::from(pass.last.n) * MOST_LARGEST as u64 * 8;
                let (values, out) = (pass.values.clone(), gpu.zeroed(bytes)?);
                let (launches, readback) = (gpu.largest(&values, ids, &out)?, gpu.readback(bytes)?);
                Ok(Lists { values, launches, out, readback })
            }
        }
    }

    /// Keeps lists for the next pass of their size.
    pub(super) fn keep(&mut self, pass: &Pass, lists: Lists) {
        self.0.insert(pass.last.n, lists);
    }

    /// Releases all.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// The first `rows` lists of a result.
pub(super) fn entries(pairs: &[u32], rows: usize) -> Vec<TokenLogit> {
    let entry = |pair: &[u32]| TokenLogit { token: pair[0] as TokenId, logit: f32::from_bits(pair[1]) };
    pairs.chunks_exact(2).take(rows * MOST_LARGEST).map(entry).collect()
}
