//! The tree against a list of all prefixes, and what a lookup may not depend on.

use std::{cell::Cell, collections::HashMap, thread};

use proptest::prelude::*;
use ruvllm_testkit::Random;

use super::*;
use crate::prefix::Scope;

thread_local! {
    /// Labels that searches of this thread have compared.
    pub(super) static COMPARISONS: Cell<u64> = const { Cell::new(0) };
}

const BLOCK: usize = 4;

fn key(scope: Scope) -> PrefixKey {
    PrefixKey { model: [0; 32], adapter: None, kv_format: "f16".into(), rope_scaling: "none".into(), scope }
}

pub(super) fn tenant(name: &str) -> PrefixKey {
    key(Scope::Tenant(name.into()))
}

/// Blocks that name themselves.
fn named(first: u32, n_tokens: usize) -> Vec<u32> {
    (first..).take(n_tokens / BLOCK).collect()
}

impl<B: Clone> PrefixTree<B> {
    /// Checks the invariants of the tree.
    fn check(&self) {
        let state = self.state.read();
        let nodes = &state.nodes;
        let mut children_seen = 0;
        for (id, node) in nodes.iter() {
            let room = node.blocks.len() * self.block_tokens;
            let least =
                if node.children.is_empty() { (room + 1).saturating_sub(self.block_tokens) } else { room };
            assert!((least..=room).contains(&node.label.len()));
            match &node.parent {
                Parent::Key(key) => {
                    assert_eq!(state.roots.get(key), Some(&id));
                    assert!(node.blocks.is_empty() && !node.children.is_empty());
                }
                Parent::Node(parent) => {
                    assert!(!node.blocks.is_empty());
                    assert!(nodes.get(*parent).children.contains(&id));
                    assert!(
                        !node.children.is_empty() || self.leaves.holds(id),
                        "eviction would not find a leaf"
                    );
                }
            }
            let first = |id: &NodeId| nodes.get(*id).label.chunks(self.block_tokens).next().expect("a label");
            let apart = |a: &[u32], b: &[u32]| a < b && !b.starts_with(a);
            assert!(node.children.windows(2).all(|pair| apart(first(&pair[0]), first(&pair[1]))));
            for child in &node.children {
                assert!(matches!(nodes.get(*child).parent, Parent::Node(parent) if parent == id));
            }
            children_seen += node.children.len();
        }
        assert_eq!(children_seen + state.roots.len(), nodes.len());
        drop(state);
        let s = self.statistics();
        let ends = s.too_short + s.unknown_key + s.unknown_start + s.diverged + s.ended;
        assert_eq!(s.lookups, s.full_hits + ends);
        assert_eq!(s.inserted_blocks - s.replaced_blocks - s.evicted_blocks, s.blocks as u64);
    }
}

#[test]
fn a_match_says_why_it_ends() {
    let tree = PrefixTree::new(BLOCK);
    let key = key(Scope::Shared);
    let stored = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
    let end = |tokens: &[u32]| tree.lookup(&key, tokens).end;
    assert_eq!(end(&stored), MatchEnd::UnknownKey);
    let _ = tree.insert(&key, &stored, &named(0, 12));
    assert_eq!(end(&[]), MatchEnd::TooShort);
    assert_eq!(end(&[1]), MatchEnd::TooShort);
    assert_eq!(end(&[1, 2]), MatchEnd::Complete);
    assert_eq!(end(&stored), MatchEnd::Complete);
    assert_eq!(end(&[1, 2, 3, 9, 9]), MatchEnd::UnknownStart);
    assert_eq!(end(&[1, 2, 3, 4, 5, 6, 9, 9, 9]), MatchEnd::Diverged { at: 6 });
    assert_eq!(end(&[1, 2, 3, 4, 9, 9, 9, 9, 9]), MatchEnd::Diverged { at: 4 });
    assert_eq!(end(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]), MatchEnd::Ended { at: 12 });
    let s = tree.statistics();
    assert_eq!((s.lookups, s.full_hits, s.partial_hits), (9, 2, 4));
    assert_eq!((s.too_short, s.unknown_key, s.unknown_start, s.diverged, s.ended), (2, 1, 1, 2, 1));
    assert_eq!(s.hit_tokens, 8 + 4 + 4 + 12);
    assert_eq!(s.partial_tokens, 1 + 3 + 3 + 2);
    assert_eq!(s.missed_tokens, 12 + 1 + 1 + 1 + 2 + 3 + 5 + 2);
}

#[test]
fn a_continuation_is_what_followed_the_same_tokens_last() {
    let tree = PrefixTree::new(BLOCK);
    let mut blocks = 0..;
    let mut insert = |key: &PrefixKey, tokens: &[u32]| {
        let blocks: Vec<u32> = ends(tokens.len()).map(|_| blocks.next().expect("endless")).collect();
        tree.insert(key, tokens, &blocks);
    };
    let next = |key: &PrefixKey, tokens: &[u32], most: usize| {
        let mut next = Vec::new();
        tree.continuation(key, tokens, most, &mut next);
        next
    };
    let (a, b) = (tenant("a"), tenant("b"));
    let first: Vec<u32> = (0..4 * BLOCK as u32 + 1).collect();
    insert(&a, &first);
    for known in [1, BLOCK - 1, BLOCK, BLOCK + 1, 4 * BLOCK] {
        assert_eq!(next(&a, &first[..known], 3), first[known..][..3.min(first.len() - known)], "{known}");
    }
    assert_eq!(next(&a, &first, 3), [0; 0], "the end");
    assert_eq!(next(&a, &[first[0], 99], 3), [0; 0], "another token");
    assert_eq!(next(&a, &[], 3), [0; 0]);
    assert_eq!(next(&b, &first[..2], 3), [0; 0], "of another tenant");
    // A second prefix parts from the first one behind two blocks: the latest one is taken.
    let mut second = first[..2 * BLOCK].to_vec();
    second.extend((0..2 * BLOCK as u32).map(|i| 50 + i));
    insert(&a, &second);
    assert_eq!(next(&a, &second[..2 * BLOCK], 2), [50, 51]);
    drop(tree.lookup(&a, &first));
    assert_eq!(next(&a, &second[..2 * BLOCK], 2), first[2 * BLOCK..][..2]);
}

#[test]
fn the_last_token_is_left_to_compute() {
    let tree = PrefixTree::new(BLOCK);
    let key = key(Scope::Shared);
    let tokens = [1, 2, 3, 4, 5, 6, 7, 8];
    let _ = tree.insert(&key, &tokens, &[10, 11]);
    let found = tree.lookup(&key, &tokens);
    assert_eq!((found.blocks.as_slice(), found.tokens), (&[10][..], 4));
    let partial = found.partial.expect("three tokens of the second block agree");
    assert_eq!((partial.block, partial.tokens), (11, 3));
}

#[test]
fn an_insert_keeps_the_blocks_that_are_there() {
    let tree = PrefixTree::new(2);
    let key = key(Scope::Shared);
    let first = tree.insert(&key, &[1, 1, 2, 2, 3, 3], &[10, 20, 30]);
    assert_eq!((first.known.as_slice(), first.new_blocks), (&[][..], 3));
    let second = tree.insert(&key, &[1, 1, 2, 2, 4, 4, 5], &[11, 21, 40]);
    assert_eq!((second.known.as_slice(), second.new_blocks), (&[10, 20][..], 1));
    assert_eq!(tree.lookup(&key, &[1, 1, 2, 2, 4, 4, 0]).blocks, [10, 20, 40]);
    assert_eq!(tree.lookup(&key, &[1, 1, 2, 2, 3, 3, 0]).blocks, [10, 20, 30]);
    let s = tree.statistics();
    assert_eq!((s.inserted_blocks, s.known_blocks, s.blocks, s.keys), (4, 2, 4, 1));
    tree.check();
}

#[test]
fn a_block_that_is_not_full_gives_way_to_a_fuller_one() {
    let tree = PrefixTree::new(BLOCK);
    let key = key(Scope::Shared);
    let insert = |tokens: &[u32], blocks: &[u32]| {
        let inserted = tree.insert(&key, tokens, blocks);
        tree.check();
        (inserted.known, inserted.new_blocks, inserted.replaced)
    };
    let found = |tokens: &[u32]| {
        let found = tree.lookup(&key, tokens);
        let partial = found.partial.map(|partial| (partial.block, partial.tokens));
        (found.blocks, partial, found.end)
    };
    assert_eq!(insert(&[1, 2, 3, 4, 5, 6], &[10, 20]), (vec![], 2, vec![]));
    // A prompt beyond the six tokens copies two of the second block.
    let ended = MatchEnd::Ended { at: 6 };
    assert_eq!(found(&[1, 2, 3, 4, 5, 6, 7, 8, 9]), (vec![10], Some((20, 2)), ended));
    assert_eq!(found(&[1, 2, 3, 4, 5, 9, 9]), (vec![10], Some((20, 1)), MatchEnd::Diverged { at: 5 }));
    assert_eq!(found(&[1, 2, 3, 4, 5, 6, 7]), (vec![10], Some((20, 2)), MatchEnd::Complete));
    // The same again, and less of it, is known.
    assert_eq!(insert(&[1, 2, 3, 4, 5, 6], &[11, 21]), (vec![10], 0, vec![]));
    assert_eq!(insert(&[1, 2, 3, 4, 5], &[11, 21]), (vec![10], 0, vec![]));
    // More of it takes its place, be it full or not.
    assert_eq!(insert(&[1, 2, 3, 4, 5, 6, 7], &[12, 22]), (vec![10], 1, vec![20]));
    assert_eq!(insert(&[1, 2, 3, 4, 5, 6, 7, 8, 9], &[13, 23, 33]), (vec![10], 2, vec![22]));
    assert_eq!(found(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 0]), (vec![10, 23], Some((33, 1)), MatchEnd::Complete));
    // Another end stands beside it.
    assert_eq!(insert(&[1, 2, 3, 4, 5, 6, 0], &[14, 24]), (vec![10], 1, vec![]));
    assert_eq!(found(&[1, 2, 3, 4, 5, 6, 0, 0, 0]), (vec![10], Some((24, 3)), MatchEnd::Ended { at: 7 }));
    let s = tree.statistics();
    assert_eq!((s.inserted_blocks, s.replaced_blocks, s.known_blocks, s.blocks), (6, 2, 7, 4));
}

#[test]
fn eviction_takes_the_ends_that_were_not_used_for_longest() {
    let tree = PrefixTree::new(2);
    let key = key(Scope::Shared);
    let _ = tree.insert(&key, &[1, 1, 2, 2], &[10, 20]);
    let _ = tree.insert(&key, &[1, 1, 3, 3], &[10, 30]);
    let _ = tree.insert(&key, &[4, 4, 5, 5], &[40, 50]);
    let _ = tree.lookup(&key, &[1, 1, 2, 2, 0]);
    let evicted = |n| -> Vec<(Vec<u32>, Vec<u32>)> {
        let evicted = tree.evict(n).into_iter().map(|e| (e.tokens, e.blocks)).collect();
        tree.check();
        evicted
    };
    assert_eq!(evicted(1), [(vec![1, 1, 3, 3], vec![30])]);
    assert_eq!(evicted(1), [(vec![4, 4, 5, 5], vec![50])]);
    assert_eq!(evicted(2), [(vec![4, 4], vec![40]), (vec![1, 1, 2, 2], vec![20])]);
    assert_eq!(evicted(9), [(vec![1, 1], vec![10])]);
    assert_eq!(evicted(1), []);
    assert_eq!(tree.statistics().nodes, 0);
}

#[test]
fn a_pinned_path_stays_until_the_last_pin_is_gone() {
    let tree = PrefixTree::new(2);
    let key = key(Scope::Shared);
    let inserted = tree.insert(&key, &[1, 1, 2, 2, 3, 3], &[10, 20, 30]);
    let copy = inserted.pin.clone();
    // Splitting the edge must not loosen the pin of its lower part.
    let _ = tree.insert(&key, &[1, 1, 9, 9], &[10, 90]);
    drop(inserted);
    assert_eq!(tree.evict(9).len(), 1);
    assert_eq!(tree.lookup(&key, &[1, 1, 2, 2, 3, 3, 0]).tokens, 6);
    drop(copy);
    assert_eq!(tree.evict(9).iter().map(|e| e.blocks.len()).sum::<usize>(), 3);
    tree.check();
}

#[test]
fn a_pin_outlives_the_tree() {
    let tree = PrefixTree::new(1);
    let inserted = tree.insert(&key(Scope::Shared), &[1], &[10]);
    drop(tree);
    drop(inserted);
}

#[test]
fn tenants_find_what_is_theirs_or_shared() {
    let tree = PrefixTree::new(2);
    let (a, b, shared) = (tenant("a"), tenant("b"), key(Scope::Shared));
    let _ = tree.insert(&shared, &[1, 1], &[10]);
    let _ = tree.insert(&a, &[1, 1, 2, 2], &[10, 20]);
    let prompt = [1, 1, 2, 2, 3];
    assert_eq!(tree.lookup(&a, &prompt).blocks, [10, 20]);
    assert_eq!(tree.lookup(&b, &prompt).blocks, [10]);
    assert_eq!(tree.lookup(&shared, &prompt).blocks, [10]);
    let other = PrefixKey { kv_format: "q8".into(), ..a };
    assert_eq!(tree.lookup(&other, &prompt).end, MatchEnd::UnknownKey);
}

#[test]
fn a_lookup_takes_the_same_steps_whatever_another_tenant_has_inserted() {
    let steps = |other: &[Vec<u32>]| {
        let tree = PrefixTree::new(BLOCK);
        let (own, stranger) = (tenant("own"), tenant("stranger"));
        for tokens in other {
            let _ = tree.insert(&stranger, tokens, &named(0, tokens.len()));
        }
        for first in 0..20 {
            let _ = tree.insert(&own, &[first, 1, 2, 3, 4, 5, 6, 7], &named(first, 8));
        }
        let prompts =
            [[7, 1, 2, 3, 4, 5, 6, 7, 8], [7, 1, 2, 3, 4, 9, 9, 9, 9], [99, 1, 2, 3, 4, 5, 6, 7, 8]];
        prompts.map(|prompt| {
            COMPARISONS.set(0);
            let found = tree.lookup(&own, &prompt);
            (found.blocks, found.partial.map(|partial| partial.tokens), found.end, COMPARISONS.get())
        })
    };
    let alone = steps(&[]);
    // Even the very prompt.
    let mut crowd: Vec<Vec<u32>> = (0..500).map(|i| vec![i, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8]).collect();
    crowd.push(vec![99, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(steps(&crowd), alone);
    assert!(alone.iter().all(|(.., comparisons)| *comparisons > 0));
}

/// All prefixes that end with a block, be it full or not, with the block that stands for their end.
#[derive(Default)]
struct Naive {
    prefixes: HashMap<(usize, Vec<u32>), Known>,
    now: u64,
}

struct Known {
    block: u32,
    used: u64,
}

/// Ends of the blocks of `n_tokens` tokens, in tokens.
fn ends(n_tokens: usize) -> impl Iterator<Item = usize> {
    (0..n_tokens.div_ceil(BLOCK)).map(move |i| ((i + 1) * BLOCK).min(n_tokens))
}

impl Naive {
    fn touch(&mut self, key: usize, tokens: &[u32]) {
        self.now += 1;
        for end in ends(tokens.len()) {
            self.prefixes.get_mut(&(key, tokens[..end].to_vec())).expect("a known prefix").used = self.now;
        }
    }

    fn is_leaf(&self, key: usize, tokens: &[u32]) -> bool {
        let longer = |other: &Vec<u32>| other.len() > tokens.len() && other.starts_with(tokens);
        !self.prefixes.keys().any(|(other_key, other)| *other_key == key && longer(other))
    }

    /// Blocks of the longest known prefix, and how many more tokens some known prefix agrees in.
    fn lookup(&self, key: usize, tokens: &[u32]) -> (Vec<u32>, usize) {
        let wanted = &tokens[..tokens.len().saturating_sub(1)];
        let block = |end| self.prefixes.get(&(key, wanted[..end].to_vec())).map(|known| known.block);
        let blocks: Vec<u32> = (BLOCK..=wanted.len()).step_by(BLOCK).map_while(block).collect();
        let agreeing = |other: &[u32]| other.iter().zip(wanted).take_while(|(a, b)| a == b).count();
        let own = self.prefixes.keys().filter(|(other, _)| *other == key);
        let longest = own.map(|(_, other)| agreeing(other)).max().unwrap_or(0);
        let partial = longest - blocks.len() * BLOCK;
        (blocks, partial)
    }

    /// `true` if a block that is not full is known, as the beginning of a present one.
    fn knows_rest(&self, key: usize, tokens: &[u32]) -> bool {
        self.prefixes.keys().any(|(other, known)| *other == key && known.starts_with(tokens))
    }

    /// Takes out the block that is not full and with which `tokens` begin, if there is one.
    fn give_way(&mut self, key: usize, tokens: &[u32]) -> Option<u32> {
        let shorter = |(other, known): &&(usize, Vec<u32>)| {
            *other == key && !known.len().is_multiple_of(BLOCK) && tokens.starts_with(known)
        };
        let prefix = self.prefixes.keys().find(shorter)?.clone();
        self.prefixes.remove(&prefix).map(|known| known.block)
    }

    /// When the last block of `tokens`, or any before it, was last used.
    fn any_use(&self, key: usize, tokens: &[u32]) -> u64 {
        ends(tokens.len()).map(|end| self.prefixes[&(key, tokens[..end].to_vec())].used).max().unwrap_or(0)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Insert { key: usize, tokens: Vec<u32>, is_whole: bool, is_pinned: bool },
    Lookup { key: usize, tokens: Vec<u32>, is_pinned: bool },
    Unpin { nth: usize },
    Evict { n_blocks: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Few different tokens, so that prefixes meet and part everywhere.
    let tokens = || proptest::collection::vec(0..3u32, 0..6 * BLOCK);
    let near = || {
        (0..4u32, 0..6 * BLOCK).prop_map(|(last, n)| {
            let mut tokens = vec![1; n];
            tokens.push(last);
            tokens
        })
    };
    let any_tokens = move || prop_oneof![tokens(), near()];
    let insert = (0..2usize, any_tokens(), any::<bool>(), any::<bool>())
        .prop_map(|(key, tokens, is_whole, is_pinned)| Step::Insert { key, tokens, is_whole, is_pinned });
    let lookup = (0..2usize, any_tokens(), any::<bool>()).prop_map(|(key, tokens, is_pinned)| Step::Lookup {
        key,
        tokens,
        is_pinned,
    });
    let unpin = (0..8usize).prop_map(|nth| Step::Unpin { nth });
    let evict = (0..6usize).prop_map(|n_blocks| Step::Evict { n_blocks });
    proptest::collection::vec(prop_oneof![3 => insert, 3 => lookup, 1 => unpin, 1 => evict], 1..60)
}

/// The tree, the list of prefixes, and the pinned prefixes.
struct Twin {
    tree: PrefixTree<u32>,
    naive: Naive,
    keys: [PrefixKey; 2],
    pins: Vec<(usize, Vec<u32>, PrefixPin)>,
    next_block: u32,
}

impl Twin {
    fn step(&mut self, step: Step) {
        match step {
            Step::Insert { key, mut tokens, is_whole, is_pinned } => {
                if is_whole {
                    tokens.truncate(tokens.len() / BLOCK * BLOCK);
                }
                self.insert(key, &tokens, is_pinned);
            }
            Step::Lookup { key, tokens, is_pinned } => self.lookup(key, &tokens, is_pinned),
            Step::Unpin { nth } if nth < self.pins.len() => drop(self.pins.remove(nth)),
            Step::Unpin { .. } => {}
            Step::Evict { n_blocks } => self.evict(n_blocks),
        }
        self.tree.check();
    }

    fn insert(&mut self, key: usize, tokens: &[u32], is_pinned: bool) {
        let blocks: Vec<u32> = (self.next_block..).take(tokens.len().div_ceil(BLOCK)).collect();
        self.next_block += blocks.len() as u32;
        let inserted = self.tree.insert(&self.keys[key], tokens, &blocks);
        let n_known = inserted.known.len();
        let is_rest = |end: usize| !end.is_multiple_of(BLOCK);
        let knows_rest = is_rest(tokens.len()) && self.naive.knows_rest(key, tokens);
        assert_eq!(inserted.new_blocks, blocks.len() - n_known - usize::from(knows_rest));
        let gives_way = if inserted.new_blocks > 0 { self.naive.give_way(key, tokens) } else { None };
        assert_eq!(inserted.replaced, Vec::from_iter(gives_way));
        let mut used = 0;
        for (i, end) in ends(tokens.len()).enumerate() {
            let prefix = (key, tokens[..end].to_vec());
            let is_known = i < n_known;
            if !is_rest(end) {
                assert_eq!(self.naive.prefixes.contains_key(&prefix), is_known);
            } else if knows_rest {
                break;
            }
            let known = self.naive.prefixes.entry(prefix).or_insert(Known { block: blocks[i], used: 0 });
            assert!(!is_known || known.block == inserted.known[i]);
            used = end;
        }
        self.naive.touch(key, &tokens[..used]);
        if let Some(pin) = inserted.pin.filter(|_| is_pinned && used > 0) {
            self.pins.push((key, tokens[..used].to_vec(), pin));
        }
    }

    fn lookup(&mut self, key: usize, tokens: &[u32], is_pinned: bool) {
        let found = self.tree.lookup(&self.keys[key], tokens);
        let (blocks, partial) = self.naive.lookup(key, tokens);
        assert_eq!(found.blocks, blocks);
        assert_eq!(found.tokens, blocks.len() * BLOCK);
        assert_eq!(found.partial.as_ref().map_or(0, |partial| partial.tokens), partial);
        let mut used = tokens[..found.tokens].to_vec();
        if let Some(partial) = &found.partial {
            let agreeing = &tokens[..found.tokens + partial.tokens];
            let fits = |(prefix, known): &(&(usize, Vec<u32>), &Known)| {
                let is_next = prefix.0 == key && prefix.1.len().div_ceil(BLOCK) == found.tokens / BLOCK + 1;
                is_next && prefix.1.starts_with(agreeing) && known.block == partial.block
            };
            let (prefix, _) = self.naive.prefixes.iter().find(fits).expect("the block is a known one");
            used.clone_from(&prefix.1);
        }
        let is_complete = found.tokens + partial + 1 == tokens.len() && tokens.len() > 1;
        assert_eq!(found.end == MatchEnd::Complete, is_complete);
        self.naive.touch(key, &used);
        if let Some(pin) = found.pin.filter(|_| is_pinned) {
            self.pins.push((key, tokens[..found.tokens].to_vec(), pin));
        }
    }

    fn evict(&mut self, n_blocks: usize) {
        let evicted = self.tree.evict(n_blocks);
        let taken: usize = evicted.iter().map(|evicted| evicted.blocks.len()).sum();
        assert!(taken <= n_blocks);
        for evicted in evicted {
            let key = self.keys.iter().position(|key| *key == *evicted.key).expect("one of the keys");
            let ends: Vec<usize> = ends(evicted.tokens.len()).collect();
            let ends = &ends[ends.len() - evicted.blocks.len()..];
            for (&end, block) in ends.iter().zip(evicted.blocks).rev() {
                let tokens = &evicted.tokens[..end];
                assert!(self.naive.is_leaf(key, tokens), "a block was taken from inside a path");
                let pinned = |pin: &(usize, Vec<u32>, PrefixPin)| pin.0 == key && pin.1.starts_with(tokens);
                assert!(!self.pins.iter().any(pinned), "a pinned block was taken");
                self.check_age(key, tokens);
                let known = self.naive.prefixes.remove(&(key, tokens.to_vec())).expect("a known prefix");
                assert_eq!(known.block, block);
            }
        }
        if taken < n_blocks {
            for (key, tokens) in self.naive.prefixes.keys() {
                // A match inside an edge pins the edge to its end, so a pin may hold more than its
                // own prefix.
                let related = |pin: &(usize, Vec<u32>, PrefixPin)| {
                    pin.0 == *key && (pin.1.starts_with(tokens) || tokens.starts_with(&pin.1))
                };
                assert!(self.pins.iter().any(related), "a free block was left");
            }
        }
    }

    /// No other leaf may have been unused for longer. The tree keeps one time per edge, so an edge
    /// counts as used when any part of it was; what is certain is that a leaf none of whose path
    /// was used since goes first.
    fn check_age(&self, key: usize, tokens: &[u32]) {
        let used = self.naive.prefixes[&(key, tokens.to_vec())].used;
        for (other_key, other) in self.naive.prefixes.keys() {
            let related = |pin: &(usize, Vec<u32>, PrefixPin)| {
                pin.0 == *other_key && (pin.1.starts_with(other) || other.starts_with(&pin.1))
            };
            if self.naive.is_leaf(*other_key, other) && !self.pins.iter().any(related) {
                assert!(used <= self.naive.any_use(*other_key, other), "an older leaf was left");
            }
        }
    }
}

proptest! {
    #[test]
    fn the_tree_does_what_a_list_of_all_prefixes_does(steps in steps()) {
        let keys = [key(Scope::Shared), PrefixKey { kv_format: "q8".into(), ..key(Scope::Shared) }];
        let tree = PrefixTree::new(BLOCK);
        let mut twin = Twin { tree, naive: Naive::default(), keys, pins: Vec::new(), next_block: 0 };
        for step in steps {
            twin.step(step);
        }
        twin.pins.clear();
        twin.step(Step::Evict { n_blocks: usize::MAX });
        prop_assert!(twin.naive.prefixes.is_empty());
        prop_assert_eq!(twin.tree.statistics().nodes, 0);
    }
}

#[test]
fn readers_and_writers_work_side_by_side() {
    /// A block knows the prefix it stands for.
    type Block = Arc<Vec<u32>>;
    let tree = PrefixTree::<Block>::new(BLOCK);
    let blocks_of = |tokens: &[u32]| -> Vec<Block> {
        ends(tokens.len()).map(|end| Arc::new(tokens[..end].to_vec())).collect()
    };
    let work = |thread: u32| {
        let mut generator = Random::new(thread.into());
        let mut random = |n| generator.below(n);
        let keys = [tenant("a"), tenant("b")];
        let mut pinned: Vec<(usize, Match<Block>)> = Vec::new();
        for _ in 0..3_000 {
            let k = random(2);
            let tokens: Vec<u32> = (0..random(24)).map(|_| random(3) as u32).collect();
            match random(8) {
                0..3 => drop(tree.insert(&keys[k], &tokens, &blocks_of(&tokens))),
                3..6 => {
                    let found = tree.lookup(&keys[k], &tokens);
                    assert_eq!(found.blocks, blocks_of(&tokens[..found.tokens]));
                    if let Some(partial) = &found.partial {
                        assert!(partial.block.starts_with(&tokens[..found.tokens + partial.tokens]));
                    }
                    if found.pin.is_some() {
                        pinned.push((k, found));
                    }
                }
                6 => drop(tree.evict(random(5))),
                _ => {
                    // Pinned prefixes must be found unchanged.
                    if let Some((k, held)) = pinned.pop() {
                        let mut tokens = held.blocks.last().expect("a pin holds blocks").to_vec();
                        tokens.push(0);
                        assert_eq!(tree.lookup(&keys[k], &tokens).tokens, held.tokens);
                    }
                }
            }
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || work(thread))).collect();
        // The thread sanitizer sees a join, but not the end of a scope.
        threads.into_iter().for_each(|thread| thread.join().expect("the thread's checks hold"));
    });
    tree.check();
    // No pin is left, so everything can go, and nothing keeps a block.
    let weak: Vec<_> = tree.evict(usize::MAX).iter().flat_map(|e| &e.blocks).map(Arc::downgrade).collect();
    assert!(weak.iter().all(|block| block.upgrade().is_none()));
    assert_eq!(tree.statistics().blocks, 0);
}
