//! Shapes whose values are their keys.

use ruvllm_kernels::ThreadPool;
use ruvllm_kernels::attention::{AttentionScratch, AttentionShape, Mask};
use ruvllm_kv_cache::{Error, KvShape, KvStore, Sequence};

use crate::oracle::{kernels, pool};

const SEPARATE: KvShape = KvShape::new(2, 1, 64);
const LATENT: KvShape = KvShape { values_are_keys: true, ..SEPARATE };

fn rows(first: usize, tokens: usize, layer: usize) -> Vec<f32> {
    let value = |index: usize| ((index * 37 + layer * 11) as f32 * 0.013).sin();
    (first * SEPARATE.width()..(first + tokens) * SEPARATE.width()).map(value).collect()
}

/// Appends tokens whose values are their keys.
fn append(sequence: &mut Sequence, tokens: usize) {
    let first = sequence.len();
    let mut step = sequence.step(&kernels(), tokens).expect("room");
    for layer in 0..SEPARATE.n_layers {
        let rows = rows(first, tokens, layer);
        step.write(&kernels(), layer, &rows, &rows);
    }
    step.commit();
}

/// Attention of one query of 16 heads, as bits.
fn attend(sequence: &Sequence) -> Vec<u32> {
    let query: Vec<f32> = (0..16 * SEPARATE.head_dim).map(|i| (i as f32 * 0.29).cos()).collect();
    let reader = sequence.read();
    let mut blocks = Vec::new();
    let shape = AttentionShape {
        n_heads: 16,
        n_kv_heads: 1,
        head_dim: SEPARATE.head_dim,
        query_start: sequence.len() - 1,
        n_queries: 1,
        scale: 0.125,
        mask: Mask::CAUSAL,
        soft_cap: None,
        alibi: None,
    };
    let mut out = vec![0.0; query.len()];
    let view = reader.view(1, &mut blocks);
    kernels().attention(&ThreadPool::single(), &shape, &query, &view, &mut out, &mut AttentionScratch::new());
    out.into_iter().map(f32::to_bits).collect()
}

#[test]
fn keys_alone_are_stored_and_attention_is_the_same() {
    for policy in ["f32", "f16", "bf16", "q8"] {
        let pool = pool(8);
        let store = |shape| KvStore::new(shape, &policy.parse().expect(policy), &pool).expect(policy);
        let (latent, separate) = (store(LATENT), store(SEPARATE));
        assert_eq!(2 * latent.sequence_bytes(1000), separate.sequence_bytes(1000), "{policy}");
        let [mut of_keys, mut of_both] = [&latent, &separate].map(|store| store.sequence(400));
        for tokens in [70, 1, 129] {
            append(&mut of_keys, tokens);
            append(&mut of_both, tokens);
            assert_eq!(attend(&of_keys), attend(&of_both), "{policy}");
        }
        assert_eq!(2 * of_keys.bytes(), of_both.bytes(), "{policy}");
    }
}

#[test]
fn keys_move_to_lower_tiers_without_values() {
    let pool = pool(16);
    let policy = "tiered:hot=32,sink=0,warm=kivi4,cold=kivi2".parse().expect("a policy");
    let store = KvStore::new(LATENT, &policy, &pool).expect("a store");
    let mut sequence = store.sequence(1 << 12);
    append(&mut sequence, 1000);
    let before = sequence.bytes();
    sequence.migrate(&kernels(), &ThreadPool::single(), usize::MAX);
    assert!(store.tiers().filter(|tier| tier.blocks > 0).count() > 1);
    assert!(2 * sequence.bytes() < before, "{} of {before} bytes", sequence.bytes());
    assert!(attend(&sequence).into_iter().all(|bits| f32::from_bits(bits).is_finite()));
}

#[test]
fn calibrated_formats_are_refused() {
    let refused = KvStore::new(LATENT, &"nuq3".parse().expect("a policy"), &pool(4)).map(|_| ());
    assert!(matches!(refused, Err(Error::PolicyConflict { .. })), "{refused:?}");
}
