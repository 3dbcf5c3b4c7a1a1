//! Blocks on their way down.

use proptest::prelude::*;
use ruvllm_kernels::ThreadPool;
use ruvllm_kv_cache::{KvShape, KvStore, Sequence};

use crate::oracle::{Checked, kernels, pool, store};

/// Heads that every group fits into.
const WIDE: KvShape = KvShape { n_layers: 2, n_kv_heads: 1, head_dim: 64 };

fn ids(n: usize, first: u32) -> Vec<u32> {
    (first..).take(n).collect()
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
    second.sequence.pin();
    first.sequence.migrate(&kernels(), &ThreadPool::single(), usize::MAX);
    let mut views = Vec::new();
    second.sequence.view(0, &mut views);
    assert_eq!(views[0].keys.format.name(), "f16", "a step goes on with what it began with");
    drop(views);
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
    let mut others = Vec::new();
    while !store.is_short() {
        let mut other = Checked::new(&store, 1000);
        other.append(&ids(200, 0)).expect("room");
        others.push(other);
    }
    checked.sequence.migrate(&kernels(), &ThreadPool::single(), usize::MAX);
    let expected = ["f16", "kivi2", "kivi2", "kivi2", "kivi2", "kivi2", "kivi2", "f16", "f16"];
    assert_eq!(formats(&checked.sequence), expected);
    checked.check();
    drop(others);
    assert!(!store.is_short(), "until there is room again");
}

#[test]
fn what_attention_returns_to_stays_hot() {
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
fn the_border_moves_with_the_error_that_is_measured() {
    let pool = pool(16);
    let threads = ThreadPool::single();
    let query: Vec<f32> = (0..4 * 32).map(|i| (i as f32 * 0.37).sin()).collect();
    let error = |policy: &str| {
        let mut checked = Checked::new(&store(policy, &pool), 1000);
        checked.append(&ids(128, 0)).expect("room");
        checked.sequence.sample_error(&kernels(), &threads, 1, &query)
    };
    let eight_bits = error("tiered:hot=32,warm=q8").expect("a lower tier");
    let two_bits = error("tiered:hot=32,warm=kivi2").expect("a lower tier");
    assert!(
        0.0 < eight_bits && eight_bits < 0.02 && two_bits > 10.0 * eight_bits,
        "{eight_bits} and {two_bits}"
    );
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

/// Policies with one, two and three tiers, blocks of 32 and more tokens, sinks and none.
fn policies() -> impl Strategy<Value = String> {
    let tiered = (0usize..200, 0usize..100, 0usize..200).prop_flat_map(|(hot, sink, warm_tokens)| {
        let options = format!("hot={hot},sink={sink},warm_tokens={warm_tokens}");
        let tiers = ["warm=q8,cold=off", "warm=kivi4,cold=kivi2", "warm=q8,cold=kivi4-g64"];
        prop::sample::select(tiers.map(|tiers| format!("tiered:{options},{tiers}")).to_vec())
    });
    let uniform = ["f32", "f16", "q8", "q4", "kivi4", "k4v2"].map(str::to_owned).to_vec();
    prop_oneof![tiered, prop::sample::select(uniform)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_bytes_of_a_sequence_are_known_before(
        policy in policies(),
        steps in prop::collection::vec(1usize..150, 1..6),
    ) {
        let pool = pool(16);
        let store = KvStore::new(WIDE, &policy.parse().expect("a policy"), &pool).expect("a store");
        let mut sequence = store.sequence(1000);
        for tokens in steps {
            sequence.reserve(&kernels(), tokens).expect("room");
            sequence.advance(tokens);
            sequence.migrate(&kernels(), &ThreadPool::single(), usize::MAX);
            prop_assert_eq!(store.sequence_bytes(sequence.len()), sequence.bytes(), "{} tokens", sequence.len());
        }
    }
}
