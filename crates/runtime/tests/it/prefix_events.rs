//! Events of prefixes that are stored and evicted.

use std::collections::HashSet;
use std::time::Duration;

use ruvllm::{BlockHash, Engine, PrefixCaching, PrefixEvent, PrefixEvents, Prompt, Tenant};

use crate::common::{complete, greedy, load, tiny_options, tiny_path};

/// Tokens of a block.
const BLOCK: u32 = 32;

/// Tokens of blocks, each other for another seed.
fn tokens(blocks: u32, seed: u32) -> Vec<u32> {
    (0..blocks * BLOCK).map(|i| 3 + (seed * 131 + i * 7) % 400).collect()
}

fn run(engine: &Engine, tokens: &[u32]) {
    complete(engine, &greedy(Prompt::Tokens(tokens.to_vec()), 1));
}

fn events(events: &mut PrefixEvents) -> Vec<PrefixEvent> {
    events.next(Duration::ZERO)
}

#[test]
fn stored_blocks_form_chains_from_the_first_token_on() {
    let engine = load(tiny_path(), &tiny_options().with_prefixes(PrefixCaching::Memory));
    let mut reader = engine.prefix_events(&Tenant::root()).expect("the cache is on");
    assert_eq!(reader.block_tokens(), BLOCK as usize);
    assert_eq!(events(&mut reader), [PrefixEvent::Cleared]);
    let first = tokens(4, 0);
    run(&engine, &first);
    let [PrefixEvent::Stored { parent: None, hashes, tokens: stored }] = &events(&mut reader)[..] else {
        panic!("one chain of blocks");
    };
    assert_eq!((hashes.len(), stored), (4, &first));
    // The second half differs.
    let second = [&first[..64], &tokens(2, 9)].concat();
    run(&engine, &second);
    let [PrefixEvent::Stored { parent, hashes: after, tokens: stored }] = &events(&mut reader)[..] else {
        panic!("one chain of blocks");
    };
    assert_eq!((*parent, after.len(), &stored[..]), (Some(hashes[1]), 2, &second[64..]));
    // The same blocks for a reader who comes later, and nothing for one who has read all.
    let mut late = engine.prefix_events(&Tenant::root()).expect("the cache is on");
    let all: HashSet<BlockHash> = events(&mut late).iter().flat_map(stored_hashes).collect();
    assert_eq!(all, hashes.iter().chain(after).copied().collect());
    assert!(events(&mut reader).is_empty());
    let off = load(tiny_path(), &tiny_options().with_prefixes(PrefixCaching::Off));
    assert!(off.prefix_events(&Tenant::root()).is_none());
}

fn stored_hashes(event: &PrefixEvent) -> Vec<BlockHash> {
    match event {
        PrefixEvent::Stored { hashes, .. } => hashes.clone(),
        _ => Vec::new(),
    }
}

#[test]
fn a_reader_knows_after_evictions_what_a_new_reader_is_told() {
    let options = tiny_options().with_kv_budget(2 << 20).with_context(512);
    let engine = load(tiny_path(), &options.with_prefixes(PrefixCaching::Memory));
    let mut reader = engine.prefix_events(&Tenant::root()).expect("the cache is on");
    let (mut known, mut removed) = (HashSet::new(), 0);
    for seed in 0..60 {
        run(&engine, &tokens(12, seed));
        for event in events(&mut reader) {
            match &event {
                PrefixEvent::Cleared => known.clear(),
                PrefixEvent::Stored { parent, hashes, tokens } => {
                    assert!(parent.is_none_or(|parent| known.contains(&parent)));
                    assert_eq!(tokens.len(), hashes.len() * BLOCK as usize);
                    assert!(hashes.iter().all(|&hash| known.insert(hash)), "stored twice");
                }
                PrefixEvent::Removed { hashes } => {
                    removed += hashes.len();
                    assert!(hashes.iter().all(|hash| known.remove(hash)), "removed twice");
                }
                _ => {}
            }
        }
    }
    assert!(removed > 0, "the budget holds all prefixes");
    let mut late = engine.prefix_events(&Tenant::root()).expect("the cache is on");
    assert_eq!(known, events(&mut late).iter().flat_map(stored_hashes).collect());
}

#[test]
fn tenants_learn_of_their_own_prefixes_and_of_shared_ones() {
    let engine = load(tiny_path(), &tiny_options().with_prefixes(PrefixCaching::Memory));
    let other = engine.kv_store().pool().tenant("other").expect("a tenant");
    let mut readers =
        [Tenant::root(), other.clone()].map(|tenant| engine.prefix_events(&tenant).expect("the cache is on"));
    let request = greedy(Prompt::Tokens(tokens(2, 0)), 1);
    complete(&engine, &request);
    let [own, foreign] = readers.each_mut().map(events);
    assert_eq!((own.len(), foreign), (2, vec![PrefixEvent::Cleared]));
    // The same tokens of the other tenant are other blocks with the same hashes.
    complete(&engine, &request.with_tenant(other));
    let [nothing, stored] = readers.each_mut().map(events);
    assert!(nothing.is_empty());
    assert_eq!(stored, own[1..]);
}
