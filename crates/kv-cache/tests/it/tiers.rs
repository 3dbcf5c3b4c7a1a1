//! Blocks on their way down.

use proptest::prelude::*;
use ruvllm_kernels::ThreadPool;
use ruvllm_kernels::attention::KvRole;
use ruvllm_kv_cache::{KvShape, KvStore, Probe, SampleScratch, Sequence};
use ruvllm_memory::PressurePolicy;

use crate::oracle::{Checked, SHAPE, kernels, pool, rows, store};

/// Heads that every group fits into.
const WIDE: KvShape = KvShape::new(2, 1, 64);

fn ids(n: usize, first: u32) -> Vec<u32> {
    (first..).take(n).collect()
}

/// A query of four heads, two for each head of the keys.
fn query() -> Vec<f32> {
    (0..2 * SHAPE.width()).map(|i| (i as f32 * 0.37).sin()).collect()
}

fn formats(sequence: &Sequence) -> Vec<String> {
    sequence.blocks().iter().map(|block| block.formats().to_string()).collect()
}

#[test]
fn age_lowers_precision_between_sinks_and_the_end() {
    let pool = pool(16);
    let store = store("tiered:hot=64,sink=4,warm=kivi4,warm_tokens=64,cold=kivi2", &pool);
    let mut checked = Checked::new(&store, 1000);
    checked.append(&ids(300, 0)).expect("room");
    let hot = checked.sequence.bytes();
    let threads = ThreadPool::new(2).expect("threads");
    let migration = checked.sequence.migrate(&kernels(), &threads, usize::MAX);
    // Position 300: the last 64 tokens begin in block 7, the 64 before them in block 5.
    let expected = ["f16", "kivi2", "kivi2", "kivi2", "kivi2", "kivi4", "kivi4", "f16", "f16"];
    assert_eq!(formats(&checked.sequence), expected);
    assert_eq!((migration.blocks, migration.saved_bytes), (6, hot - checked.sequence.bytes()));
    checked.check();
    assert_eq!(
        checked.sequence.migrate(&kernels(), &threads, usize::MAX).blocks,
        0,
        "there is nothing left to do"
    );
    checked.append(&ids(100, 900)).expect("room");
    checked.check();
}

#[test]
fn a_limit_takes_the_oldest_first() {
    let pool = pool(16);
    let store = store("tiered:hot=32,sink=0,warm=q8", &pool);
    let mut checked = Checked::new(&store, 1000);
    checked.append(&ids(160, 0)).expect("room");
    let threads = ThreadPool::single();
    assert_eq!(checked.sequence.migrate(&kernels(), &threads, 2).blocks, 2);
    assert_eq!(formats(&checked.sequence), ["q8", "q8", "f16", "f16", "f16"]);
    checked.check();
}

#[test]
fn all_who_share_a_block_see_it_smaller_at_their_next_step() {
    let pool = pool(16);
    let store = store("tiered:hot=32,sink=0,warm=kivi4", &pool);
    let mut first = Checked::new(&store, 1000);
    first.append(&ids(96, 0)).expect("room");
    let mut second = first.fork();
    let step = second.sequence.step(&kernels(), 1).expect("room");
    first.sequence.migrate(&kernels(), &ThreadPool::single(), usize::MAX);
    let mut views = Vec::new();
    step.view(0, &mut views);
    assert_eq!(views[0].keys.format().name(), "f16", "a step goes on with what it began with");
    drop(step);
    assert_eq!(formats(&second.sequence), ["kivi4", "kivi4", "f16"]);
    second.append(&[7]).expect("room");
    second.check();
}

#[test]
fn a_cut_into_a_small_block_can_be_written_again() {
    let pool = pool(16);
    let store = store("tiered:hot=32,sink=0,warm=kivi2", &pool);
    let mut checked = Checked::new(&store, 1000);
    checked.append(&ids(128, 0)).expect("room");
    checked.sequence.migrate(&kernels(), &ThreadPool::single(), usize::MAX);
    checked.truncate(40);
    checked.append(&ids(60, 500)).expect("room");
    checked.check();
}

#[test]
fn a_pool_without_pages_leaves_blocks_as_they_are() {
    let pool = pool(1);
    let store = store("tiered:hot=32,sink=0,warm=kivi4", &pool);
    let mut checked = Checked::new(&store, 1000);
    checked.append(&ids(128, 0)).expect("room");
    let migration = checked.sequence.migrate(&kernels(), &ThreadPool::single(), usize::MAX);
    assert!(migration.starved && migration.blocks == 0);
    checked.check();
}

#[test]
fn the_last_pages_are_kept_for_smaller_blocks() {
    let pool = pool(16);
    let store = store("tiered:hot=32,sink=0,warm=kivi2", &pool);
    let mut checked = Checked::new(&store, 1 << 20);
    while checked.append(&ids(100, checked.tokens.len() as u32)).is_ok() {}
    let full = checked.sequence.len();
    let threads = ThreadPool::single();
    let migration = checked.sequence.migrate(&kernels(), &threads, usize::MAX);
    assert!(migration.blocks > 0, "{migration:?}");
    while checked.append(&ids(100, 0)).is_ok() {
        checked.sequence.migrate(&kernels(), &threads, usize::MAX);
    }
    assert!(checked.sequence.len() > 4 * full, "{} tokens where {full} fitted", checked.sequence.len());
}

#[test]
fn short_memory_takes_what_is_not_hot_to_the_lowest_tier() {
    let pool = pool(8);
    let store = store("tiered:hot=64,sink=4,warm=q8,cold=kivi2", &pool);
    let mut checked = Checked::new(&store, 1 << 20);
    checked.append(&ids(300, 0)).expect("room");
    checked.sequence.migrate(&kernels(), &ThreadPool::single(), usize::MAX);
    assert!(formats(&checked.sequence)[1..7].iter().all(|name| name == "q8"), "by age");
    let settle = |checked: &mut Checked| {
        checked.sequence.settle(&kernels(), &ThreadPool::single(), PressurePolicy::LowerPrecision);
    };
    let mut others = Vec::new();
    // Two of the eight pages are kept for lower tiers.
    while 10 * pool.stats().used_pages < 8 * 6 {
        settle(&mut checked);
        assert!(formats(&checked.sequence)[1..7].iter().all(|name| name == "q8"), "below 80 %");
        let mut other = Checked::new(&store, 1000);
        other.append(&ids(200, 0)).expect("room");
        others.push(other);
    }
    settle(&mut checked);
    let expected = ["f16", "kivi2", "kivi2", "kivi2", "kivi2", "kivi2", "kivi2", "f16", "f16"];
    assert_eq!(formats(&checked.sequence), expected);
    checked.check();
    drop(others);
    let mut later = Checked::new(&store, 1000);
    later.append(&ids(300, 0)).expect("room");
    settle(&mut later);
    assert_eq!(formats(&later.sequence)[1], "q8", "age alone decides when there is room again");
}

#[test]
fn heavy_hitters_stay_hot() {
    let pool = pool(16);
    let store = store("tiered:hot=32,sink=0,keep=2,warm=q8", &pool);
    let mut checked = Checked::new(&store, 1000);
    checked.append(&ids(192, 0)).expect("room");
    // Block 3 was looked at once long ago, blocks 1 and 2 are looked at all the time.
    checked.sequence.add_mass(&[0.0, 0.0, 0.0, 1.0]);
    for _ in 0..100 {
        checked.sequence.add_mass(&[0.1, 0.3, 0.2]);
    }
    checked.sequence.migrate(&kernels(), &ThreadPool::single(), usize::MAX);
    assert_eq!(formats(&checked.sequence), ["q8", "f16", "f16", "q8", "q8", "f16"]);
    checked.check();
    for _ in 0..100 {
        checked.sequence.add_mass(&[0.0, 0.0, 0.3]);
    }
    checked.append(&ids(32, 300)).expect("room");
    checked.sequence.migrate(&kernels(), &ThreadPool::single(), usize::MAX);
    assert_eq!(formats(&checked.sequence)[5], "q8", "no place is kept for blocks without any");
}

#[test]
fn a_block_that_is_cut_keeps_its_attention() {
    let pool = pool(16);
    let store = store("tiered:hot=32,sink=0,keep=1,warm=q8", &pool);
    let formats_after = |rejected: usize| {
        let mut checked = Checked::new(&store, 1000);
        checked.append(&ids(40, 0)).expect("room");
        checked.sequence.add_mass(&[0.4, 0.6]);
        checked.append(&ids(rejected, 500)).expect("room");
        checked.truncate(40);
        checked.append(&ids(152, 100)).expect("room");
        checked.sequence.migrate(&kernels(), &ThreadPool::single(), usize::MAX);
        checked.check();
        formats(&checked.sequence)
    };
    let expected = ["q8", "f16", "q8", "q8", "q8", "f16"];
    for rejected in [0, 8, 60] {
        assert_eq!(formats_after(rejected), expected, "{rejected} tokens");
    }
}

#[test]
fn the_border_moves_with_the_error_that_is_measured() {
    let pool = pool(16);
    let threads = ThreadPool::single();
    let query = query();
    let probe = Probe { layer: 1, query: &query, scale: 0.25, window: None, soft_cap: None };
    let error = |policy: &str| {
        let mut checked = Checked::new(&store(policy, &pool), 1000);
        checked.append(&ids(128, 0)).expect("room");
        checked.sequence.sample(&kernels(), &threads, &probe, &mut SampleScratch::new()).error
    };
    let eight_bits = error("tiered:hot=32,warm=q8").expect("a lower tier");
    let two_bits = error("tiered:hot=32,warm=kivi2").expect("a lower tier");
    assert!(
        0.0 < eight_bits && eight_bits < 0.02 && two_bits > 10.0 * eight_bits,
        "{eight_bits} and {two_bits}"
    );
    let more_hot = error("tiered:hot=64,warm=kivi2").expect("a lower tier");
    assert!(more_hot < two_bits, "{more_hot} with 64 hot tokens, {two_bits} with 32");
    assert_eq!(error("tiered:hot=128,warm=q8"), None, "no block is due");
    assert_eq!(error("f16"), None, "nothing to go down to");

    let store = store("tiered:hot=32,sink=0,warm=q8", &pool);
    let mut checked = Checked::new(&store, 1000);
    checked.append(&ids(192, 0)).expect("room");
    checked.sequence.set_hot_tokens(96);
    checked.sequence.migrate(&kernels(), &threads, usize::MAX);
    assert_eq!(formats(&checked.sequence), ["q8", "q8", "q8", "f16", "f16", "f16"]);
    checked.sequence.set_hot_tokens(0);
    checked.sequence.migrate(&kernels(), &threads, usize::MAX);
    assert_eq!(formats(&checked.sequence)[4..], ["q8", "f16"], "never fewer than the policy's");
}

#[test]
fn the_shares_of_blocks_are_those_of_their_keys() {
    let pool = pool(16);
    let mut checked = Checked::new(&store("tiered:hot=64,sink=0,warm=q8", &pool), 1000);
    let tokens = ids(173, 0);
    checked.append(&tokens).expect("room");
    let query = query();
    let (layer, scale) = (1, 0.25);
    let keys = rows(&tokens, KvRole::Keys, layer);
    // Softmax over all keys that are seen, head by head, in f64.
    let expected = |first: usize| {
        let mut shares = [0.0; 6];
        for (head, query) in query.chunks(SHAPE.head_dim).enumerate() {
            let key = |at: usize| &keys[at * SHAPE.width() + head / 2 * SHAPE.head_dim..][..SHAPE.head_dim];
            let dot = |at| query.iter().zip(key(at)).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum::<f64>();
            let weights: Vec<f64> = (first..173).map(|at| (scale * dot(at)).exp()).collect();
            let sum: f64 = weights.iter().sum();
            for (at, weight) in (first..).zip(weights) {
                shares[at / 32] += weight / sum / 4.0;
            }
        }
        shares
    };
    for threads in [1, 3] {
        let threads = ThreadPool::new(threads).expect("threads");
        for window in [None, Some(100)] {
            let probe = Probe { layer, query: &query, scale: scale as f32, window, soft_cap: None };
            let mut scratch = SampleScratch::new();
            let sample = checked.sequence.sample(&kernels(), &threads, &probe, &mut scratch);
            let expected = expected(window.map_or(0, |window| 173 - window));
            assert_eq!(sample.shares.len(), expected.len());
            for (found, expected) in sample.shares.iter().zip(expected) {
                assert!((f64::from(*found) - expected).abs() < 1e-5, "{:?}, not {expected:?}", sample.shares);
            }
        }
    }
    let empty = store("f16", &pool).sequence(10);
    let probe = Probe { layer, query: &query, scale: 1.0, window: None, soft_cap: None };
    let mut scratch = SampleScratch::new();
    let sample = empty.sample(&kernels(), &ThreadPool::single(), &probe, &mut scratch);
    assert!(sample.shares.is_empty() && sample.error.is_none());
}

#[test]
fn shrinking_leaves_the_first_and_the_last_tokens() {
    let pool = pool(16);
    let store = store("tiered:hot=256,sink=4,keep=2,warm=q8,cold=kivi2", &pool);
    let mut checked = Checked::new(&store, 1000);
    checked.append(&ids(200, 0)).expect("room");
    checked.sequence.add_mass(&[0.0, 0.5, 0.5]);
    let threads = ThreadPool::single();
    assert_eq!(
        checked.sequence.migrate(&kernels(), &threads, usize::MAX).blocks,
        0,
        "all is hot by the policy"
    );
    let hot = checked.sequence.bytes();
    let migration = checked.sequence.shrink(&kernels(), &threads, 64);
    // Position 200: the last 64 tokens begin in block 4.
    assert_eq!(formats(&checked.sequence), ["f16", "kivi2", "kivi2", "kivi2", "f16", "f16"]);
    assert_eq!((migration.blocks, migration.saved_bytes), (3, hot - checked.sequence.bytes()));
    checked.check();
    checked.append(&ids(60, 900)).expect("room");
    checked.check();
}

#[test]
fn three_bits_without_a_calibration_follow_q4_and_are_shared_and_copied() {
    let pool = pool(16);
    let store = store("tiered:hot=32,sink=0,warm=q4,warm_tokens=32,cold=turbo3", &pool);
    let mut checked = Checked::new(&store, 1000);
    for step in 0..5 {
        checked.append(&ids(32, 100 * step)).expect("room");
        checked.sequence.migrate(&kernels(), &ThreadPool::single(), usize::MAX);
        checked.check();
    }
    assert_eq!(formats(&checked.sequence), ["turbo3", "turbo3", "turbo3", "q4", "f16"]);
    let mut fork = checked.fork();
    // Into a block of 3 bits, which is copied before it is written.
    fork.truncate(70);
    fork.append(&ids(40, 700)).expect("room");
    fork.check();
    checked.check();
}

/// Policies with one, two and three tiers, blocks of 32 and more tokens, sinks and none.
fn policies() -> impl Strategy<Value = String> {
    let tiered = (0usize..200, 0usize..100, 0usize..200).prop_flat_map(|(hot, sink, warm_tokens)| {
        let options = format!("hot={hot},sink={sink},warm_tokens={warm_tokens}");
        let tiers =
            ["warm=q8,cold=off", "warm=kivi4,cold=kivi2", "warm=q8,cold=kivi4-g64", "warm=q8,cold=turbo3"];
        prop::sample::select(tiers.map(|tiers| format!("tiered:{options},{tiers}")).to_vec())
    });
    let uniform = ["f32", "f16", "q8", "q4", "kivi4", "turbo3", "k4v2"].map(str::to_owned).to_vec();
    prop_oneof![tiered, prop::sample::select(uniform)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64 * ProptestConfig::default().cases / 256))]

    #[test]
    fn the_bytes_of_a_sequence_are_known_before(
        policy in policies(),
        steps in prop::collection::vec(1usize..150, 1..6),
    ) {
        let pool = pool(16);
        let store = KvStore::new(WIDE, &policy.parse().expect("a policy"), &pool).expect("a store");
        let mut sequence = store.sequence(1000);
        for tokens in steps {
            sequence.step(&kernels(), tokens).expect("room").commit();
            sequence.migrate(&kernels(), &ThreadPool::single(), usize::MAX);
            prop_assert_eq!(store.sequence_bytes(sequence.len()), sequence.bytes(), "{} tokens", sequence.len());
        }
    }
}
