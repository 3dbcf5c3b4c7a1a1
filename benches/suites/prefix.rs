//! The prefix cache: looking up, inserting and evicting in a tree of 100,000 prefixes, and the
//! store on disk.

use std::hint::black_box;

use ruvllm_benches::{Suite, Work};
use ruvllm_kv_cache::prefix::{PrefixKey, PrefixStore, PrefixTree, Scope};

const BLOCK: usize = 32;

fn main() {
    let mut suite = Suite::new();
    tree(&mut suite);
    store(&mut suite);
    suite.finish();
}

fn key() -> PrefixKey {
    PrefixKey {
        model: [0; 32],
        adapter: None,
        kv_format: "f16".into(),
        rope_scaling: "none".into(),
        scope: Scope::Tenant("bench".into()),
    }
}

/// Tokens of a text, unique for each name.
fn text(name: [u32; 3], n_tokens: usize) -> impl Iterator<Item = u32> {
    let mut state = name.into_iter().fold(0x9e37_79b9_7f4a_7c15_u64, |state, part| {
        (state ^ u64::from(part)).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(31)
    });
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 48) as u32
    })
    .take(n_tokens)
}

/// A prompt of `n_blocks` blocks and a last token. Prompts of a `group` share exactly `n_shared`
/// blocks.
fn prompt(group: u32, member: u32, n_shared: usize, n_blocks: usize) -> Vec<u32> {
    let block = |i: usize| {
        let owner = if i < n_shared { 0 } else { member + 1 };
        text([group, owner, i as u32], BLOCK)
    };
    (0..n_blocks).flat_map(block).chain([0]).collect()
}

/// Trees of 100,000 prefixes: 1,000 groups that share their start, and one in which no two prefixes
/// share anything, so that all are children of the root.
fn tree(suite: &mut Suite) {
    let n_prefixes: u32 = if suite.is_test() { 100 } else { 100_000 };
    for (name, n_groups, n_shared, n_blocks) in
        [("grouped", n_prefixes / 100, 4, 6), ("flat", n_prefixes, 0, 2)]
    {
        let members = n_prefixes / n_groups;
        let tree = PrefixTree::<u64>::new(BLOCK);
        let key = key();
        let blocks: Vec<u64> = (0..n_blocks as u64).collect();
        for (group, member) in (0..n_groups).flat_map(|group| (0..members).map(move |m| (group, m))) {
            drop(tree.insert(&key, &prompt(group, member, n_shared, n_blocks), &blocks));
        }
        let filled = tree.statistics();
        assert_eq!(filled.blocks, n_groups as usize * n_shared + n_prefixes as usize * (n_blocks - n_shared));
        let id = |what: &str| format!("{what} {name} prefixes={n_prefixes}");
        let tokens = n_blocks * BLOCK;
        let work = Work { bytes: tokens as u64 * 4, flops: 0 };

        // Prompts scattered over the tree, so that the CPU caches do not hold the nodes.
        let spread = |i: u32| i.wrapping_mul(0x9e37_79b1);
        let prompts = |extra: u32| -> Vec<Vec<u32>> {
            let of = |i| prompt(spread(i) % n_groups, spread(i) / 7 % members + extra, n_shared, n_blocks);
            (0..4096.min(n_prefixes)).map(of).collect()
        };
        let known = prompts(0);
        let mut next = known.iter().cycle();
        suite.measure("prefix_lookup", &id("hit"), work, || {
            let found = tree.lookup(&key, next.next().expect("an endless list"));
            assert_eq!(black_box(found).tokens, tokens);
        });
        let unknown = prompts(members);
        let mut next = unknown.iter().cycle();
        suite.measure("prefix_lookup", &id("part"), work, || {
            let found = tree.lookup(&key, next.next().expect("an endless list"));
            assert_eq!(black_box(found).tokens, n_shared * BLOCK);
        });
        let mut fresh = unknown;
        let mut turn = 0;
        suite.measure("prefix_tree", &id("insert+evict"), work, || {
            // No prompt repeats, so the unshared blocks are always inserted.
            turn += 1;
            let prompt = &mut fresh[turn % n_prefixes.min(4096) as usize];
            prompt[n_shared * BLOCK] = (1 << 20) + turn as u32;
            let n_new = tree.insert(&key, prompt, &blocks).new_blocks;
            assert_eq!(n_new, n_blocks - n_shared);
            assert_eq!(tree.evict(n_new).iter().map(|evicted| evicted.blocks.len()).sum::<usize>(), n_new);
        });
        println!(
            "{name}: {n_prefixes} prefixes, {} blocks in {} nodes: {} bytes, {:.0} per block\n",
            filled.blocks,
            filled.nodes,
            filled.bytes,
            filled.bytes as f64 / filled.blocks as f64
        );
    }
}

/// A prefix of 1,000 tokens of a model of 16 layers with 8 heads of 64 values in 16 bits: 1 MiB per
/// block.
fn store(suite: &mut Suite) {
    let (n_blocks, payload_bytes) = if suite.is_test() { (2, 1024) } else { (31, 1 << 20) };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = PrefixStore::open(folder.path(), BLOCK, u64::MAX).expect("a store");
    let key = key();
    let tokens = prompt(0, 0, 0, n_blocks);
    let mut payload = vec![7; payload_bytes];
    for end in 1..=n_blocks {
        store.put(&key, &tokens[..end * BLOCK], &[&payload]).expect("a stored block");
    }
    let id = format!("tokens={}", n_blocks * BLOCK);
    suite.measure("prefix_store_find", &id, Work { bytes: tokens.len() as u64 * 4, flops: 0 }, || {
        assert_eq!(store.find(&key, &tokens, 0).chain.len(), n_blocks);
    });
    let work = Work { bytes: (n_blocks * payload_bytes) as u64, flops: 0 };
    suite.measure("prefix_store_find+load", &id, work, || {
        for entry in &store.find(&key, &tokens, 0).chain {
            store.load(entry, &mut [&mut payload]).expect("a payload");
        }
    });
    let mut group = 0;
    let work = Work { bytes: payload_bytes as u64, flops: 0 };
    suite.measure("prefix_store_put", &format!("bytes={payload_bytes}"), work, || {
        group += 1;
        store.put(&key, &prompt(group, 0, 0, 1)[..BLOCK], &[&payload]).expect("a stored block");
    });
}
