//! `nuq3`: a scalar reference decoder of the documented layout.

use std::collections::BTreeMap;
use std::sync::Mutex;

use half::f16;
use ruvllm_kernels::attention::{
    AttentionScratch, AttentionShape, KeyRope, KvBlock, KvBuffer, KvFormat, KvLayout, KvPlane, KvPlaneMut,
    KvRole, KvScratch, KvView, Mask, NuqCodebooks, NuqContext, NuqTraining,
};
use ruvllm_kernels::rope::{RopeConfig, RopeFrequencies, RopeLayout};
use ruvllm_kernels::{Error, ThreadPool};

use super::fixture::{Random, best, decode, decode_at, plane_at, scalar, stored, stored_at, with_format};
use crate::oracle::fma;

/// Positions that tests use.
const POSITIONS: usize = 4096;

/// Scale of cosines and sines.
const MAGNITUDE: f64 = 1.25;

/// Codebooks and RoPE tables for some shape.
pub(super) struct Nuq {
    head_dim: usize,
    codebooks: NuqCodebooks,
    frequencies: RopeFrequencies,
    rope_layout: RopeLayout,
    rope: KeyRope,
}

impl Nuq {
    /// Context for the shape of a layout: uneven levels, ranges with outliers, RoPE on three
    /// quarters of the head.
    pub(super) fn of(layout: &KvLayout) -> &'static Self {
        static MADE: Mutex<BTreeMap<(usize, usize), &'static Nuq>> = Mutex::new(BTreeMap::new());
        let shape = (layout.n_kv_heads(), layout.head_dim());
        let mut made = MADE.lock().unwrap();
        made.entry(shape).or_insert_with(|| Box::leak(Box::new(Self::new(shape.0, shape.1))))
    }

    fn new(n_kv_heads: usize, head_dim: usize) -> Self {
        let key_levels = [-0.93, -0.6, -0.33, -0.1, 0.12, 0.35, 0.62, 0.94];
        let value_levels = [-0.9, -0.55, -0.3, -0.08, 0.1, 0.3, 0.5, 0.85];
        let range = |i: usize| if i % 16 == 3 { [-0.9, 0.95] } else { [-1.2 - (i % 7) as f32 / 64.0, 1.25] };
        let ranges = (0..n_kv_heads * head_dim).map(range).collect();
        let frequencies = RopeConfig::new(10_000.0, head_dim / 4 * 3).frequencies(POSITIONS).unwrap();
        let frequencies = RopeFrequencies { magnitude: MAGNITUDE, ..frequencies };
        let rope_layout =
            if n_kv_heads.is_multiple_of(2) { RopeLayout::Interleaved } else { RopeLayout::Halves };
        let rope = KeyRope::new(&frequencies, rope_layout, POSITIONS);
        let codebooks = NuqCodebooks::new(key_levels, value_levels, ranges).unwrap();
        Self { head_dim, codebooks, frequencies, rope_layout, rope }
    }

    pub(super) fn context(&self, first_position: usize) -> NuqContext<'_> {
        NuqContext { codebooks: &self.codebooks, rope: &self.rope, first_position }
    }

    /// Decodes one value of tile `tile` of a sequence, at a slot, head and dimension.
    pub(super) fn decode(&self, role: KvRole, bytes: &[u8], tile: usize, at: [usize; 3]) -> f32 {
        let [slot, head, dimension] = at;
        let pairs = self.frequencies.inverse.len();
        let number = |dimension| self.stored(role, bytes, [slot, head, dimension]);
        if role == KvRole::Values || dimension >= 2 * pairs {
            return number(dimension);
        }
        let (pair, is_first) = match self.rope_layout {
            RopeLayout::Halves => (dimension % pairs, dimension < pairs),
            RopeLayout::Interleaved => (dimension / 2, dimension % 2 == 0),
        };
        let (first, second) = match self.rope_layout {
            RopeLayout::Halves => (pair, pair + pairs),
            RopeLayout::Interleaved => (2 * pair, 2 * pair + 1),
        };
        let frequency = self.frequencies.inverse[pair];
        let start = (tile * 32) as f64 * frequency;
        let (start_cos, start_sin) = ((start.cos() * MAGNITUDE) as f32, (start.sin() * MAGNITUDE) as f32);
        let step = slot as f64 * frequency;
        let (step_cos, step_sin) = (step.cos() as f32, step.sin() as f32);
        let cos = fma(-start_sin, step_sin, start_cos * step_cos);
        let sin = fma(start_cos, step_sin, start_sin * step_cos);
        let (x, y) = (number(first), number(second));
        if x.is_nan() {
            return x; // the whole tile is
        }
        if is_first { fma(-y, sin, x * cos) } else { fma(x, sin, y * cos) }
    }

    /// Decodes one value before RoPE.
    fn stored(&self, role: KvRole, bytes: &[u8], at: [usize; 3]) -> f32 {
        let [slot, head, dimension] = at;
        let place = match role {
            KvRole::Keys => dimension * 32 + slot,
            KvRole::Values => slot * self.head_dim + dimension,
        };
        let (codes, halves) = bytes.split_at(12 * self.head_dim);
        let bits = |i: usize| u16::from_le_bytes([halves[2 * i], halves[2 * i + 1]]);
        let half = |i: usize| f16::from_bits(bits(i)).to_f32();
        let first = if role == KvRole::Keys { 0 } else { 64 };
        let outliers = (halves.len() / 2 - first) / 2;
        if bits(first) == u16::MAX && half(first + outliers).is_nan() {
            return f32::NAN;
        }
        if let Some(i) = (first..first + outliers).find(|&i| usize::from(bits(i)) == place) {
            return half(i + outliers);
        }
        let (codes, k, j) = (&codes[place / 32 * 12..], place % 32 / 8, place % 8);
        let code = codes[j] >> (2 * k) & 3 | (codes[8 + j % 4] >> (2 * k + j / 4) & 1) << 2;
        match role {
            KvRole::Keys => {
                let [low, high] = self.codebooks.key_ranges()[head * self.head_dim + dimension];
                let level = self.codebooks.key_levels()[usize::from(code)];
                fma(level, 0.5 * high - 0.5 * low, 0.5 * low + 0.5 * high)
            }
            KvRole::Values => {
                fma(self.codebooks.value_levels()[usize::from(code)], half(32 + slot), half(slot))
            }
        }
    }
}

/// Squared error of decoded rows.
fn squared_error(layout: &KvLayout, role: KvRole, rows: &[f32], decoded: impl Fn([usize; 3]) -> f32) -> f32 {
    let (heads, dim) = (layout.n_kv_heads(), layout.head_dim());
    let error = |(i, x): (usize, &f32)| {
        let found = decoded([i / (heads * dim), i / dim % heads, i % dim]);
        assert!(found.is_finite(), "{role:?}: {x} became {found}");
        (x - found).powi(2)
    };
    rows.iter().enumerate().map(error).sum()
}

/// Keys with realistic statistics: before RoPE, dimensions differ much in magnitude and offset.
fn keys_after_rope(
    tokens: usize,
    dim: usize,
    frequencies: &RopeFrequencies,
    rope_layout: RopeLayout,
) -> Vec<f32> {
    let mut keys = Random(11).values(tokens * dim);
    for row in keys.chunks_exact_mut(dim) {
        for (i, x) in row.iter_mut().enumerate() {
            *x = *x * x.abs() * (1.0 + (i % 5) as f32) + if i % 9 == 0 { 8.0 } else { 0.0 };
        }
    }
    let table = ruvllm_kernels::rope::RopeTable::from_frequencies(frequencies, 0..tokens);
    best().rope(&table, rope_layout, 0..tokens, &mut keys, 1, dim);
    keys
}

#[test]
fn learned_levels_before_the_rotary_embedding_beat_two_bits_behind_it() {
    let (tokens, dim) = (2048, 64);
    let frequencies = RopeConfig::new(10_000.0, dim).frequencies(tokens).unwrap();
    let rope_layout = RopeLayout::Halves;
    let rope = KeyRope::new(&frequencies, rope_layout, tokens);
    let keys = keys_after_rope(tokens, dim, &frequencies, rope_layout);
    let values = Random(12).values(tokens * dim);
    let wide = KvLayout::new(KvFormat::F32, 1, tokens, dim).unwrap();
    let planes = [(KvRole::Keys, &keys), (KvRole::Values, &values)]
        .map(|(role, rows)| stored(best(), &wide, role, rows, 0));
    let [k, v] = &planes;
    let [keys_plane, values_plane] =
        [(KvRole::Keys, k), (KvRole::Values, v)].map(|(role, plane)| plane_at(wide, role, plane, 0));
    let blocks = [KvBlock { keys: keys_plane, values: values_plane }];
    let mut training = NuqTraining::new(1, dim).unwrap();
    training.observe(&KvView::new(&blocks, tokens), &rope, 4);
    let codebooks = training.finish().unwrap();

    let nuq3 = with_format(&wide, KvFormat::Nuq3);
    let kivi2 = with_format(&wide, "kivi2".parse().unwrap());
    let nuq = NuqContext { codebooks: &codebooks, rope: &rope, first_position: 0 };
    for (role, rows, from) in [(KvRole::Keys, &keys, k), (KvRole::Values, &values, v)] {
        let scratch = &mut KvScratch::new();
        let mut few = KvBuffer::zeroed(nuq3.plane_bytes()).unwrap();
        let to = KvPlaneMut::new(nuq3, role, few.as_bytes_mut()).with_nuq(nuq);
        best().convert_kv(plane_at(wide, role, from, 0), to, scratch);
        let few = KvPlane::new(nuq3, role, few.as_bytes()).with_nuq(nuq);
        let mut back = KvBuffer::zeroed(wide.plane_bytes()).unwrap();
        best().convert_kv(few, KvPlaneMut::new(wide, role, back.as_bytes_mut()), scratch);
        let of_nuq3 = squared_error(&wide, role, rows, |at| decode(&wide, role, back.as_bytes(), at));
        let other = stored(best(), &kivi2, role, rows, 0);
        let of_kivi2 = squared_error(&kivi2, role, rows, |at| decode(&kivi2, role, other.as_bytes(), at));
        assert!(5.0 * of_nuq3 < of_kivi2, "{role:?}: {of_nuq3} and {of_kivi2}");
    }
}

#[test]
fn reading_applies_rope_to_keys() {
    let layout = KvLayout::new(KvFormat::Nuq3, 1, 64, 64).unwrap();
    let nuq = Nuq::of(&layout);
    let start = 1024;
    let table = ruvllm_kernels::rope::RopeTable::from_frequencies(&nuq.frequencies, start..start + 64);
    // Values exactly representable by the codebooks, so that reading returns the stored keys.
    let mut rows: Vec<f32> = (0..64 * 64)
        .map(|i| {
            let [low, high] = nuq.codebooks.key_ranges()[i % 64];
            let level = nuq.codebooks.key_levels()[i / 64 % 8];
            fma(level, 0.5 * high - 0.5 * low, 0.5 * low + 0.5 * high)
        })
        .collect();
    scalar().rope(&table, nuq.rope_layout, start..start + 64, &mut rows, 1, 64);
    let plane = stored_at(scalar(), &layout, KvRole::Keys, &rows, 0, start);
    for (i, x) in rows.iter().enumerate() {
        let found = decode_at(&layout, KvRole::Keys, plane.as_bytes(), [i / 64, 0, i % 64], start);
        assert!((found - x).abs() < 1e-5, "{x} became {found}");
    }
}

#[test]
fn one_far_number_costs_the_others_of_its_position_nothing() {
    let layout = KvLayout::new(KvFormat::Nuq3, 1, 32, 64).unwrap();
    let mut rows = Random(13).values(32 * 64);
    let error = |rows: &[f32]| {
        let plane = stored(best(), &layout, KvRole::Values, rows, 0);
        squared_error(&layout, KvRole::Values, rows, |at| {
            decode(&layout, KvRole::Values, plane.as_bytes(), at)
        })
    };
    let before = error(&rows);
    for slot in [3, 17, 31] {
        rows[slot * 64 + slot] = 100.0;
        rows[slot * 64 + 60] = -50.0;
    }
    assert!(error(&rows) < 1.3 * before, "{before} became {}", error(&rows));
}

#[test]
fn more_outliers_than_a_tile_holds_leave_the_nearest_to_their_codes() {
    let layout = KvLayout::new(KvFormat::Nuq3, 1, 32, 32).unwrap();
    let mut rows = vec![0.0; 32 * 32];
    // Dimensions without RoPE; a tile has room for 48 outliers.
    let places: Vec<usize> = (0..64).map(|i| i / 8 * 32 + 24 + i % 8).collect();
    for (i, &place) in places.iter().enumerate() {
        rows[place] = 10.0 + i as f32;
    }
    let plane = stored(best(), &layout, KvRole::Keys, &rows, 0);
    for (i, &place) in places.iter().enumerate() {
        let found = decode(&layout, KvRole::Keys, plane.as_bytes(), [place / 32, 0, place % 32]);
        if i < 16 { assert!(found < 1.3, "{found}") } else { assert_eq!(found, 10.0 + i as f32) }
    }
}

#[test]
#[should_panic(expected = "a plane in nuq3 without its context")]
fn planes_without_their_context_are_refused() {
    let layout = KvLayout::new(KvFormat::Nuq3, 1, 32, 32).unwrap();
    let plane = stored(best(), &layout, KvRole::Values, &[0.0; 32 * 32], 0);
    let [keys, values] =
        [KvRole::Keys, KvRole::Values].map(|role| KvPlane::new(layout, role, plane.as_bytes()));
    let blocks = [KvBlock { keys, values }];
    let kv = KvView::new(&blocks, 1);
    let shape = AttentionShape {
        n_heads: 1,
        n_kv_heads: 1,
        head_dim: 32,
        query_start: 0,
        n_queries: 1,
        scale: 1.0,
        mask: Mask::CAUSAL,
        soft_cap: None,
        alibi: None,
    };
    let scratch = &mut AttentionScratch::new();
    best().attention(&ThreadPool::single(), &shape, &[0.0; 32], &kv, &mut [0.0; 32], scratch);
}

#[test]
#[should_panic(expected = "the RoPE tables hold")]
fn positions_that_overflow_are_refused() {
    let layout = KvLayout::new(KvFormat::Nuq3, 1, 32, 32).unwrap();
    let plane = KvBuffer::zeroed(layout.plane_bytes()).unwrap();
    let context = NuqContext { first_position: usize::MAX - 31, ..Nuq::of(&layout).context(0) };
    let _ = KvPlane::new(layout, KvRole::Values, plane.as_bytes()).with_nuq(Some(context));
}

#[test]
fn codebooks_without_meaning_are_refused() {
    let levels = [-0.9, -0.5, -0.3, -0.1, 0.1, 0.3, 0.5, 0.9];
    let ranges = || vec![[-1.0, 1.0]; 32];
    assert!(NuqCodebooks::new(levels, levels, ranges()).is_ok());
    for (at, level) in [(0, -1.1), (7, f32::NAN), (3, 0.2)] {
        let mut wrong = levels;
        wrong[at] = level;
        for (keys, values) in [(wrong, levels), (levels, wrong)] {
            assert!(matches!(NuqCodebooks::new(keys, values, ranges()), Err(Error::NuqCodebooks { .. })));
        }
    }
    for range in [[1.0, -1.0], [f32::NAN, 1.0], [0.0, f32::INFINITY]] {
        let mut wrong = ranges();
        wrong[5] = range;
        assert!(matches!(NuqCodebooks::new(levels, levels, wrong), Err(Error::NuqCodebooks { .. })));
    }
}

#[test]
fn nothing_is_learned_of_nothing_or_of_garbage() {
    let train = |tokens: usize, x: f32| {
        let wide = KvLayout::new(KvFormat::F32, 1, 32, 32).unwrap();
        let mut rows = vec![0.5; tokens * 32];
        rows.iter_mut().skip(77).take(1).for_each(|number| *number = x);
        let [keys, values] = [KvRole::Keys, KvRole::Values].map(|role| stored(best(), &wide, role, &rows, 0));
        let keys = plane_at(wide, KvRole::Keys, &keys, 0);
        let values = plane_at(wide, KvRole::Values, &values, 0);
        let blocks = [KvBlock { keys, values }];
        let rope = KeyRope::new(&RopeConfig::new(1e4, 32).frequencies(32).unwrap(), RopeLayout::Halves, 32);
        let mut training = NuqTraining::new(1, 32).unwrap();
        training.observe(&KvView::new(&blocks, tokens), &rope, 0);
        training.finish()
    };
    assert!(train(32, 0.25).is_ok());
    assert!(matches!(train(31, 0.25), Err(Error::NuqSamples { samples: 0 })));
    for garbage in [f32::NAN, f32::INFINITY, 1e9] {
        assert!(matches!(train(32, garbage), Err(Error::NuqSamples { samples: 32 })), "{garbage}");
    }
}
