//! Sequence in blocks of any format, and softmax attention in f64 over the same values.

use half::{bf16, f16};
use ruvllm_kernels::attention::{
    AttentionCall, AttentionScratch, AttentionShape, KvBlock, KvBuffer, KvFormat, KvLayout, KvPlane,
    KvPlaneMut, KvRole, KvScratch, KvView, Mask, NuqContext, alibi_slope,
};
use ruvllm_kernels::{Isa, Kernels, ThreadPool};

pub(super) use super::nuq::Nuq;
use super::turbo::decode_tile;
use crate::oracle::fma;

/// Deterministic values in `-1..1`.
pub(super) struct Random(pub(super) u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 40) as f32 / (1u64 << 23) as f32) - 1.0
    }

    pub(super) fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.next()).collect()
    }
}

/// Keys and values of a sequence in blocks, and their dequantized values in plain order for the
/// oracle.
pub(super) struct Sequence {
    pub(super) n_kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) block_tokens: usize,
    /// Formats of keys and values, cycled over the blocks.
    formats: Vec<[KvFormat; 2]>,
    pub(super) keys: Vec<f32>,   // [tokens, n_kv_heads, head_dim]
    pub(super) values: Vec<f32>, // [tokens, n_kv_heads, head_dim]
    /// Scores without a value, `[n_heads]`.
    pub(super) sinks: Option<Vec<f32>>,
    planes: Vec<[KvBuffer; 2]>,
    values_are_keys: bool,
}

impl Sequence {
    pub(super) fn new(
        seed: u64,
        tokens: usize,
        n_kv_heads: usize,
        head_dim: usize,
        format: KvFormat,
    ) -> Self {
        let mut random = Random(seed);
        let mut rows = || random.values(tokens * n_kv_heads * head_dim);
        let (keys, values) = (rows(), rows());
        Self::from_rows(n_kv_heads, head_dim, 64, &[[format; 2]], keys, values)
    }

    pub(super) fn from_rows(
        n_kv_heads: usize,
        head_dim: usize,
        block_tokens: usize,
        formats: &[[KvFormat; 2]],
        keys: Vec<f32>,
        values: Vec<f32>,
    ) -> Self {
        let formats = formats.to_vec();
        let mut sequence = Self {
            n_kv_heads,
            head_dim,
            block_tokens,
            formats,
            keys,
            values,
            sinks: None,
            planes: Vec::new(),
            values_are_keys: false,
        };
        let width = n_kv_heads * head_dim;
        for block in 0..sequence.tokens().div_ceil(block_tokens) {
            let tokens = block * block_tokens..((block + 1) * block_tokens).min(sequence.tokens());
            let rows = tokens.start * width..tokens.end * width;
            let layouts = sequence.layouts(block);
            let start = tokens.start;
            let [keys, values] = [&sequence.keys, &sequence.values].map(|x| &x[rows.clone()]);
            let planes = [
                stored_at(scalar(), &layouts[0], KvRole::Keys, keys, 0, start),
                stored_at(scalar(), &layouts[1], KvRole::Values, values, 0, start),
            ];
            for (i, token) in tokens.enumerate() {
                for column in 0..width {
                    let at = [i, column / head_dim, column % head_dim];
                    let place = token * width + column;
                    let [keys, values] = [planes[0].as_bytes(), planes[1].as_bytes()];
                    sequence.keys[place] = decode_at(&layouts[0], KvRole::Keys, keys, at, start);
                    sequence.values[place] = decode_at(&layouts[1], KvRole::Values, values, at, start);
                }
            }
            sequence.planes.push(planes);
        }
        sequence
    }

    /// The same keys, which are its values too.
    pub(super) fn with_keys_as_values(self) -> Self {
        Self { values: self.keys.clone(), values_are_keys: true, ..self }
    }

    pub(super) fn tokens(&self) -> usize {
        self.keys.len() / (self.n_kv_heads * self.head_dim)
    }

    fn layouts(&self, block: usize) -> [KvLayout; 2] {
        self.formats[block % self.formats.len()]
            .map(|format| KvLayout::new(format, self.n_kv_heads, self.block_tokens, self.head_dim).unwrap())
    }

    pub(super) fn blocks(&self) -> Vec<KvBlock<'_>> {
        (self.planes.iter().enumerate())
            .map(|(index, planes)| {
                let layouts = self.layouts(index);
                let start = index * self.block_tokens;
                let [keys, values] = [KvRole::Keys, KvRole::Values].map(|role| {
                    let (layout, buffer) = (layouts[role as usize], &planes[role as usize]);
                    plane_at(layout, role, buffer, start)
                });
                if self.values_are_keys { KvBlock::of_keys(keys) } else { KvBlock { keys, values } }
            })
            .collect()
    }

    pub(super) fn shape(&self, group: usize) -> AttentionShape {
        AttentionShape {
            n_heads: self.n_kv_heads * group,
            n_kv_heads: self.n_kv_heads,
            head_dim: self.head_dim,
            query_start: 0,
            n_queries: self.tokens(),
            scale: 1.0 / (self.head_dim as f32).sqrt(),
            mask: Mask::CAUSAL,
            soft_cap: None,
            alibi: None,
        }
    }

    pub(super) fn attend(
        &self,
        kernels: Kernels,
        pool: &ThreadPool,
        shape: &AttentionShape,
        q: &[f32],
    ) -> Vec<f32> {
        self.attend_with(kernels, pool, shape, q, &mut AttentionScratch::new())
    }

    pub(super) fn attend_with(
        &self,
        kernels: Kernels,
        pool: &ThreadPool,
        shape: &AttentionShape,
        q: &[f32],
        scratch: &mut AttentionScratch,
    ) -> Vec<f32> {
        let blocks = self.blocks();
        let kv = KvView::new(&blocks, self.tokens());
        let mut out = vec![f32::NAN; q.len()];
        let call = AttentionCall { shape: shape.clone(), kv, sinks: self.sinks.as_deref() };
        kernels.attention_batch(pool, &[call], q, &mut out, scratch);
        out
    }

    /// Softmax attention in f64 by definition.
    pub(super) fn oracle(&self, shape: &AttentionShape, q: &[f32]) -> Vec<f64> {
        let dim = shape.head_dim;
        let mut out = vec![0.0; q.len()];
        for query in 0..shape.n_queries {
            for head in 0..shape.n_heads {
                let kv_head = head / (shape.n_heads / shape.n_kv_heads);
                let row = (query * shape.n_heads + head) * dim;
                let key_row = |key: usize| (key * shape.n_kv_heads + kv_head) * dim;
                let position = shape.query_start + query;
                let sees = |key: &usize| match shape.mask {
                    Mask::Causal { window } => *key <= position && window.is_none_or(|w| position - key < w),
                    Mask::Full => true,
                };
                let keys: Vec<usize> = (0..self.tokens()).filter(sees).collect();
                let score = |&key: &usize| {
                    let dot: f64 = (0..dim)
                        .map(|i| f64::from(q[row + i]) * f64::from(self.keys[key_row(key) + i]))
                        .sum();
                    let s = dot * f64::from(shape.scale);
                    let s = shape.soft_cap.map_or(s, |cap| f64::from(cap) * (s / f64::from(cap)).tanh());
                    let slope = shape.alibi.map_or(0.0, |max| alibi_slope(head, shape.n_heads, max));
                    s - f64::from(slope) * (position as f64 - key as f64)
                };
                let scores: Vec<f64> = keys.iter().map(score).collect();
                let sink = self.sinks.as_ref().map_or(f64::NEG_INFINITY, |sinks| f64::from(sinks[head]));
                let largest = scores.iter().copied().fold(sink, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
                let of_sink = if self.sinks.is_some() { (sink - largest).exp() } else { 0.0 };
                let sum: f64 = weights.iter().sum::<f64>() + of_sink;
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

/// Plane at the beginning of a sequence; see [`stored_at`].
pub(super) fn stored(
    kernels: Kernels,
    layout: &KvLayout,
    role: KvRole,
    rows: &[f32],
    first: usize,
) -> KvBuffer {
    stored_at(kernels, layout, role, rows, first, 0)
}

/// Plane of a block at position `start` of its sequence that holds `rows` from position `first` on.
///
/// Unwritten values are NaN, which must not appear in any result; 0 in formats written a block at a
/// time.
pub(super) fn stored_at(
    kernels: Kernels,
    layout: &KvLayout,
    role: KvRole,
    rows: &[f32],
    first: usize,
    start: usize,
) -> KvBuffer {
    let mut plane = KvBuffer::zeroed(layout.plane_bytes()).unwrap();
    plane.as_bytes_mut().fill(0xff);
    let format = layout.format();
    let is_appendable = match role {
        KvRole::Keys => format.keys_are_appendable(),
        KvRole::Values => format.values_are_appendable(),
    };
    if is_appendable {
        kernels.store_kv(KvPlaneMut::new(*layout, role, plane.as_bytes_mut()), first, rows);
    } else {
        let wide = with_format(layout, KvFormat::F32);
        let mut zeros = KvBuffer::zeroed(wide.plane_bytes()).unwrap();
        kernels.store_kv(KvPlaneMut::new(wide, role, zeros.as_bytes_mut()), first, rows);
        convert_at(kernels, role, (&wide, &zeros), (layout, &mut plane), start);
    }
    plane
}

/// Plane of a block at position `start` of its sequence.
pub(super) fn plane_at(layout: KvLayout, role: KvRole, buffer: &KvBuffer, start: usize) -> KvPlane<'_> {
    KvPlane::new(layout, role, buffer.as_bytes()).with_nuq(context_at(&layout, start))
}

/// Context of a format that needs a calibration.
fn context_at(layout: &KvLayout, start: usize) -> Option<NuqContext<'static>> {
    layout.format().needs_calibration().then(|| Nuq::of(layout).context(start))
}

/// Converts a plane of a block at position `start` of its sequence.
pub(super) fn convert_at(
    kernels: Kernels,
    role: KvRole,
    (from, plane): (&KvLayout, &KvBuffer),
    (to, out): (&KvLayout, &mut KvBuffer),
    start: usize,
) {
    let from = plane_at(*from, role, plane, start);
    let to = KvPlaneMut::new(*to, role, out.as_bytes_mut()).with_nuq(context_at(to, start));
    kernels.convert_kv(from, to, &mut KvScratch::new());
}

/// Same sizes in another format.
pub(super) fn with_format(layout: &KvLayout, format: KvFormat) -> KvLayout {
    KvLayout::new(format, layout.n_kv_heads(), layout.block_tokens(), layout.head_dim()).unwrap()
}

/// Decodes one value at the beginning of a sequence; see [`decode_at`].
pub(super) fn decode(layout: &KvLayout, role: KvRole, plane: &[u8], at: [usize; 3]) -> f32 {
    decode_at(layout, role, plane, at, 0)
}

/// Decodes one value of a plane by the documented layout.
///
/// `at` is position, head and dimension; the block is at position `start` of its sequence.
pub(super) fn decode_at(layout: &KvLayout, role: KvRole, plane: &[u8], at: [usize; 3], start: usize) -> f32 {
    let [position, head, dimension] = at;
    let (format, block_tokens, head_dim) = (layout.format(), layout.block_tokens(), layout.head_dim());
    let shared = match (format, role) {
        (KvFormat::Kivi { group, .. }, KvRole::Keys) => group.get(), // positions
        _ => 32,
    };
    let run_bytes = plane.len() / layout.n_kv_heads() / (block_tokens / shared);
    let run = &plane[(head * block_tokens + position) / shared * run_bytes..][..run_bytes];
    let slot = position % 32;
    // Index of the 32 numbers, and index within them.
    let (unit, within) = match role {
        KvRole::Keys => (position % shared / 32 * head_dim + dimension, slot),
        KvRole::Values => ((slot * head_dim + dimension) / 32, dimension % 32),
    };
    let group = match (format, role) {
        (KvFormat::Kivi { .. }, KvRole::Keys) => dimension,
        (KvFormat::Kivi { group, .. }, KvRole::Values) => {
            slot * (head_dim / group.get()) + dimension / group.get()
        }
        (_, KvRole::Keys) => dimension / 32 * 32 + slot,
        (_, KvRole::Values) => slot * (head_dim / 32) + dimension / 32,
    };
    // Where the numbers are not multiples of 32 there are no units: the plain order.
    let index = match role {
        KvRole::Keys => 32 * dimension + slot,
        KvRole::Values => slot * head_dim + dimension,
    };
    let half = |at: usize| f16::from_le_bytes([run[at], run[at + 1]]).to_f32();
    let scaled = |bits: usize| {
        let byte = run[unit * 4 * bits + within % (4 * bits)];
        let q = byte >> (within / (4 * bits) * bits) & ((1 << bits) - 1);
        let scales = shared / 8 * bits * head_dim;
        let minima = scales + (run_bytes - scales) / 2;
        fma(f32::from(q), half(scales + 2 * group), half(minima + 2 * group))
    };
    match format {
        KvFormat::F32 => f32::from_le_bytes(run[4 * index..][..4].try_into().unwrap()),
        KvFormat::F16 => half(2 * index),
        KvFormat::BF16 => bf16::from_le_bytes([run[2 * index], run[2 * index + 1]]).to_f32(),
        KvFormat::Q8 => f32::from(run[index] as i8) * half(32 * head_dim + 2 * group),
        KvFormat::Q4 => scaled(4),
        KvFormat::Kivi { bits, .. } => scaled(bits.get()),
        KvFormat::Turbo3 => decode_tile(role, run, head_dim, [slot, dimension]),
        KvFormat::Nuq3 => Nuq::of(layout).decode(role, run, (start + position) / 32, [slot, head, dimension]),
        _ => panic!("no decoder of {format}"),
    }
}

#[track_caller]
pub(super) fn assert_close(found: &[f32], expected: &[f64], what: &str) {
    let size = expected.iter().fold(1e-3, |size: f64, x| size.max(x.abs()));
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(*found) - expected).abs();
        assert!(error <= 1e-5 * size, "{what}: value {i} is {found}, expected {expected}");
    }
}

#[track_caller]
pub(super) fn assert_same_bits(a: &[f32], b: &[f32], what: &str) {
    assert_eq!(a.len(), b.len());
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        assert!(a.to_bits() == b.to_bits(), "{what}: value {i} is {a} and {b}");
    }
}

pub(super) fn scalar() -> Kernels {
    Kernels::for_isa(Isa::Scalar).unwrap()
}

pub(super) fn best() -> Kernels {
    Kernels::for_isa(Isa::best()).unwrap()
}
