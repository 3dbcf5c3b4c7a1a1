//! Selection of the largest values of a row: argmax and top-k.

use std::cmp::Ordering;

use crate::Kernels;
use crate::lanes::Lanes;
use crate::rows::softmax::largest;

/// Values per block; a block whose maximum is too small is skipped.
const BLOCK: usize = 256;

impl Kernels {
    /// Index of the largest value, the first of equals; NaN is ignored.
    ///
    /// `None` if the row is empty or all NaN.
    pub fn argmax(&self, x: &[f32]) -> Option<usize> {
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.argmax)(x) }
    }

    /// Writes the indices of the `k` largest values to `out`, in descending order of value.
    ///
    /// Equal values are in ascending order of index.
    ///
    /// `out` is overwritten with `min(k, number of values that are not NaN)` indices. `0.0` and
    /// `-0.0` are equal. Takes O(n + k log k) time, and allocates only until `out` has capacity for
    /// `2 k` indices.
    ///
    /// # Panics
    /// If the row has more than `u32::MAX` values.
    pub fn top_k(&self, x: &[f32], k: usize, out: &mut Vec<u32>) {
        assert!(u32::try_from(x.len()).is_ok(), "top_k: a row of more than u32::MAX values");
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.top_k)(x, k, out) }
    }
}

#[inline(always)]
pub(crate) fn argmax<L: Lanes>(l: L, x: &[f32]) -> Option<usize> {
    let mut best = f32::NEG_INFINITY;
    let mut start = 0;
    for (i, block) in x.chunks(BLOCK).enumerate() {
        let here = largest(l, block);
        if here > best {
            (best, start) = (here, i * BLOCK);
        }
    }
    // If no value is above -inf, the result is the first -inf, if any.
    x[start..].iter().position(|&x| x == best).map(|i| start + i)
}

/// Keeps up to `2 k` candidates.
///
/// When they are full, the best `k` stay and the worst of these becomes the threshold; a later
/// value equal to it loses by its index.
#[inline(always)]
pub(crate) fn top_k<L: Lanes>(l: L, x: &[f32], k: usize, out: &mut Vec<u32>) {
    out.clear();
    if k == 0 {
        return;
    }
    let order = |&a: &u32, &b: &u32| by_value_then_index(x, a, b);
    let room = k.saturating_mul(2).min(x.len());
    let mut to_beat = None;
    for (i, block) in x.chunks(BLOCK).enumerate() {
        if to_beat.is_some_and(|bar| largest(l, block) <= bar) {
            continue;
        }
        for (j, &value) in block.iter().enumerate() {
            if value.is_nan() || to_beat.is_some_and(|bar| value <= bar) {
                continue;
            }
            if out.len() == room && room > k {
                out.select_nth_unstable_by(k - 1, order);
                out.truncate(k);
                let bar = x[out[k - 1] as usize];
                to_beat = Some(bar);
                if value <= bar {
                    continue;
                }
            }
            out.push((i * BLOCK + j) as u32);
        }
    }
    if out.len() > k {
        out.select_nth_unstable_by(k - 1, order);
        out.truncate(k);
    }
    out.sort_unstable_by(order);
}

/// Descending by value, then ascending by index; total on non-NaN values.
#[inline(always)]
fn by_value_then_index(x: &[f32], a: u32, b: u32) -> Ordering {
    let (x_a, x_b) = (x[a as usize], x[b as usize]);
    x_b.partial_cmp(&x_a).unwrap_or(Ordering::Equal).then(a.cmp(&b))
}
