//! Any shape, any formats.

use proptest::prelude::*;
use ruvllm_kernels::attention::{AttentionShape, KvFormat, Mask};
use ruvllm_kernels::{Kernels, ThreadPool};

use super::fixture::{Random, Sequence, assert_close, assert_same_bits, scalar};

proptest! {
    #![proptest_config(ProptestConfig { cases: 60 * ProptestConfig::default().cases / 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// For any shape, every instruction set gives the bits of the scalar path, for any threads and
    /// chunking, and the values of the oracle.
    #[test]
    fn any_shape_agrees(
        (n_kv_heads, group, head_dim) in (1usize..4, 1usize..9, 1usize..40),
        (before, n_queries) in (0usize..600, 1usize..40),
        window in prop::option::of(0usize..700),
        is_full in any::<bool>(),
        soft_cap in prop::option::of(1f32..60.0),
        alibi in prop::option::of(1f32..9.0),
        formats in prop::collection::vec((0..KvFormat::ALL.len(), 0..KvFormat::ALL.len()), 1..3),
        block_tokens in 1usize..5,
        (has_sinks, values_are_keys) in any::<(bool, bool)>(),
        seed in any::<u64>(),
    ) {
        let tokens = before + n_queries;
        let formats: Vec<_> =
            formats.iter().map(|&(keys, values)| [KvFormat::ALL[keys], KvFormat::ALL[values]]).collect();
        // Heads and blocks of sizes that the formats take.
        let multiple = formats.as_flattened().iter().map(|f| f.head_dim_multiple()).max().unwrap();
        let head_dim = if multiple == 1 { head_dim } else { (32 * head_dim.div_ceil(8)).next_multiple_of(multiple) };
        let block_tokens = (32 * block_tokens).next_multiple_of(multiple);
        let mut random = Random(seed);
        let mut rows = || random.values(tokens * n_kv_heads * head_dim);
        let (keys, values) = (rows(), rows());
        let mut sequence = Sequence::from_rows(n_kv_heads, head_dim, block_tokens, &formats, keys, values);
        if values_are_keys {
            sequence = sequence.with_keys_as_values();
        }
        if has_sinks {
            let sinks = Random(seed ^ 2).values(n_kv_heads * group);
            sequence.sinks = Some(sinks.iter().map(|sink| 9.0 * sink).collect());
        }
        let (mask, alibi) = if is_full { (Mask::Full, None) } else { (Mask::Causal { window }, alibi) };
        let shape =
            AttentionShape { query_start: before, n_queries, mask, soft_cap, alibi, ..sequence.shape(group) };
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
