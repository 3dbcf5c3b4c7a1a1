//! Caches whose last layers have other heads: each layer holds what it would hold in a cache of
//! layers alike.

use ruvllm_kernels::ThreadPool;
use ruvllm_kernels::attention::{AttentionScratch, AttentionShape, Mask};
use ruvllm_kv_cache::{Error, KvShape, KvStore, OtherHeads, Probe, SampleScratch, Sequence};

use crate::oracle::{calibration, kernels, pool, ropes};

const FIRST: KvShape = KvShape::new(1, 2, 32);
const LAST: KvShape = KvShape::new(2, 1, 96);
const MIXED: KvShape =
    KvShape { n_layers: 3, others: Some(OtherHeads { n_layers: 2, n_kv_heads: 1, head_dim: 96 }), ..FIRST };
const POLICIES: [&str; 5] =
    ["f32", "q8", "tiered:hot=32,sink=0,warm=kivi4,cold=kivi2", "tiered:hot=64,keep=1", "tiered:squat=on"];

fn store(shape: KvShape, policy: &str) -> KvStore {
    KvStore::new(shape, &policy.parse().expect(policy), &pool(64)).expect(policy)
}

fn rows(layer: usize, first: usize, tokens: usize) -> Vec<f32> {
    let width = MIXED.of_layer(layer).width();
    let value = |index: usize| ((index * 37 + layer * 11) as f32 * 0.013).sin();
    (first * width..(first + tokens) * width).map(value).collect()
}

/// Appends tokens to a cache whose layers are these of the mixed one.
fn append(sequence: &mut Sequence, layers: &[usize], tokens: usize) {
    let (first, threads) = (sequence.len(), ThreadPool::single());
    let mut step = sequence.step(&kernels(), tokens).expect("room");
    for (index, &layer) in layers.iter().enumerate() {
        let rows = rows(layer, first, tokens);
        step.write(&kernels(), index, &rows, &rows.iter().map(|x| x * 0.5).collect::<Vec<_>>());
        let shape = MIXED.of_layer(layer);
        let n_heads = 2 * shape.n_kv_heads;
        let queries: Vec<f32> =
            (0..tokens * n_heads * shape.head_dim).map(|i| (i as f32 * 0.17).cos()).collect();
        step.observe_queries(&kernels(), &threads, index, n_heads, &queries);
    }
    step.commit();
}

fn query(layer: usize) -> Vec<f32> {
    (0..2 * MIXED.of_layer(layer).width()).map(|i| (i as f32 * 0.29).cos()).collect()
}

/// Attention of one query in a layer of the mixed cache, which is `index` in this one, as bits.
fn attend(sequence: &Sequence, layer: usize, index: usize) -> Vec<u32> {
    let (reader, mut blocks, heads) = (sequence.read(), Vec::new(), MIXED.of_layer(layer));
    let shape = AttentionShape {
        n_heads: 2 * heads.n_kv_heads,
        n_kv_heads: heads.n_kv_heads,
        head_dim: heads.head_dim,
        query_start: sequence.len() - 1,
        n_queries: 1,
        scale: 0.125,
        mask: Mask::CAUSAL,
        soft_cap: None,
        alibi: None,
    };
    let (query, mut scratch) = (query(layer), AttentionScratch::new());
    let mut out = vec![0.0; query.len()];
    let view = reader.view(index, &mut blocks);
    kernels().attention(&ThreadPool::single(), &shape, &query, &view, &mut out, &mut scratch);
    out.into_iter().map(f32::to_bits).collect()
}

/// Shares of blocks and the estimated error in a layer.
fn sample(sequence: &Sequence, layer: usize, index: usize) -> (Vec<u32>, Option<u32>) {
    let (query, mut scratch) = (query(layer), SampleScratch::new());
    let probe = Probe { layer: index, query: &query, scale: 0.125, window: None, soft_cap: None };
    let sample = sequence.sample(&kernels(), &ThreadPool::single(), &probe, &mut scratch);
    (sample.shares.iter().map(|share| share.to_bits()).collect(), sample.error.map(f32::to_bits))
}

#[test]
fn layers_hold_what_caches_of_layers_alike_hold() {
    let threads = ThreadPool::new(3).expect("threads");
    for policy in POLICIES {
        let [mixed, first, last] = [MIXED, FIRST, LAST].map(|shape| store(shape, policy));
        let bytes = |store: &KvStore| store.sequence_bytes(1000);
        assert_eq!(bytes(&mixed), bytes(&first) + bytes(&last), "{policy}");
        let mut sequences = [&mixed, &first, &last].map(|store| store.sequence(1000));
        let layers = [&[0, 1, 2][..], &[0], &[1, 2]];
        for tokens in [70, 1, 129, 300] {
            for (sequence, layers) in sequences.iter_mut().zip(layers) {
                append(sequence, layers, tokens);
            }
            let compare = |sequences: &[Sequence; 3]| {
                for (layer, (alike, index)) in [(1, 0), (2, 0), (2, 1)].into_iter().enumerate() {
                    let what = format!("{policy}, layer {layer}");
                    let alike = &sequences[alike];
                    assert_eq!(attend(&sequences[0], layer, layer), attend(alike, layer, index), "{what}");
                    assert_eq!(sample(&sequences[0], layer, layer), sample(alike, layer, index), "{what}");
                }
            };
            compare(&sequences);
            for sequence in &mut sequences {
                sequence.migrate(&kernels(), &threads, usize::MAX);
            }
            compare(&sequences);
        }
        let [of_mixed, of_first, of_last] = sequences.each_ref().map(Sequence::bytes);
        assert_eq!(of_mixed, of_first + of_last, "{policy}");
        // Recorded queries are memory beside the blocks.
        let in_tiers: usize = mixed.tiers().map(|tier| tier.bytes).sum();
        let beside = of_mixed - in_tiers;
        assert_eq!(beside > 0, mixed.policy().squat, "{policy}: {beside} bytes");
        drop(sequences);
        assert!(mixed.tiers().all(|tier| tier.blocks == 0), "{policy}");
    }
}

#[test]
fn blocks_come_back_from_their_bytes_and_forks_copy_them() {
    let store = store(MIXED, "q8");
    let mut sequence = store.sequence(100);
    append(&mut sequence, &[0, 1, 2], 32);
    let pinned = sequence.blocks()[0].pin();
    let saved: Vec<Vec<u8>> = pinned.layers().map(<[u8]>::to_vec).collect();
    assert!(saved[0].len() < saved[1].len() && saved[1].len() == saved[2].len());
    let whole = pinned.formats().block_bytes(MIXED, store.block_tokens()).expect("formats");
    assert_eq!(saved.iter().map(Vec::len).sum::<usize>(), whole);
    let restored = store.restore_block(pinned.formats(), |layer, bytes| {
        bytes.copy_from_slice(&saved[layer]);
        Ok::<(), Error>(())
    });
    let mut other = store.sequence(100);
    other.append_shared(&[restored.expect("room")]).expect("room");
    let mut fork = sequence.fork();
    for layer in 0..3 {
        assert_eq!(attend(&other, layer, layer), attend(&sequence, layer, layer));
    }
    append(&mut fork, &[0, 1, 2], 5);
    append(&mut sequence, &[0, 1, 2], 5);
    for layer in 0..3 {
        assert_eq!(attend(&fork, layer, layer), attend(&sequence, layer, layer));
    }
}

#[test]
fn the_smallest_pool_has_room_for_a_block_of_each_tier() {
    let policy = "tiered:hot=32,sink=0,warm=kivi4,cold=kivi2".parse().expect("a policy");
    let page = 512 << 10;
    assert_eq!(KvStore::least_bytes(MIXED, &policy, page).expect("formats"), 6 * page);
    let store = KvStore::new(MIXED, &policy, &pool(6)).expect("a store");
    let mut sequence = store.sequence(100);
    append(&mut sequence, &[0, 1, 2], 32);
}

#[test]
fn what_needs_heads_alike_is_refused() {
    let nuq = "nuq3".parse().expect("a policy");
    let refused = KvStore::new(MIXED, &nuq, &pool(4)).map(|_| ());
    assert!(matches!(refused, Err(Error::PolicyConflict { .. })), "{refused:?}");
    let refused = KvStore::with_calibration(MIXED, &nuq, &pool(4), calibration(FIRST), &ropes()).map(|_| ());
    assert!(matches!(refused, Err(Error::PolicyConflict { .. })), "{refused:?}");
    let rotated = "q8:rotate=on".parse().expect("a policy");
    let refused = KvStore::new(MIXED, &rotated, &pool(4)).map(|_| ()).expect_err("96 values");
    assert!(refused.to_string().contains("these have 96"), "{refused}");
    assert_eq!(MIXED.to_string(), "1 layers x 2 heads x 32 and 2 layers x 1 heads x 96");
}
