//! Keys that are the values too.

use ruvllm_kernels::attention::{AttentionShape, KvFormat};
use ruvllm_kernels::{Kernels, ThreadPool};

use super::fixture::{Random, Sequence, assert_same_bits};

/// The bits of values in f32 beside the same keys.
#[test]
fn keys_are_values_with_the_same_bits() {
    let (tokens, head_dim, group) = (150, 128, 16);
    for format in KvFormat::ALL {
        let keys = Random(3).values(tokens * head_dim);
        let sequence =
            |values, formats| Sequence::from_rows(1, head_dim, 128, &[formats], keys.clone(), values);
        let latents = sequence(keys.clone(), [format; 2]).with_keys_as_values();
        let separate = sequence(latents.keys.clone(), [format, KvFormat::F32]);
        let pool = ThreadPool::new(2).unwrap();
        for n_queries in [1, 40] {
            let shape = AttentionShape { query_start: tokens - n_queries, n_queries, ..latents.shape(group) };
            let q = Random(4).values(n_queries * group * head_dim);
            for kernels in Kernels::available() {
                let found = latents.attend(kernels, &pool, &shape, &q);
                assert_same_bits(&found, &separate.attend(kernels, &pool, &shape, &q), format.name());
            }
        }
    }
}
