//! A batch of calls has the bits of each call alone.

use proptest::prelude::*;
use ruvllm_kernels::attention::{AttentionCall, AttentionScratch, AttentionShape, KvFormat, KvView, Mask};
use ruvllm_kernels::{Kernels, ThreadPool};

use super::fixture::{Random, Sequence, assert_same_bits, best, scalar};

/// A sequence, and a call over it with its queries.
struct Case {
    sequence: Sequence,
    shape: AttentionShape,
    q: Vec<f32>,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kv = self.sequence.blocks().first().map(|block| [block.keys.layout(), block.values.layout()]);
        f.debug_struct("Case").field("shape", &self.shape).field("kv", &kv).finish_non_exhaustive()
    }
}

impl Case {
    /// The last `n_queries` of a sequence of `tokens`.
    fn new(seed: u64, tokens: usize, n_queries: usize, group: usize, sequence: Sequence) -> Self {
        let shape = AttentionShape { query_start: tokens - n_queries, n_queries, ..sequence.shape(group) };
        let q = Random(seed ^ 1).values(n_queries * shape.n_heads * shape.head_dim);
        Self { sequence, shape, q }
    }

    fn alone(&self) -> Vec<f32> {
        self.sequence.attend(scalar(), &ThreadPool::single(), &self.shape, &self.q)
    }
}

/// Outputs of all cases, computed in one batch.
fn together(kernels: Kernels, pool: &ThreadPool, cases: &[Case], scratch: &mut AttentionScratch) -> Vec<f32> {
    let blocks: Vec<_> = cases.iter().map(|case| case.sequence.blocks()).collect();
    let calls = cases.iter().zip(&blocks).map(|(Case { sequence, shape, .. }, blocks)| AttentionCall {
        shape: shape.clone(),
        kv: KvView::new(blocks, sequence.tokens()),
        sinks: sequence.sinks.as_deref(),
    });
    let calls: Vec<_> = calls.collect();
    let q: Vec<f32> = cases.iter().flat_map(|case| case.q.iter().copied()).collect();
    let mut out = vec![f32::NAN; q.len()];
    kernels.attention_batch(pool, &calls, &q, &mut out, scratch);
    out
}

prop_compose! {
    /// Lengths of up to 2000 tokens, of which the last few, or a prompt chunk, are queries.
    fn any_case()(
        (n_kv_heads, group, head_dim) in (1usize..4, 1usize..9, 1usize..17),
        (tokens, n_queries) in (1usize..2000, prop_oneof![Just(1), 1usize..6, 1usize..40]),
        window in prop::option::of(0usize..1500),
        is_full in prop::bool::weighted(0.2),
        soft_cap in prop::option::weighted(0.2, 1f32..60.0),
        alibi in prop::option::weighted(0.2, 1f32..9.0),
        sink in prop::option::weighted(0.3, -9f32..9.0),
        (keys, values) in (0..KvFormat::ALL.len(), 0..KvFormat::ALL.len()),
        block_tokens in 1usize..5,
        seed in any::<u64>(),
    ) -> Case {
        let format = [KvFormat::ALL[keys], KvFormat::ALL[values]];
        let multiple = format.iter().map(|format| format.head_dim_multiple()).max().unwrap();
        let head_dim = if multiple == 1 { head_dim } else { multiple.max(32) };
        let block_tokens = (32 * block_tokens).next_multiple_of(multiple);
        let mut random = Random(seed);
        let mut rows = || random.values(tokens * n_kv_heads * head_dim);
        let (keys, values) = (rows(), rows());
        let sequence = Sequence::from_rows(n_kv_heads, head_dim, block_tokens, &[format], keys, values);
        let mut case = Case::new(seed, tokens, n_queries.min(tokens), group, sequence);
        case.shape.soft_cap = soft_cap;
        case.sequence.sinks = sink.map(|sink| (0..case.shape.n_heads).map(|head| sink - head as f32).collect());
        (case.shape.mask, case.shape.alibi) =
            if is_full { (Mask::Full, None) } else { (Mask::Causal { window }, alibi) };
        case
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16 * ProptestConfig::default().cases / 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Calls of any lengths, masks, heads and formats: together they have the bits of each alone,
    /// on every instruction set and for any number of threads.
    #[test]
    fn a_batch_has_the_bits_of_each_call_alone(cases in prop::collection::vec(any_case(), 1..6)) {
        let expected: Vec<f32> = cases.iter().flat_map(Case::alone).collect();
        for threads in [1, 2, 5] {
            let pool = ThreadPool::new(threads).unwrap();
            let mut scratch = AttentionScratch::new();
            for kernels in Kernels::available() {
                let out = together(kernels, &pool, &cases, &mut scratch);
                assert_same_bits(&out, &expected, &format!("{threads} threads, {}", kernels.isa().name()));
            }
        }
    }
}

/// Decode of 16 sequences: long ones are divided into splits, short ones are not.
#[test]
fn sequences_of_unequal_lengths_decode_together() {
    let cases: Vec<Case> = (0..16)
        .map(|i| {
            let tokens = if i == 3 { 3000 } else { 5 + 37 * i };
            Case::new(7, tokens, 1, 3, Sequence::new(i as u64, tokens, 2, 16, KvFormat::F16))
        })
        .collect();
    let expected: Vec<f32> = cases.iter().flat_map(Case::alone).collect();
    let mut scratch = AttentionScratch::new();
    for threads in [2, 3, 4] {
        let pool = ThreadPool::new(threads).unwrap();
        for kernels in Kernels::available() {
            let out = together(kernels, &pool, &cases, &mut scratch);
            assert_same_bits(&out, &expected, &format!("{threads} threads"));
        }
    }
}

#[test]
fn an_empty_batch_has_no_output() {
    let (pool, mut scratch) = (ThreadPool::single(), AttentionScratch::new());
    best().attention_batch(&pool, &[], &[], &mut [], &mut scratch);
}

#[test]
#[should_panic(expected = "length of queries or output")]
fn rows_of_too_few_calls_are_refused() {
    let case = Case::new(1, 9, 2, 1, Sequence::new(1, 9, 1, 8, KvFormat::F32));
    let blocks = case.sequence.blocks();
    let calls = [AttentionCall { shape: case.shape, kv: KvView::new(&blocks, 9), sinks: None }];
    let mut scratch = AttentionScratch::new();
    best().attention_batch(&ThreadPool::single(), &calls, &[0.0; 24], &mut [0.0; 24], &mut scratch);
}
