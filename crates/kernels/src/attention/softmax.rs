//! One step of the online softmax: scores of a row and a tile to weights.

use std::ops::Range;

use super::kv::Line;
use super::{AttentionShape, KEY_TILE};
use crate::lanes::math::{exp_nonpositive, tanh};
use crate::lanes::{Fused, Groups, LANES, Vectors, WideLanes};
use crate::rows::softmax::shift_for;

/// Scale, soft cap, bias and mask of one row of scores.
pub(super) struct ScoreRule<'a> {
    pub(super) shape: &'a AttentionShape,
    /// Keys of the tile visible to the row.
    pub(super) visible: Range<usize>,
    /// `ALiBi`: slope of the row's head, and position of the tile's first key relative to the row's
    /// query.
    pub(super) bias: Option<(f32, f32)>,
}

/// Replaces the products of one row by weights and updates the row's largest score and sum. Returns
/// the rescaling factor of the previous accumulators.
#[inline(always)]
pub(super) fn weights<L: WideLanes>(
    l: L,
    rule: &ScoreRule<'_>,
    products: &mut [Line; 2],
    largest: &mut f32,
    sum: &mut f32,
) -> f32 {
    let mut s = [l.wide().splat(0.0); 2];
    for (i, s) in s.iter_mut().enumerate() {
        *s = score(l, rule, i * 2 * LANES, l.wide().load(products[i].halves()));
    }
    let none = l.wide().splat(f32::NEG_INFINITY);
    let [low, high] = l.wide().halves_of(l.wide().max(s[1], l.wide().max(s[0], none)));
    let tile_largest = l.max_lane(l.max(low, high));
    let before = *largest;
    let after = if tile_largest > before { tile_largest } else { before };
    let shift = shift_for(after);
    for (s, to) in s.iter_mut().zip(products) {
        *s = exp_nonpositive(l.wide(), l.wide().sub(*s, l.wide().splat(shift)));
        l.wide().store(*s, to.halves_mut());
    }
    let ([a, b], [c, d]) = (l.wide().halves_of(s[0]), l.wide().halves_of(s[1]));
    let tile_sum = l.add(l.add(l.add(a, b), c), d);
    let factor = decay(l, before, after, shift);
    *largest = after;
    *sum = sum.fma(factor, l.sum(tile_sum));
    factor
}

/// Scores of sixteen keys from `first` on: scaled, capped, biased and masked.
#[inline(always)]
fn score<L: WideLanes>(l: L, rule: &ScoreRule<'_>, first: usize, products: L::W) -> L::W {
    let mut s = l.wide().mul(products, l.wide().splat(rule.shape.scale));
    if let Some(cap) = rule.shape.soft_cap {
        let cap = l.splat(cap);
        let [low, high] = l.wide().halves_of(s);
        s = l.wide().join(l.mul(cap, tanh(l, l.div(low, cap))), l.mul(cap, tanh(l, l.div(high, cap))));
    }
    let masked = rule.visible.start > first || rule.visible.end < first + 2 * LANES;
    if rule.bias.is_none() && !masked {
        return s;
    }
    let eight = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
    let index = l.wide().load(&[eight, eight.map(|i| i + LANES as f32)]);
    let index = l.wide().add(index, l.wide().splat(first as f32));
    if let Some((slope, offset)) = rule.bias {
        s = l.wide().fma(l.wide().splat(slope), l.wide().add(index, l.wide().splat(offset)), s);
    }
    if masked {
        let none = l.wide().splat(f32::NEG_INFINITY);
        s = l.wide().select_lt(index, l.wide().splat(rule.visible.start as f32), none, s);
        s = l.wide().select_lt(index, l.wide().splat(rule.visible.end as f32), s, none);
    }
    s
}

/// `e^(before - shift)`: rescaling factor of sums relative to the score `before`; `after` is the
/// larger score from which `shift` is derived.
#[inline(always)]
pub(super) fn decay<L: WideLanes>(l: L, before: f32, after: f32, shift: f32) -> f32 {
    if before == after {
        // Equals the exponential; if both are -inf, nothing was accumulated.
        return 1.0;
    }
    let mut lanes = [0.0; LANES];
    l.store(exp_nonpositive(l, l.splat(before - shift)), &mut lanes);
    lanes[0]
}

const _: () = assert!(KEY_TILE == 4 * LANES, "the scores of a row are two wide vectors");
