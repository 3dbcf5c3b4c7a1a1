//! Keys that are quantized for the queries of their sequence.

use ruvllm_kernels::ThreadPool;
use ruvllm_kv_cache::{Block, KvStore, Probe, SampleScratch, Sequence};

use crate::oracle::{SHAPE, kernels, pool, store};

const POLICY: &str = "tiered:hot=0,sink=0,warm=kivi2,squat=on";

/// Query heads of each key/value head.
const GROUP: usize = 2;

/// Numbers that vary with everything, in [-1, 1].
fn noise(seed: usize, n: usize) -> Vec<f32> {
    (0..n).map(|i| (((seed * 7919 + i) as f64 * 0.754_877).sin() * 43_758.545).fract() as f32).collect()
}

/// Keys (or values) of tokens from position `first` on in a layer.
fn rows(first: usize, n: usize, layer: usize, seed: usize) -> Vec<f32> {
    (first..first + n).flat_map(|token| noise(seed + 31 * layer + 1000 * token, SHAPE.width())).collect()
}

/// Queries that look in two directions, other ones in each layer and head.
fn queries(first: usize, n: usize, layer: usize) -> Vec<f32> {
    let heads =
        (first..first + n).flat_map(|token| (0..GROUP * SHAPE.n_kv_heads).map(move |head| (token, head)));
    heads
        .flat_map(|(token, head)| {
            let shares = noise(17 + token, 2);
            let directions = noise(3 + 5 * layer + head / GROUP, 2 * SHAPE.head_dim);
            let (a, b) = directions.split_at(SHAPE.head_dim);
            a.iter().zip(b).map(|(a, b)| 3.0 * (shares[0] * a + shares[1] * b)).collect::<Vec<f32>>()
        })
        .collect()
}

/// A step of `n` tokens, which shows the cache its queries.
fn step(sequence: &mut Sequence, n: usize) {
    let (kernels, first) = (kernels(), sequence.len());
    let mut step = sequence.step(&kernels, n).expect("room");
    for layer in 0..SHAPE.n_layers {
        step.write(&kernels, layer, &rows(first, n, layer, 1), &rows(first, n, layer, 2));
        let (queries, heads) = (queries(first, n, layer), GROUP * SHAPE.n_kv_heads);
        step.observe_queries(&kernels, &ThreadPool::single(), layer, heads, &queries);
    }
    step.commit();
}

fn migrate(sequence: &mut Sequence) -> usize {
    sequence.migrate(&kernels(), &ThreadPool::single(), usize::MAX).blocks
}

/// The bytes of each block, layer by layer: keys, then values.
fn bytes(sequence: &Sequence) -> Vec<Vec<u8>> {
    sequence.blocks().iter().map(|block| block.pin().layers().flatten().copied().collect()).collect()
}

fn migrated(store: &KvStore, steps: &[usize]) -> Sequence {
    let mut sequence = store.sequence(1000);
    steps.iter().for_each(|&n| step(&mut sequence, n));
    migrate(&mut sequence);
    sequence
}

#[test]
fn queries_change_keys_and_nothing_else_however_the_prompt_is_cut() {
    let pool = pool(16);
    let (plain, squat) = (store("tiered:hot=0,sink=0,warm=kivi2", &pool), store(POLICY, &pool));
    let (plain, whole) = (migrated(&plain, &[128]), migrated(&squat, &[128]));
    assert_eq!(bytes(&whole), bytes(&migrated(&squat, &[1, 40, 30, 57])));
    let half = bytes(&plain)[0].len() / (2 * SHAPE.n_layers);
    for (plain, squat) in bytes(&plain).iter().zip(&bytes(&whole)) {
        for (plane, (plain, squat)) in plain.chunks(half).zip(squat.chunks(half)).enumerate() {
            assert_eq!(plain == squat, plane % 2 == 1, "plane {plane}: keys differ, values do not");
        }
    }
}

#[test]
fn without_queries_keys_are_what_they_were() {
    let pool = pool(16);
    let [plain, squat] =
        ["tiered:hot=0,sink=0,warm=kivi4", "tiered:hot=0,sink=0,warm=kivi4,squat=on"].map(|policy| {
            let mut sequence = store(policy, &pool).sequence(1000);
            let mut step = sequence.step(&kernels(), 64).expect("room");
            for layer in 0..SHAPE.n_layers {
                step.write(&kernels(), layer, &rows(0, 64, layer, 1), &rows(0, 64, layer, 2));
            }
            step.commit();
            assert_eq!(migrate(&mut sequence), 2);
            sequence
        });
    assert_eq!(bytes(&plain), bytes(&squat));
    assert_eq!(plain.bytes(), squat.bytes());
}

#[test]
fn the_error_that_is_sampled_falls() {
    let pool = pool(16);
    let threads = ThreadPool::single();
    let [plain, squat] = ["off", "on"].map(|squat| {
        let policy = format!("tiered:hot=64,sink=0,warm=kivi2+q8,squat={squat}");
        let mut sequence = store(&policy, &pool).sequence(1000);
        step(&mut sequence, 160);
        // The first blocks go down, and with them comes what is known of the queries.
        migrate(&mut sequence);
        step(&mut sequence, 32);
        let mut scratch = SampleScratch::new();
        let mut error = |token| {
            let query = queries(token, 1, 1);
            let probe = Probe { layer: 1, query: &query, scale: 0.25, window: None, soft_cap: None };
            sequence.sample(&kernels(), &threads, &probe, &mut scratch).error.expect("a block is due")
        };
        (200..220).map(&mut error).sum::<f32>()
    });
    assert!(squat < 0.7 * plain, "{squat} with the queries known, {plain} without");
}

#[test]
fn forks_know_the_queries() {
    let pool = pool(16);
    let store = store(POLICY, &pool);
    let mut first = store.sequence(1000);
    step(&mut first, 96);
    let mut fork = first.fork();
    step(&mut first, 64);
    step(&mut fork, 64);
    migrate(&mut first);
    let expected = bytes(&first);
    // Shared blocks migrated with the queries of the first to migrate, those behind with
    // each one's own.
    migrate(&mut fork);
    assert_eq!(bytes(&fork), expected);
}

#[test]
fn recorded_queries_are_counted_and_bounded() {
    let pool = pool(64);
    let store = store("tiered:hot=0,sink=0,warm=kivi2,squat=on", &pool);
    let mut sequence = store.sequence(4096);
    let blocks = |sequence: &Sequence| sequence.blocks().iter().map(Block::bytes).sum::<usize>();
    let heads = SHAPE.n_layers * SHAPE.n_kv_heads;
    let (gram, correction) = (4 * 32 * 32, 4 * 8 * (32 + 24 + 16 + 8));
    step(&mut sequence, 64);
    assert_eq!(sequence.bytes() - blocks(&sequence), heads * gram);
    migrate(&mut sequence);
    assert_eq!(sequence.bytes() - blocks(&sequence), heads * (gram + correction));
    step(&mut sequence, 2048);
    migrate(&mut sequence);
    assert_eq!(sequence.bytes() - blocks(&sequence), heads * correction, "no more queries are looked at");
    sequence.clear();
    assert_eq!(sequence.bytes(), 0);
}

#[test]
fn queries_that_are_no_numbers_cost_the_correction_of_their_head() {
    let pool = pool(16);
    let squat = store(POLICY, &pool);
    let mut sequence = squat.sequence(1000);
    let (kernels, n) = (kernels(), 64);
    let mut step = sequence.step(&kernels, n).expect("room");
    for layer in 0..SHAPE.n_layers {
        step.write(&kernels, layer, &rows(0, n, layer, 1), &rows(0, n, layer, 2));
        let mut queries = queries(0, n, layer);
        queries[5] = f32::NAN;
        step.observe_queries(&kernels, &ThreadPool::single(), layer, GROUP * SHAPE.n_kv_heads, &queries);
    }
    step.commit();
    migrate(&mut sequence);
    let plain = migrated(&store("tiered:hot=0,sink=0,warm=kivi2", &pool), &[n]);
    let plane = bytes(&plain)[0].len() / (2 * SHAPE.n_layers);
    let heads =
        |bytes: &[Vec<u8>]| bytes[0][..plane].chunks(plane / 2).map(<[u8]>::to_vec).collect::<Vec<_>>();
    let (plain, squat) = (heads(&bytes(&plain)), heads(&bytes(&sequence)));
    assert_eq!(plain[0], squat[0], "the first head's queries are no numbers");
    assert_ne!(plain[1], squat[1]);
}
