//! Attention over KV blocks with the heads of a 1 G-parameter model (32 query heads, 8 KV heads of 64): one query at
//! two depths, and a chunk of a prompt.

use half::f16;
use ruvllm_benches::{Suite, Work, values};
use ruvllm_kernels::{AttentionScratch, AttentionShape, KvBlock, KvRows, KvView};

const HEADS: usize = 32;
const KV_HEADS: usize = 8;
const HEAD_DIM: usize = 64;
const BLOCK_TOKENS: usize = 64;

fn main() {
    let mut suite = Suite::new();
    let cases: &[(&str, usize, usize)] = if suite.is_test() {
        &[("decode", 70, 1), ("prefill", 0, 5)]
    } else {
        &[("decode", 511, 1), ("decode", 4095, 1), ("prefill", 0, 512), ("prefill", 3584, 512)]
    };
    for &(name, query_start, n_queries) in cases {
        attend(&mut suite, name, query_start, n_queries);
    }
    suite.finish();
}

fn attend(suite: &mut Suite, name: &str, query_start: usize, n_queries: usize) {
    let (kernels, pool) = (suite.kernels, suite.pool.clone());
    let len = query_start + n_queries;
    let plane: Vec<f16> = values(KV_HEADS * BLOCK_TOKENS * HEAD_DIM).into_iter().map(f16::from_f32).collect();
    // Planes of their own for every block: reading one plane again and again would measure the cache.
    let planes: Vec<[Vec<f16>; 2]> =
        (0..len.div_ceil(BLOCK_TOKENS)).map(|_| [plane.clone(), plane.clone()]).collect();
    let blocks: Vec<KvBlock<'_>> = planes
        .iter()
        .map(|[keys, values]| KvBlock { keys: KvRows::F16(keys), values: KvRows::F16(values) })
        .collect();
    let kv = KvView { blocks: &blocks, block_tokens: BLOCK_TOKENS, len };
    let shape = AttentionShape {
        n_heads: HEADS,
        n_kv_heads: KV_HEADS,
        head_dim: HEAD_DIM,
        query_start,
        n_queries,
        scale: 1.0 / (HEAD_DIM as f32).sqrt(),
        window: None,
        soft_cap: None,
    };
    let q = values(n_queries * HEADS * HEAD_DIM);
    let mut out = vec![0.0; q.len()];
    let mut scratch = AttentionScratch::new();
    // Query i sees query_start + i + 1 keys; a score and its part of the sum take 4 operations per dimension.
    let pairs = (query_start + 1..=len).sum::<usize>();
    let work = Work {
        bytes: (2 * 2 * len * KV_HEADS * HEAD_DIM) as u64,
        flops: (4 * pairs * HEADS * HEAD_DIM) as u64,
    };
    suite.measure(name, &format!("f16 keys={len} queries={n_queries}"), work, || {
        kernels.attention(&pool, &shape, &q, &kv, &mut out, &mut scratch);
    });
}
