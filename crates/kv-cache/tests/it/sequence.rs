//! One sequence: growing, cutting, forking, starting from what others have.

use ruvllm_kernels::attention::KvFormat;
use ruvllm_kv_cache::{Error, KvShape, KvStore};

use crate::oracle::{Checked, SHAPE, kernels, pool, store};

fn ids(n: usize, first: u32) -> Vec<u32> {
    (first..).take(n).collect()
}

#[test]
fn tokens_are_where_they_were_written() {
    let pool = pool(8);
    for policy in ["f32", "f16", "bf16", "q8", "q4", "q8+q4"] {
        let store = store(policy, &pool);
        let mut checked = Checked::new(&store, 1000);
        for (n, first) in [(1, 0), (30, 100), (1, 300), (1, 400), (70, 500), (25, 600)] {
            checked.append(&ids(n, first)).expect("room");
            if store.policy().tiers().all(|formats| formats == KvFormat::F32.into()) {
                checked.check();
            }
        }
        checked.check();
    }
}

#[test]
fn memory_follows_the_length_in_blocks_and_is_given_back() {
    let pool = pool(8);
    let before = pool.stats();
    let store = store("f16", &pool);
    let block_bytes = 2 * SHAPE.n_layers * SHAPE.width() * 32 * 2;
    let mut checked = Checked::new(&store, 200);
    for (n, blocks) in [(1, 1), (31, 1), (1, 2), (100, 5)] {
        checked.append(&ids(n, 0)).expect("room");
        assert_eq!(checked.sequence.bytes(), blocks * block_bytes);
    }
    checked.truncate(65);
    assert_eq!(checked.sequence.bytes(), 3 * block_bytes);
    checked.truncate(80);
    assert_eq!(checked.sequence.len(), 65, "truncation never adds tokens");
    checked.check();
    checked.sequence.clear();
    assert_eq!(checked.sequence.bytes(), 0);
    drop(checked);
    drop(store);
    assert_eq!(pool.stats().free_pages, before.free_pages, "every page is back");
}

#[test]
fn a_full_sequence_is_an_error_and_stays_as_it_was() {
    let pool = pool(4);
    let store = store("f16", &pool);
    let mut checked = Checked::new(&store, 70);
    checked.append(&ids(60, 0)).expect("room");
    let error = checked.append(&ids(11, 100)).expect_err("one too many");
    assert_eq!(error.to_string(), "the cache holds 60 of 70 tokens, 11 more do not fit");
    checked.check();
    checked.append(&ids(10, 100)).expect("it fits exactly");
    checked.check();
}

#[test]
fn an_empty_pool_changes_nothing() {
    let pool = pool(1);
    let store = store("f16", &pool);
    let mut checked = Checked::new(&store, 1 << 20);
    let error = loop {
        if let Err(error) = checked.append(&ids(100, checked.tokens.len() as u32)) {
            break error;
        }
    };
    assert!(matches!(error, Error::Memory { .. }), "{error}");
    checked.check();
    let (len, bytes) = (checked.sequence.len(), checked.sequence.bytes());
    assert!(checked.append(&ids(100, 0)).is_err());
    assert_eq!((checked.sequence.len(), checked.sequence.bytes()), (len, bytes));
    checked.truncate(len / 2);
    checked.append(&ids(100, 7)).expect("there is room again");
    checked.check();
}

#[test]
fn forks_share_until_one_writes() {
    let pool = pool(4);
    let store = store("f16", &pool);
    let mut first = Checked::new(&store, 200);
    first.append(&ids(40, 0)).expect("room");
    let blocks = |store: &KvStore| store.tiers().next().map(|tier| tier.blocks);
    let mut second = first.fork();
    assert_eq!(blocks(&store), Some(2), "nothing was copied");
    second.append(&[900]).expect("room");
    assert_eq!(blocks(&store), Some(3), "the partial block was");
    first.append(&[901, 902]).expect("room");
    assert_eq!(blocks(&store), Some(3), "the last holder of a block writes it in place");
    first.check();
    second.check();
    drop(first);
    assert_eq!(blocks(&store), Some(2));
    second.check();
}

#[test]
fn a_cut_into_a_shared_block_leaves_the_others_alone() {
    let pool = pool(4);
    let store = store("f32", &pool);
    let mut first = Checked::new(&store, 200);
    first.append(&ids(100, 0)).expect("room");
    let mut second = first.fork();
    for keep in [70, 64, 33, 32, 5, 0] {
        second.truncate(keep);
        second.append(&ids(3, 500)).expect("room");
        second.check();
        first.check();
    }
}

#[test]
fn a_sequence_starts_from_the_blocks_of_another() {
    let pool = pool(4);
    let store = store("f16", &pool);
    let mut first = Checked::new(&store, 200);
    first.append(&ids(100, 0)).expect("room");
    assert_eq!(first.sequence.blocks().len(), 3);
    let (blocks, tokens) = first.prefix(3);

    let mut second = Checked::new(&store, 200);
    second.sequence.append_shared(&blocks[..2]).expect("room");
    second.sequence.append_copy(&kernels(), &blocks[2], 10).expect("room");
    second.tokens = tokens[..74].to_vec();
    second.check();
    second.append(&ids(30, 700)).expect("room");
    second.check();
    first.check();
    let error = second.sequence.append_shared(&blocks).expect_err("behind 104 tokens");
    assert!(matches!(error, Error::NotAtBlock { len: 104, block_tokens: 32 }), "{error}");
}

#[test]
fn foreign_blocks_are_refused() {
    let pool = pool(8);
    let (one, other) = (store("f16", &pool), store("f16", &pool));
    let mut first = Checked::new(&one, 100);
    first.append(&ids(32, 0)).expect("room");
    let mut second = other.sequence(100);
    assert!(matches!(second.append_shared(first.sequence.blocks()), Err(Error::ForeignBlock)));
    assert!(matches!(
        second.append_copy(&kernels(), &first.sequence.blocks()[0], 3),
        Err(Error::ForeignBlock)
    ));
    assert!(second.is_empty());
}

#[test]
fn blocks_come_back_from_their_bytes() {
    let pool = pool(8);
    let store = store("q8+q4", &pool);
    let mut first = Checked::new(&store, 100);
    first.append(&ids(32, 0)).expect("room");
    let pinned = first.sequence.blocks()[0].pin();
    let saved: Vec<Vec<u8>> = pinned.layers().map(<[u8]>::to_vec).collect();
    let restored = store
        .restore_block(pinned.formats(), |layer, bytes| {
            bytes.copy_from_slice(&saved[layer]);
            Ok::<(), Error>(())
        })
        .expect("room");
    let mut second = Checked::new(&store, 100);
    second.sequence.append_shared(&[restored]).expect("room");
    second.tokens = first.tokens.clone();
    second.check();
    let absent = store.restore_block("f32".parse().expect("a format"), |_, _| Ok::<(), Error>(()));
    assert!(matches!(absent, Err(Error::AbsentTier { .. })));
}

#[test]
fn released_blocks_leave_the_rest_in_place() {
    let pool = pool(4);
    let store = store("f16", &pool);
    let mut checked = Checked::new(&store, 500);
    checked.append(&ids(200, 0)).expect("room");
    let bytes = checked.sequence.bytes();
    checked.sequence.release_before(100);
    assert_eq!((checked.sequence.released(), checked.sequence.len()), (96, 200));
    assert!(checked.sequence.bytes() < bytes);
    checked.append(&ids(50, 800)).expect("room");
    checked.check();
    let mut fork = checked.fork();
    fork.append(&[3]).expect("room");
    fork.check();
    assert!(matches!(checked.sequence.truncate(95), Err(Error::Released { len: 95, released: 96 })));
    checked.truncate(96);
    checked.append(&ids(5, 0)).expect("room");
    checked.check();
    checked.truncate(0);
    assert_eq!(
        (checked.sequence.released(), checked.sequence.bytes()),
        (0, 0),
        "everything can be forgotten"
    );
}

#[test]
fn shapes_and_policies_must_fit() {
    let pool = pool(4);
    let odd = KvShape { head_dim: 48, ..SHAPE };
    let make = |shape, policy: &str| KvStore::new(shape, &policy.parse().expect(policy), &pool);
    assert!(matches!(make(odd, "q4"), Err(Error::Kernels(_))));
    assert!(matches!(make(odd, "f16:rotate=on"), Err(Error::PolicyConflict { .. })));
    let odd = KvShape { head_dim: 96, ..SHAPE };
    assert!(matches!(make(odd, "q8+turbo3"), Err(Error::PolicyConflict { .. })), "it rotates");
    assert!(make(SHAPE, "q8+turbo3").expect("32 values").rotated());
    let policy = "kivi2-g64".parse().expect("a policy");
    let error = KvStore::with_block_tokens(SHAPE, &policy, &pool, 32).expect_err("half a group");
    assert_eq!(error.to_string(), "blocks of 32 tokens: use a multiple of 64");
}
