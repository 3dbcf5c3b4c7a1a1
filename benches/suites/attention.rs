//! Attention over blocks of keys and values, in the formats that it reads in place: decode and
//! prefill with the heads of a model of 1 G parameters (32 query heads, 8 key/value heads of 64)
//! and of 7 G (of 128), a short prompt of 32 heads of 128, one contiguous block against many,
//! decode of 16 sequences one by one and in one batch, and the three-pass computation that tiles
//! are to be compared with; and what goes in and is rewritten: one token, 128 positions from format
//! to format.

use std::sync::Mutex;

use ruvllm_benches::{Suite, Work, values};
use ruvllm_kernels::Kernels;
use ruvllm_kernels::attention::{
    AttentionCall, AttentionScratch, AttentionShape, KeyRope, KvBlock, KvBuffer, KvFormat, KvLayout, KvPlane,
    KvPlaneMut, KvRole, KvScratch, KvView, Mask, NuqCodebooks, NuqContext, SquatCorrection,
};
use ruvllm_kernels::rope::{RopeConfig, RopeLayout};

/// Default tokens per block.
const BLOCK_TOKENS: usize = 64;

/// Heads of a model.
#[derive(Clone, Copy)]
struct Heads {
    name: &'static str,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
}

const SMALL: Heads = Heads { name: "32/8x64", n_heads: 32, n_kv_heads: 8, head_dim: 64 };
const LARGE: Heads = Heads { name: "32/8x128", n_heads: 32, n_kv_heads: 8, head_dim: 128 };
const ALL_OWN: Heads = Heads { name: "32/32x128", n_heads: 32, n_kv_heads: 32, head_dim: 128 };

/// One measured call.
#[derive(Clone, Copy)]
struct Case {
    group: &'static str,
    heads: Heads,
    format: KvFormat,
    block_tokens: usize,
    query_start: usize,
    n_queries: usize,
}

fn main() {
    let mut suite = Suite::new();
    let (depth, chunk, prompt, short) =
        if suite.is_test() { (70, 5, 40, 40) } else { (4096, 128, 4096, 256) };
    let case = |group, heads, format, query_start, n_queries| Case {
        group,
        heads,
        format,
        block_tokens: BLOCK_TOKENS,
        query_start,
        n_queries,
    };
    for heads in [SMALL, LARGE] {
        for format in KvFormat::ALL {
            if !heads.head_dim.is_multiple_of(format.head_dim_multiple()) {
                continue;
            }
            let block_tokens = BLOCK_TOKENS.next_multiple_of(format.block_tokens_multiple());
            let case = |group, start, n| Case { block_tokens, ..case(group, heads, format, start, n) };
            attend(&mut suite, case("decode", depth - 1, 1));
            attend(&mut suite, case("prefill", depth, chunk));
            append(&mut suite, heads, format);
            convert(&mut suite, heads, format);
        }
        squat(&mut suite, heads);
    }
    attend(&mut suite, case("short", SMALL, KvFormat::F16, 511, 1));
    attend(&mut suite, case("short", ALL_OWN, KvFormat::F32, 0, short));
    for block_tokens in [BLOCK_TOKENS, depth.next_multiple_of(32)] {
        attend(&mut suite, Case { block_tokens, ..case("paged", SMALL, KvFormat::F16, depth - 1, 1) });
        attend(&mut suite, Case { block_tokens, ..case("paged", SMALL, KvFormat::F16, 0, depth) });
    }
    attend(&mut suite, case("flash", SMALL, KvFormat::F32, 0, prompt));
    three_passes(&mut suite, SMALL, prompt);
    for (name, contexts) in [("64", [64; 16]), ("64 to 4096", std::array::from_fn(|i| 64 << (i % 7)))] {
        let contexts = if suite.is_test() { [40; 16] } else { contexts };
        decode_of_many(&mut suite, SMALL, name, &contexts);
    }
    suite.finish();
}

fn attend(suite: &mut Suite, case: Case) {
    let Case { heads, format, block_tokens, query_start, n_queries, .. } = case;
    let (kernels, pool) = (suite.kernels, suite.pool.clone());
    let len = query_start + n_queries;
    let layout = KvLayout::new(format, heads.n_kv_heads, block_tokens, heads.head_dim)
        .expect("the formats take these heads");
    let planes = planes(kernels, &layout, heads, len);
    let learned = Learned::new(heads, len);
    let blocks = blocks(&planes, layout, &learned);
    let kv = KvView::new(&blocks, len);
    let shape = shape(heads, query_start, n_queries);
    let q = values(n_queries * heads.n_heads * heads.head_dim);
    let mut out = vec![0.0; q.len()];
    let mut scratch = AttentionScratch::new();
    let id = format!("{format} {} keys={len} queries={n_queries} block={block_tokens}", heads.name);
    let bytes = (2 * layout.plane_bytes() * len / block_tokens) as u64;
    suite.measure(case.group, &id, Work { bytes, flops: flops(heads, query_start, n_queries) }, || {
        kernels.attention(&pool, &shape, &q, &kv, &mut out, &mut scratch);
    });
}

/// Decode of sequences with these contexts: a call of each, and one batch.
fn decode_of_many(suite: &mut Suite, heads: Heads, name: &str, contexts: &[usize]) {
    let (kernels, pool) = (suite.kernels, suite.pool.clone());
    let layout = KvLayout::new(KvFormat::F16, heads.n_kv_heads, BLOCK_TOKENS, heads.head_dim)
        .expect("F16 takes heads of any size");
    let planes: Vec<_> = contexts.iter().map(|&len| planes(kernels, &layout, heads, len)).collect();
    let learned = Learned::new(heads, BLOCK_TOKENS);
    let blocks: Vec<_> = planes.iter().map(|planes| blocks(planes, layout, &learned)).collect();
    let calls: Vec<AttentionCall<'_>> = (contexts.iter().zip(&blocks))
        .map(|(&len, blocks)| {
            let (shape, kv) = (shape(heads, len - 1, 1), KvView::new(blocks, len));
            AttentionCall { shape, kv, sinks: None }
        })
        .collect();
    let width = heads.n_heads * heads.head_dim;
    let q = values(contexts.len() * width);
    let mut out = vec![0.0; q.len()];
    let mut scratch = AttentionScratch::new();
    let keys: usize = contexts.iter().sum();
    let work = Work {
        bytes: (2 * layout.plane_bytes() * keys / BLOCK_TOKENS) as u64,
        flops: contexts.iter().map(|len| flops(heads, len - 1, 1)).sum(),
    };
    let id = format!("{} {} sequences of {name} keys", heads.name, contexts.len());
    suite.measure("many", &format!("{id} one by one"), work, || {
        let rows = q.chunks_exact(width).zip(out.chunks_exact_mut(width));
        for (AttentionCall { shape, kv, .. }, (q, out)) in calls.iter().zip(rows) {
            kernels.attention(&pool, shape, q, kv, out, &mut scratch);
        }
    });
    suite.measure("many", &format!("{id} together"), work, || {
        kernels.attention_batch(&pool, &calls, &q, &mut out, &mut scratch);
    });
}

/// Separate blocks for every position: reading one block repeatedly would measure the cache.
fn planes(kernels: Kernels, layout: &KvLayout, heads: Heads, len: usize) -> Vec<[KvBuffer; 2]> {
    (0..len.div_ceil(layout.block_tokens())).map(|_| filled(kernels, layout, heads)).collect()
}

fn blocks<'a>(planes: &'a [[KvBuffer; 2]], layout: KvLayout, learned: &'a Learned) -> Vec<KvBlock<'a>> {
    let plane = |role, buffer: &'a KvBuffer| {
        KvPlane::new(layout, role, buffer.as_bytes()).with_nuq(learned.context())
    };
    let block = |[keys, values]: &'a [KvBuffer; 2]| KvBlock {
        keys: plane(KvRole::Keys, keys),
        values: plane(KvRole::Values, values),
    };
    planes.iter().map(block).collect()
}

fn shape(heads: Heads, query_start: usize, n_queries: usize) -> AttentionShape {
    AttentionShape {
        n_heads: heads.n_heads,
        n_kv_heads: heads.n_kv_heads,
        head_dim: heads.head_dim,
        query_start,
        n_queries,
        scale: 1.0 / (heads.head_dim as f32).sqrt(),
        mask: Mask::CAUSAL,
        soft_cap: None,
        alibi: None,
    }
}

/// Calibration and RoPE tables for `nuq3`; the other formats ignore them.
struct Learned {
    codebooks: NuqCodebooks,
    rope: KeyRope,
}

impl Learned {
    fn new(heads: Heads, positions: usize) -> Self {
        let levels = [-0.9, -0.6, -0.3, -0.1, 0.1, 0.3, 0.6, 0.9];
        let ranges = vec![[-1.5, 1.5]; heads.n_kv_heads * heads.head_dim];
        let codebooks = NuqCodebooks::new(levels, levels, ranges).expect("levels and ranges in order");
        let frequencies = RopeConfig::new(10_000.0, heads.head_dim).frequencies(positions);
        let frequencies = frequencies.expect("a plain rotary embedding");
        Self { codebooks, rope: KeyRope::new(&frequencies, RopeLayout::Interleaved, positions) }
    }

    fn context(&self) -> NuqContext<'_> {
        NuqContext { codebooks: &self.codebooks, rope: &self.rope, first_position: 0 }
    }
}

/// Keys and values of one block.
fn filled(kernels: Kernels, layout: &KvLayout, heads: Heads) -> [KvBuffer; 2] {
    let rows = values(layout.block_tokens() * heads.n_kv_heads * heads.head_dim);
    let plane = |bytes| KvBuffer::zeroed(bytes).expect("memory for a block");
    let wide = in_f32(layout);
    let (mut keys, mut values) = (plane(wide.plane_bytes()), plane(wide.plane_bytes()));
    kernels.store_kv(KvPlaneMut::new(wide, KvRole::Keys, keys.as_bytes_mut()), 0, &rows);
    kernels.store_kv(KvPlaneMut::new(wide, KvRole::Values, values.as_bytes_mut()), 0, &rows);
    let mut scratch = KvScratch::new();
    let learned = Learned::new(heads, layout.block_tokens());
    [(KvRole::Keys, keys), (KvRole::Values, values)].map(|(role, from)| {
        let mut to = plane(layout.plane_bytes());
        let target = KvPlaneMut::new(*layout, role, to.as_bytes_mut()).with_nuq(learned.context());
        kernels.convert_kv(KvPlane::new(wide, role, from.as_bytes()), target, &mut scratch);
        to
    })
}

fn in_f32(layout: &KvLayout) -> KvLayout {
    KvLayout::new(KvFormat::F32, layout.n_kv_heads(), layout.block_tokens(), layout.head_dim())
        .expect("F32 takes heads of any size")
}

/// The keys and values of one token, into the formats that take tokens one by one.
fn append(suite: &mut Suite, heads: Heads, format: KvFormat) {
    if !format.keys_are_appendable() || !format.values_are_appendable() {
        return;
    }
    let kernels = suite.kernels;
    let layout = KvLayout::new(format, heads.n_kv_heads, BLOCK_TOKENS, heads.head_dim)
        .expect("the formats take these heads");
    let [mut keys, mut token_values] = filled(kernels, &layout, heads);
    let row = values(heads.n_kv_heads * heads.head_dim);
    let mut slot = 0;
    let work = Work { bytes: (2 * layout.plane_bytes() / BLOCK_TOKENS) as u64, flops: 0 };
    suite.measure("append", &format!("{format} {}", heads.name), work, || {
        kernels.store_kv(KvPlaneMut::new(layout, KvRole::Keys, keys.as_bytes_mut()), slot, &row);
        kernels.store_kv(KvPlaneMut::new(layout, KvRole::Values, token_values.as_bytes_mut()), slot, &row);
        slot = (slot + 1) % BLOCK_TOKENS;
    });
}

/// Conversion of 128 positions: from F16 (the hot tier) to the format, and to f32.
fn convert(suite: &mut Suite, heads: Heads, format: KvFormat) {
    let kernels = suite.kernels;
    let layout = |format| {
        KvLayout::new(format, heads.n_kv_heads, 128, heads.head_dim).expect("the formats take these heads")
    };
    let mut scratch = KvScratch::new();
    let learned = Learned::new(heads, 128);
    for (from, to) in [(KvFormat::F16, format), (format, KvFormat::F32)] {
        let (from, to) = (layout(from), layout(to));
        let planes = filled(kernels, &from, heads);
        let mut out = KvBuffer::zeroed(to.plane_bytes()).expect("memory for a block");
        let id = format!("{} to {} {} positions=128", from.format(), to.format(), heads.name);
        let bytes = 2 * (from.plane_bytes() + to.plane_bytes()) as u64;
        suite.measure("convert", &id, Work { bytes, flops: 0 }, || {
            for (role, plane) in [KvRole::Keys, KvRole::Values].into_iter().zip(&planes) {
                let source = KvPlane::new(from, role, plane.as_bytes()).with_nuq(learned.context());
                let target = KvPlaneMut::new(to, role, out.as_bytes_mut()).with_nuq(learned.context());
                kernels.convert_kv(source, target, &mut scratch);
            }
        });
    }
}

/// Cost of `SQuat`: the Gram matrix of the queries of 128 tokens, one correction, and the
/// conversion of keys of 128 positions without and with corrections.
fn squat(suite: &mut Suite, heads: Heads) {
    let (kernels, dim) = (suite.kernels, heads.head_dim);
    let (width, group) = (heads.n_heads * dim, heads.n_heads / heads.n_kv_heads * dim);
    let queries = values(128 * width);
    let mut gram = vec![0.0; dim * dim];
    let products = (128 * group * (dim + 8) / 2) as u64;
    let work = Work { bytes: (4 * 128 * group) as u64, flops: 2 * products };
    suite.measure("squat", &format!("queries of a head {} tokens=128", heads.name), work, || {
        kernels.add_gram(&queries, width, 0..group, dim, &mut gram);
    });
    let make = || SquatCorrection::new(&gram, dim, 10.0).expect("the queries are numbers");
    let work = Work { bytes: 0, flops: (2 * dim * dim * dim / 3) as u64 };
    suite.measure("squat", &format!("correction of a head {}", heads.name), work, || drop(make()));
    let corrections = vec![make(); heads.n_kv_heads];
    let layout =
        |format| KvLayout::new(format, heads.n_kv_heads, 128, dim).expect("the formats take these heads");
    let (from, to) = (layout(KvFormat::F16), layout("kivi2".parse().expect("a format")));
    let [keys, _] = filled(kernels, &from, heads);
    let mut out = KvBuffer::zeroed(to.plane_bytes()).expect("memory for a block");
    let mut scratch = KvScratch::new();
    let work = Work { bytes: (from.plane_bytes() + to.plane_bytes()) as u64, flops: 0 };
    suite.measure("squat", &format!("keys without {} positions=128", heads.name), work, || {
        let source = KvPlane::new(from, KvRole::Keys, keys.as_bytes());
        let target = KvPlaneMut::new(to, KvRole::Keys, out.as_bytes_mut());
        kernels.convert_kv(source, target, &mut scratch);
    });
    suite.measure("squat", &format!("keys with {} positions=128", heads.name), work, || {
        let source = KvPlane::new(from, KvRole::Keys, keys.as_bytes());
        let target = KvPlaneMut::new(to, KvRole::Keys, out.as_bytes_mut());
        kernels.convert_kv(source, target.with_corrections(corrections.as_slice()), &mut scratch);
    });
}

/// Query `i` sees `query_start + i + 1` keys; a score and its part of the sum take 4 operations per
/// dimension.
fn flops(heads: Heads, query_start: usize, n_queries: usize) -> u64 {
    let pairs = (query_start + 1..=query_start + n_queries).sum::<usize>();
    (4 * pairs * heads.n_heads * heads.head_dim) as u64
}

/// Attention in three passes, without tiles: per head all scores of a query, softmax, weighted sum
/// of values. Keys, queries and values in f32; each pass vectorized, heads distributed over the
/// threads.
fn three_passes(suite: &mut Suite, heads: Heads, tokens: usize) {
    let (kernels, pool) = (suite.kernels, suite.pool.clone());
    let (dim, group) = (heads.head_dim, heads.n_heads / heads.n_kv_heads);
    // All `[heads, tokens, head_dim]`: every pass reads contiguously.
    let q = values(heads.n_heads * tokens * dim);
    let (k, v) = (values(heads.n_kv_heads * tokens * dim), values(heads.n_kv_heads * tokens * dim));
    let mut out = vec![0.0; q.len()];
    let mut scores = vec![0.0; pool.threads() * tokens];
    let id = format!("f32 {} keys={tokens} queries={tokens}", heads.name);
    let bytes = (8 * heads.n_kv_heads * tokens * dim) as u64;
    suite.measure("three passes", &id, Work { bytes, flops: flops(heads, 0, tokens) }, || {
        let per_thread = heads.n_heads.div_ceil(pool.threads());
        let parts = out.chunks_mut(per_thread * tokens * dim).zip(scores.chunks_mut(tokens));
        let parts: Vec<_> = parts.map(Mutex::new).collect();
        pool.run(&|thread| {
            let Some(part) = parts.get(thread) else { return };
            let (out, scores) = &mut *part.lock().expect("each thread takes its own");
            for (i, out) in out.chunks_mut(tokens * dim).enumerate() {
                let head = thread * per_thread + i;
                let plane = head / group * tokens * dim..(head / group + 1) * tokens * dim;
                let q = &q[head * tokens * dim..][..tokens * dim];
                head_in_three_passes(kernels, q, &k[plane.clone()], &v[plane], dim, scores, out);
            }
        });
    });
}

/// All queries of one head, `[tokens, dim]` each.
fn head_in_three_passes(
    kernels: Kernels,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    dim: usize,
    scores: &mut [f32],
    out: &mut [f32],
) {
    let scale = 1.0 / (dim as f32).sqrt();
    for (query, (q, out)) in q.chunks_exact(dim).zip(out.chunks_exact_mut(dim)).enumerate() {
        let scores = &mut scores[..=query];
        for (score, k) in scores.iter_mut().zip(k.chunks_exact(dim)) {
            *score = scale * kernels.dot(q, k);
        }
        kernels.softmax(scores);
        out.fill(0.0);
        for (weight, v) in scores.iter().zip(v.chunks_exact(dim)) {
            for (out, v) in out.iter_mut().zip(v) {
                *out += weight * v;
            }
        }
    }
}
