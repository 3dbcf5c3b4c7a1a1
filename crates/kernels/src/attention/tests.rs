//! Attention against an f64 oracle, and the equality of bits that the canonical order promises.

use half::f16;
use proptest::prelude::*;

use super::*;
use crate::Isa;

/// Deterministic values in `-1..1`.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 40) as f32 / (1u64 << 23) as f32) - 1.0
    }

    fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.next()).collect()
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Format {
    F32,
    F16,
}

/// Keys and values of a sequence in blocks, and the same rows in plain order for the oracle.
struct Sequence {
    n_kv_heads: usize,
    head_dim: usize,
    block_tokens: usize,
    format: Format,
    keys: Vec<f32>,   // [tokens, n_kv_heads, head_dim]
    values: Vec<f32>, // [tokens, n_kv_heads, head_dim]
    f32_blocks: Vec<[Vec<f32>; 2]>,
    f16_blocks: Vec<[Vec<f16>; 2]>,
}

impl Sequence {
    fn new(seed: u64, tokens: usize, n_kv_heads: usize, head_dim: usize, format: Format) -> Self {
        let mut random = Random(seed);
        let mut rows = || {
            let values = random.values(tokens * n_kv_heads * head_dim);
            match format {
                Format::F32 => values,
                Format::F16 => values.iter().map(|&x| f16::from_f32(x).to_f32()).collect(),
            }
        };
        let (keys, values) = (rows(), rows());
        Self::from_rows(n_kv_heads, head_dim, 64, format, keys, values)
    }

    fn from_rows(
        n_kv_heads: usize,
        head_dim: usize,
        block_tokens: usize,
        format: Format,
        keys: Vec<f32>,
        values: Vec<f32>,
    ) -> Self {
        let mut sequence = Self {
            n_kv_heads,
            head_dim,
            block_tokens,
            format,
            keys,
            values,
            f32_blocks: Vec::new(),
            f16_blocks: Vec::new(),
        };
        for block in 0..sequence.tokens().div_ceil(block_tokens) {
            let pair = [&sequence.keys, &sequence.values].map(|rows| sequence.block(rows, block));
            match format {
                Format::F32 => sequence.f32_blocks.push(pair),
                Format::F16 => {
                    sequence.f16_blocks.push(pair.map(|rows| rows.into_iter().map(f16::from_f32).collect()));
                }
            }
        }
        sequence
    }

    fn tokens(&self) -> usize {
        self.keys.len() / (self.n_kv_heads * self.head_dim)
    }

    /// One block in head-major order; rows past the end hold NaN, which no result may show.
    fn block(&self, rows: &[f32], block: usize) -> Vec<f32> {
        let (heads, dim) = (self.n_kv_heads, self.head_dim);
        let mut out = vec![f32::NAN; heads * self.block_tokens * dim];
        for t in 0..self.block_tokens {
            let token = block * self.block_tokens + t;
            for h in 0..heads {
                if token < self.tokens() {
                    let from = (token * heads + h) * dim;
                    let to = (h * self.block_tokens + t) * dim;
                    out[to..to + dim].copy_from_slice(&rows[from..from + dim]);
                }
            }
        }
        out
    }

    fn blocks(&self) -> Vec<KvBlock<'_>> {
        match self.format {
            Format::F32 => (self.f32_blocks.iter())
                .map(|[k, v]| KvBlock { keys: KvRows::F32(k), values: KvRows::F32(v) })
                .collect(),
            Format::F16 => (self.f16_blocks.iter())
                .map(|[k, v]| KvBlock { keys: KvRows::F16(k), values: KvRows::F16(v) })
                .collect(),
        }
    }

    fn shape(&self, group: usize) -> AttentionShape {
        AttentionShape {
            n_heads: self.n_kv_heads * group,
            n_kv_heads: self.n_kv_heads,
            head_dim: self.head_dim,
            query_start: 0,
            n_queries: self.tokens(),
            scale: 1.0 / (self.head_dim as f32).sqrt(),
            window: None,
            soft_cap: None,
        }
    }

    fn attend(&self, kernels: Kernels, pool: &ThreadPool, shape: &AttentionShape, q: &[f32]) -> Vec<f32> {
        self.attend_with(kernels, pool, shape, q, &mut AttentionScratch::new())
    }

    fn attend_with(
        &self,
        kernels: Kernels,
        pool: &ThreadPool,
        shape: &AttentionShape,
        q: &[f32],
        scratch: &mut AttentionScratch,
    ) -> Vec<f32> {
        let blocks = self.blocks();
        let kv = KvView { blocks: &blocks, block_tokens: self.block_tokens, len: self.tokens() };
        let mut out = vec![f32::NAN; q.len()];
        kernels.attention(pool, shape, q, &kv, &mut out, scratch);
        out
    }

    /// Softmax attention in f64, straight from the definition.
    fn oracle(&self, shape: &AttentionShape, q: &[f32]) -> Vec<f64> {
        let dim = shape.head_dim;
        let mut out = vec![0.0; q.len()];
        for query in 0..shape.n_queries {
            for head in 0..shape.n_heads {
                let kv_head = head / (shape.n_heads / shape.n_kv_heads);
                let row = (query * shape.n_heads + head) * dim;
                let key_row = |key: usize| (key * shape.n_kv_heads + kv_head) * dim;
                let position = shape.query_start + query;
                let keys: Vec<usize> =
                    (0..=position).filter(|key| shape.window.is_none_or(|w| position - key < w)).collect();
                let score = |&key: &usize| {
                    let dot: f64 = (0..dim)
                        .map(|i| f64::from(q[row + i]) * f64::from(self.keys[key_row(key) + i]))
                        .sum();
                    let s = dot * f64::from(shape.scale);
                    shape.soft_cap.map_or(s, |cap| f64::from(cap) * (s / f64::from(cap)).tanh())
                };
                let scores: Vec<f64> = keys.iter().map(score).collect();
                let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
                let sum: f64 = weights.iter().sum();
                for i in 0..dim {
                    let values = keys.iter().zip(&weights);
                    let total: f64 = values.map(|(&k, w)| w * f64::from(self.values[key_row(k) + i])).sum();
                    out[row + i] = if sum == 0.0 { 0.0 } else { total / sum };
                }
            }
        }
        out
    }
}

#[track_caller]
fn assert_close(found: &[f32], expected: &[f64], what: &str) {
    let size = expected.iter().fold(1e-3, |size: f64, x| size.max(x.abs()));
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(*found) - expected).abs();
        assert!(error <= 1e-5 * size, "{what}: value {i} is {found}, expected {expected}");
    }
}

#[track_caller]
fn assert_same_bits(a: &[f32], b: &[f32], what: &str) {
    assert_eq!(a.len(), b.len());
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        assert!(a.to_bits() == b.to_bits(), "{what}: value {i} is {a} and {b}");
    }
}

fn scalar() -> Kernels {
    Kernels::for_isa(Isa::Scalar).unwrap()
}

fn best() -> Kernels {
    Kernels::for_isa(Isa::best()).unwrap()
}

#[test]
fn lengths_around_tiles_and_splits() {
    let pool = ThreadPool::single();
    for tokens in [1, 2, 31, 32, 33, 63, 65, 511, 512, 513, 1030] {
        let sequence = Sequence::new(tokens as u64, tokens, 1, 16, Format::F32);
        let last = AttentionShape { query_start: tokens - 1, n_queries: 1, ..sequence.shape(2) };
        let q = Random(5).values(2 * 16);
        let expected = sequence.oracle(&last, &q);
        for kernels in Kernels::available() {
            assert_close(&sequence.attend(kernels, &pool, &last, &q), &expected, &format!("{tokens} tokens"));
        }
    }
}

#[test]
fn no_queries_and_no_tokens() {
    let kv = KvView { blocks: &[], block_tokens: 32, len: 0 };
    let sequence = Sequence::new(1, 1, 2, 8, Format::F32);
    let shape = AttentionShape { n_queries: 0, ..sequence.shape(1) };
    best().attention(&ThreadPool::single(), &shape, &[], &kv, &mut [], &mut AttentionScratch::new());
}

#[test]
fn groups_and_head_sizes() {
    let pool = ThreadPool::single();
    let cases =
        [(4, 1, 8), (2, 4, 64), (1, 7, 80), (1, 8, 128), (2, 1, 256), (1, 3, 20), (1, 2, 1), (2, 5, 33)];
    for (n_kv_heads, group, head_dim) in cases {
        for format in [Format::F32, Format::F16] {
            let sequence = Sequence::new(7, 70, n_kv_heads, head_dim, format);
            let shape = sequence.shape(group);
            let q = Random(3).values(70 * n_kv_heads * group * head_dim);
            let expected = sequence.oracle(&shape, &q);
            let what = format!("{n_kv_heads} x {group} heads of {head_dim}, {format:?}");
            let reference = sequence.attend(scalar(), &pool, &shape, &q);
            assert_close(&reference, &expected, &what);
            for kernels in Kernels::available() {
                assert_same_bits(&sequence.attend(kernels, &pool, &shape, &q), &reference, &what);
            }
        }
    }
}

#[test]
fn windows() {
    let pool = ThreadPool::single();
    let sequence = Sequence::new(9, 130, 1, 16, Format::F32);
    let q = Random(4).values(130 * 3 * 16);
    for window in [0, 1, 5, 31, 32, 33, 100, 130, 1000, usize::MAX] {
        let shape = AttentionShape { window: Some(window), ..sequence.shape(3) };
        let expected = sequence.oracle(&shape, &q);
        let reference = sequence.attend(scalar(), &pool, &shape, &q);
        assert_close(&reference, &expected, &format!("window {window}"));
        assert_same_bits(
            &sequence.attend(best(), &pool, &shape, &q),
            &reference,
            &format!("window {window}"),
        );
    }
}

#[test]
fn a_window_over_several_splits() {
    let sequence = Sequence::new(10, 1300, 1, 8, Format::F32);
    let q = Random(4).values(1300 * 8);
    let shape = AttentionShape { window: Some(600), ..sequence.shape(1) };
    let expected = sequence.oracle(&shape, &q);
    let reference = sequence.attend(best(), &ThreadPool::single(), &shape, &q);
    assert_close(&reference, &expected, "window 600 of 1300");
    let pool = ThreadPool::new(3).unwrap();
    let tail = AttentionShape { query_start: 1298, n_queries: 2, ..shape };
    let out = sequence.attend(best(), &pool, &tail, &q[1298 * 8..]);
    assert_same_bits(&out, &reference[1298 * 8..], "window 600, the last two queries alone");
}

#[test]
fn soft_cap() {
    let pool = ThreadPool::single();
    let sequence = Sequence::new(11, 70, 1, 32, Format::F32);
    let mut q = Random(6).values(70 * 2 * 32);
    q.iter_mut().for_each(|q| *q *= 40.0);
    for cap in [0.5, 20.0, 50.0] {
        let shape = AttentionShape { soft_cap: Some(cap), ..sequence.shape(2) };
        let expected = sequence.oracle(&shape, &q);
        let reference = sequence.attend(scalar(), &pool, &shape, &q);
        assert_close(&reference, &expected, &format!("cap {cap}"));
        assert_same_bits(&sequence.attend(best(), &pool, &shape, &q), &reference, &format!("cap {cap}"));
    }
}

#[test]
fn scores_of_ten_thousand() {
    // One large score per key, exactly representable, so that the oracle differs only by the softmax.
    let tokens = 100;
    let mut keys = vec![0.0; tokens * 8];
    for (t, key) in keys.chunks_mut(8).enumerate() {
        key[0] = if t % 3 == 0 { 100.0 } else { -100.0 };
        key[1] = (t % 7) as f32;
    }
    let values = Random(8).values(tokens * 8);
    let sequence = Sequence::from_rows(1, 8, 32, Format::F32, keys, values);
    let shape = AttentionShape { scale: 1.0, ..sequence.shape(1) };
    let mut q = vec![0.0; tokens * 8];
    q.chunks_mut(8).for_each(|q| (q[0], q[1]) = (100.0, 1.0));
    for kernels in Kernels::available() {
        let out = sequence.attend(kernels, &ThreadPool::single(), &shape, &q);
        assert_close(&out, &sequence.oracle(&shape, &q), "scores of 1e4");
    }
}

/// The promise that everything above rests on: the result of a token does not depend on how the work was cut.
#[test]
fn any_chunking_and_any_threads_give_the_same_bits() {
    let tokens = 1100;
    for (format, group, head_dim) in [(Format::F32, 4, 8), (Format::F16, 3, 16), (Format::F16, 1, 12)] {
        let sequence = Sequence::new(21, tokens, 2, head_dim, format);
        let shape = sequence.shape(group);
        let width = 2 * group * head_dim;
        let q = Random(22).values(tokens * width);
        let single = ThreadPool::single();
        let reference = sequence.attend(best(), &single, &shape, &q);
        let mut scratch = AttentionScratch::new();
        for threads in [1, 2, 3] {
            let pool = ThreadPool::new(threads).unwrap();
            for chunk in [1, 7, 64, 512, tokens] {
                // Token by token is slow to repeat: only the last ones.
                let first = if chunk == 1 { tokens - 40 } else { 0 };
                for start in (first..tokens).step_by(chunk) {
                    let end = (start + chunk).min(tokens);
                    let part = AttentionShape { query_start: start, n_queries: end - start, ..shape.clone() };
                    let rows = start * width..end * width;
                    let out = sequence.attend_with(best(), &pool, &part, &q[rows.clone()], &mut scratch);
                    let what = format!("{format:?}, {threads} threads, chunks of {chunk} at {start}");
                    assert_same_bits(&out, &reference[rows], &what);
                }
            }
        }
        let last = AttentionShape { query_start: tokens - 3, n_queries: 3, ..shape };
        let out = sequence.attend(scalar(), &single, &last, &q[(tokens - 3) * width..]);
        assert_same_bits(&out, &reference[(tokens - 3) * width..], "scalar");
    }
}

#[test]
fn nan_reaches_those_who_see_it_and_nobody_else() {
    let tokens = 80;
    let clean = Sequence::new(31, tokens, 1, 16, Format::F32);
    let shape = clean.shape(4);
    let q = Random(32).values(tokens * 4 * 16);
    let expected = clean.attend(best(), &ThreadPool::single(), &shape, &q);
    for spoiled in [f32::NAN, f32::INFINITY] {
        let (mut keys, mut values) = (clean.keys.clone(), clean.values.clone());
        keys[41 * 16 + 3] = f32::NAN;
        values[60 * 16 + 5] = spoiled;
        let sequence = Sequence::from_rows(1, 16, 64, Format::F32, keys, values);
        for kernels in Kernels::available() {
            let out = sequence.attend(kernels, &ThreadPool::single(), &shape, &q);
            assert_same_bits(&out[..41 * 64], &expected[..41 * 64], "before the NaN");
            assert!(out[41 * 64..].iter().all(|x| x.is_nan()));
        }
    }
}

#[test]
fn infinite_scores_weigh_nothing_or_give_nan() {
    let keys = vec![1.0; 40 * 8];
    let sequence = Sequence::from_rows(1, 8, 32, Format::F32, keys, vec![1.0; 40 * 8]);
    let shape = AttentionShape { query_start: 39, n_queries: 1, ..sequence.shape(1) };
    for kernels in Kernels::available() {
        let out = sequence.attend(kernels, &ThreadPool::single(), &shape, &[f32::MIN; 8]);
        assert_eq!(out, [0.0; 8], "all scores -inf");
        let out = sequence.attend(kernels, &ThreadPool::single(), &shape, &[f32::MAX; 8]);
        assert!(out.iter().all(|x| x.is_nan()), "all scores +inf");
    }
}

#[test]
fn blocks_may_differ_in_format() {
    let f16s = Sequence::new(41, 100, 2, 16, Format::F16);
    let f32s = Sequence::from_rows(2, 16, 64, Format::F32, f16s.keys.clone(), f16s.values.clone());
    let shape = f16s.shape(2);
    let q = Random(42).values(100 * 4 * 16);
    let pool = ThreadPool::single();
    let reference = f16s.attend(best(), &pool, &shape, &q);
    assert_same_bits(&f32s.attend(best(), &pool, &shape, &q), &reference, "f32 blocks");
    let mixed = [f32s.blocks()[0], KvBlock { keys: f32s.blocks()[1].keys, values: f16s.blocks()[1].values }];
    let kv = KvView { blocks: &mixed, block_tokens: 64, len: 100 };
    let mut out = vec![0.0; q.len()];
    best().attention(&pool, &shape, &q, &kv, &mut out, &mut AttentionScratch::new());
    assert_same_bits(&out, &reference, "mixed blocks");
}

#[test]
#[should_panic(expected = "the keys end at 10")]
fn queries_past_the_keys_are_refused() {
    let sequence = Sequence::new(51, 10, 1, 8, Format::F32);
    let shape = AttentionShape { query_start: 10, n_queries: 1, ..sequence.shape(1) };
    sequence.attend(best(), &ThreadPool::single(), &shape, &[0.0; 8]);
}

#[test]
fn scratch_does_not_grow_again() {
    let sequence = Sequence::new(61, 1100, 2, 16, Format::F16);
    let pool = ThreadPool::new(2).unwrap();
    let q = Random(62).values(1100 * 2 * 3 * 16);
    let whole = sequence.shape(3);
    let last = AttentionShape { query_start: 1099, n_queries: 1, ..whole.clone() };
    let mut scratch = AttentionScratch::new();
    let mut sizes = Vec::new();
    for _ in 0..2 {
        sequence.attend_with(best(), &pool, &whole, &q, &mut scratch);
        sequence.attend_with(best(), &pool, &last, &q[..96], &mut scratch);
        sizes.push(scratch.len());
    }
    assert_eq!(sizes[0], sizes[1]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any shape: every instruction set gives the bits of the scalar path, whatever the threads and the chunking, and the
    /// values of the oracle.
    #[test]
    fn any_shape_agrees(
        (n_kv_heads, group, head_dim) in (1usize..4, 1usize..9, 1usize..40),
        (before, n_queries) in (0usize..600, 1usize..40),
        window in prop::option::of(0usize..700),
        soft_cap in prop::option::of(1f32..60.0),
        half in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let tokens = before + n_queries;
        let format = if half { Format::F16 } else { Format::F32 };
        let sequence = Sequence::new(seed, tokens, n_kv_heads, head_dim, format);
        let shape = AttentionShape { query_start: before, n_queries, window, soft_cap, ..sequence.shape(group) };
        let width = n_kv_heads * group * head_dim;
        let q: Vec<f32> = Random(seed ^ 1).values(n_queries * width).iter().map(|x| 6.0 * x).collect();
        let reference = sequence.attend(scalar(), &ThreadPool::single(), &shape, &q);
        assert_close(&reference, &sequence.oracle(&shape, &q), "scalar");
        let pool = ThreadPool::new(2).unwrap();
        for kernels in Kernels::available() {
            assert_same_bits(&sequence.attend(kernels, &pool, &shape, &q), &reference, "2 threads");
            let last = AttentionShape { query_start: tokens - 1, n_queries: 1, ..shape.clone() };
            let rows = (n_queries - 1) * width..;
            let out = sequence.attend(kernels, &pool, &last, &q[rows.clone()]);
            assert_same_bits(&out, &reference[rows], "the last query alone");
        }
    }
}
