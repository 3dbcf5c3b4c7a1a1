//! The bytes that a prefix tree reports are the bytes that it allocates, and they are few beside
//! what it indexes.
//!
//! Alone in its binary, because it counts the allocations of the whole process.

use ruvllm_kv_cache::prefix::{PrefixKey, PrefixTree, Scope};
use ruvllm_testkit::allocator::{Counting, live_bytes};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const BLOCK: usize = 32;

/// Keys and values of one token in a model far smaller than any that is used: two layers, four
/// heads of 64 values, and two bits per value with their scales.
const KV_BYTES_PER_TOKEN: usize = 2 * 2 * 4 * 64 * 3 / 8;

fn key(tenant: usize) -> PrefixKey {
    PrefixKey {
        model: [0; 32],
        adapter: None,
        kv_format: "f16".into(),
        rope_scaling: "none".into(),
        scope: Scope::Tenant(format!("tenant {tenant}").into()),
    }
}

/// A prompt of `n_blocks` blocks whose last `n_own` blocks are its own.
fn prompt(i: usize, n_blocks: usize, n_own: usize) -> Vec<u32> {
    let mut tokens = vec![1; n_blocks * BLOCK];
    tokens[(n_blocks - n_own) * BLOCK] = i as u32 + 2;
    tokens
}

#[test]
fn the_tree_reports_the_bytes_that_it_allocates_and_they_are_few_beside_what_it_indexes() {
    // The last shape is the worst one: a node for every block.
    for (n_keys, n_prompts, n_blocks, n_own) in [(1, 100, 30, 30), (50, 20, 8, 3), (1, 20_000, 1, 1)] {
        let before = live_bytes();
        let tree = PrefixTree::<u64>::new(BLOCK);
        for k in 0..n_keys {
            let key = key(k);
            for i in 0..n_prompts {
                let blocks: Vec<u64> = (0..n_blocks as u64).collect();
                drop(tree.insert(&key, &prompt(i, n_blocks, n_own), &blocks));
            }
        }
        let check = |when: &str| {
            let allocated = live_bytes() - before;
            let statistics = tree.statistics();
            let reported = statistics.bytes;
            // The size of a hash table is not public, so the report derives it from the capacity.
            // That leaves out places of removed entries, how many depends on their hashes: a small
            // table may count as half of what it is.
            let tolerance = 1024 + allocated / 100;
            assert!(
                reported.abs_diff(allocated) <= tolerance,
                "{when}: {reported} reported, {allocated} allocated"
            );
            statistics
        };
        let full = check("full");
        let expected = n_keys * (n_blocks - n_own + n_prompts * n_own);
        assert_eq!(full.blocks, expected);
        let indexed = full.blocks * BLOCK * KV_BYTES_PER_TOKEN;
        let share = 100.0 * full.bytes as f64 / indexed as f64;
        println!("{} blocks in {} nodes: {} bytes, {share:.2} %", full.blocks, full.nodes, full.bytes);
        assert!(share <= 5.0, "{} bytes of tree for {indexed} bytes of keys and values", full.bytes);
        drop(tree.evict(full.blocks / 2));
        check("half empty");
        drop(tree.evict(full.blocks));
        assert_eq!(check("empty").blocks, 0);
    }
}
