//! Many random operations over many sequences, each checked against the tokens that it should hold.

use ruvllm_kernels::ThreadPool;
use ruvllm_kv_cache::Block;
use ruvllm_testkit::Random;

use crate::oracle::{Checked, Token, kernels, pool, store};

const SEQUENCES: usize = 64;
const CAPACITY: usize = 400;

/// Counts of each operation; a run that exercised nothing would prove nothing.
#[derive(Debug, Default)]
struct Counts {
    appended: usize,
    refused: usize,
    forked: usize,
    cut: usize,
    freed: usize,
    kept: usize,
    started: usize,
    evicted: usize,
    migrated: usize,
}

impl Counts {
    /// Every operation took place often.
    fn check(self) {
        let Counts { appended, refused, forked, cut, freed, kept, started, evicted, migrated } = self;
        for (what, count) in [
            ("appended", appended),
            ("refused", refused),
            ("forked", forked),
            ("cut", cut),
            ("freed", freed),
            ("kept", kept),
            ("started from blocks", started),
            ("evicted", evicted),
            ("migrated", migrated),
        ] {
            assert!(count >= 20, "{what} only {count} times");
        }
    }
}

#[test]
fn ten_thousand_random_operations_keep_every_number() {
    let pool = pool(8);
    let free_pages = pool.stats().free_pages;
    let store = store("tiered:hot=64,sink=4,warm=kivi4,warm_tokens=96,cold=kivi2", &pool);
    let threads = ThreadPool::new(2).expect("threads");
    let mut random = Random::new(1);
    let mut counts = Counts::default();
    let mut sequences: Vec<Checked> = (0..SEQUENCES).map(|_| Checked::new(&store, CAPACITY)).collect();
    let mut prefixes: Vec<(Vec<Block>, Vec<Token>)> = Vec::new();
    for step in 0..10_000 {
        let (at, other) = (random.below(SEQUENCES), random.below(SEQUENCES));
        match random.below(100) {
            0..50 => {
                let n = (1 + random.below(60)).min(CAPACITY - sequences[at].tokens.len());
                let ids: Vec<u32> = (0..n).map(|_| random.next_u64() as u32).collect();
                match sequences[at].append(&ids) {
                    Ok(()) => counts.appended += 1,
                    // Room is made the way an engine does: prefixes that nobody uses, then whole
                    // sequences.
                    Err(_) => {
                        counts.refused += 1;
                        prefixes.clear();
                        sequences[other] = Checked::new(&store, CAPACITY);
                    }
                }
            }
            50..60 => {
                sequences[other] = sequences[at].fork();
                counts.forked += 1;
            }
            60..70 => {
                let len = random.below(sequences[at].tokens.len() + 1);
                sequences[at].truncate(len);
                counts.cut += 1;
            }
            70..74 => {
                sequences[at] = Checked::new(&store, CAPACITY);
                counts.freed += 1;
            }
            74..80 => {
                let n = random.below(sequences[at].sequence.blocks().len() + 1);
                prefixes.push(sequences[at].prefix(n));
                counts.kept += 1;
            }
            80..86 if !prefixes.is_empty() => {
                let (blocks, tokens) = &prefixes[random.below(prefixes.len())];
                let mut started = Checked::new(&store, CAPACITY);
                started.sequence.append_shared(blocks).expect("whole blocks within the capacity");
                started.tokens = tokens.clone();
                sequences[at] = started;
                counts.started += 1;
            }
            86..90 if !prefixes.is_empty() => {
                prefixes.swap_remove(random.below(prefixes.len()));
                counts.evicted += 1;
            }
            _ => {
                let limit = 1 + random.below(8);
                counts.migrated += sequences[at].sequence.migrate(&kernels(), &threads, limit).blocks;
            }
        }
        sequences[at].check();
        if step % 500 == 0 {
            sequences.iter_mut().for_each(Checked::check);
        }
    }
    counts.check();
    drop((sequences, prefixes));
    assert!(store.tiers().all(|tier| tier.blocks == 0), "no block is left");
    drop(store);
    assert_eq!(pool.stats().free_pages, free_pages, "every page is back");
}
