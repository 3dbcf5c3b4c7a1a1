//! Steps that are begun, dropped and committed in any order.

use proptest::prelude::*;
use ruvllm_kernels::ThreadPool;
use ruvllm_kv_cache::{Error, KvStore};
use ruvllm_memory::PagePool;

use crate::oracle::{Checked, Token, kernels, pool, store, write};

const SEQUENCES: usize = 3;
const CAPACITY: usize = 200;

#[derive(Debug, Clone)]
enum Operation {
    /// Steps of two sequences, both begun before one ends: for each whether it is committed, and
    /// which ends first.
    Steps {
        at: [usize; 2],
        tokens: [usize; 2],
        commit: [bool; 2],
        last_first: bool,
    },
    Fork {
        from: usize,
        to: usize,
    },
    Truncate {
        at: usize,
        percent: usize,
    },
    Migrate {
        at: usize,
    },
}

fn operation() -> impl Strategy<Value = Operation> {
    let two = (0..SEQUENCES, 1..SEQUENCES).prop_map(|(a, offset)| [a, (a + offset) % SEQUENCES]);
    let steps = (two.clone(), [0usize..70, 0..70], any::<[bool; 2]>(), any::<bool>());
    prop_oneof![
        4 => steps.prop_map(|(at, tokens, commit, last_first)| Operation::Steps { at, tokens, commit, last_first }),
        1 => two.prop_map(|[from, to]| Operation::Fork { from, to }),
        1 => (0..SEQUENCES, 0usize..=100).prop_map(|(at, percent)| Operation::Truncate { at, percent }),
        1 => (0..SEQUENCES).prop_map(|at| Operation::Migrate { at }),
    ]
}

/// Sequences of one store, and the memory that they are in.
struct World {
    sequences: Vec<Checked>,
    store: KvStore,
    pool: PagePool,
    /// `true` to begin steps that will be dropped.
    begins_dropped: bool,
}

impl World {
    fn new(policy: &str, begins_dropped: bool) -> Self {
        let pool = pool(16);
        let store = store(policy, &pool);
        let sequences = (0..SEQUENCES).map(|_| Checked::new(&store, CAPACITY)).collect();
        Self { sequences, store, pool, begins_dropped }
    }

    fn apply(&mut self, operation: &Operation, first_id: u32) {
        match *operation {
            Operation::Steps { at, tokens, commit, last_first } => {
                let ids = tokens.map(|n| (first_id..).take(n).collect::<Vec<u32>>());
                let pair = self.sequences.get_disjoint_mut(at).expect("two sequences");
                let begun = pair.into_iter().zip(ids).zip(commit).filter_map(|((checked, ids), commit)| {
                    checked.observe();
                    if !commit && !self.begins_dropped {
                        return None;
                    }
                    let Checked { sequence, tokens } = checked;
                    let mut step = sequence.step(&kernels(), ids.len()).ok()?;
                    write(&mut step, &ids);
                    Some((step, tokens, ids, commit))
                });
                let mut begun: Vec<_> = begun.collect();
                if last_first {
                    begun.reverse();
                }
                for (step, tokens, ids, commit) in begun {
                    if commit {
                        step.commit();
                        tokens.extend(ids.into_iter().map(Token::new));
                    }
                }
            }
            Operation::Fork { from, to } => self.sequences[to] = self.sequences[from].fork(),
            Operation::Truncate { at, percent } => {
                let len = self.sequences[at].tokens.len() * percent / 100;
                self.sequences[at].truncate(len);
            }
            Operation::Migrate { at } => {
                self.sequences[at].sequence.migrate(&kernels(), &ThreadPool::single(), usize::MAX);
            }
        }
        self.sequences.iter_mut().for_each(Checked::check);
    }

    /// Lengths, allocated bytes and the bytes of whole blocks of every sequence, and the blocks of
    /// each tier.
    fn state(&self) -> impl PartialEq + std::fmt::Debug + use<> {
        let sequences = self.sequences.iter().map(|Checked { sequence, .. }| {
            let blocks =
                sequence.blocks().iter().map(|block| block.pin().layers().flatten().copied().collect());
            (sequence.len(), sequence.bytes(), blocks.collect::<Vec<Vec<u8>>>())
        });
        let tiers = self.store.tiers().map(|tier| tier.blocks);
        (sequences.collect::<Vec<_>>(), tiers.collect::<Vec<_>>())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn dropped_steps_leave_no_trace(
        policy in prop::sample::select(vec!["f16", "q8+q4", "kivi4", "tiered:hot=32,sink=0,warm=q8,warm_tokens=32"]),
        operations in prop::collection::vec(operation(), 1..24),
    ) {
        let mut found = World::new(policy, true);
        let mut expected = World::new(policy, false);
        let free_pages = found.pool.stats().free_pages;
        for (index, operation) in operations.iter().enumerate() {
            let first_id = 1000 * index as u32;
            found.apply(operation, first_id);
            expected.apply(operation, first_id);
            prop_assert!(found.state() == expected.state(), "{operation:?}");
        }
        let World { sequences, store, pool, .. } = found;
        drop((sequences, store));
        prop_assert_eq!(pool.stats().free_pages, free_pages);
    }
}

#[test]
fn a_dropped_step_returns_its_pages() {
    let pool = pool(8);
    let store = store("f32", &pool);
    let mut checked = Checked::new(&store, 2000);
    checked.append(&(0..40).collect::<Vec<u32>>()).expect("room");
    let level = (pool.stats().free_pages, checked.sequence.bytes());
    let step = checked.sequence.step(&kernels(), 1900).expect("room");
    assert!(pool.stats().free_pages < level.0);
    drop(step);
    // The slab keeps one of the pages that became empty.
    assert_eq!((pool.stats().free_pages, checked.sequence.bytes()), (level.0 - 1, level.1));
    checked.check();
}

#[test]
fn a_step_that_fails_changes_nothing() {
    let pool = pool(1);
    let store = store("f32", &pool);
    let mut first = Checked::new(&store, 1 << 20);
    first.append(&(0..40).collect::<Vec<u32>>()).expect("room");
    let mut fork = first.fork();
    let level = store.tiers().map(|tier| tier.blocks).sum::<usize>();
    assert!(matches!(fork.sequence.step(&kernels(), 10_000), Err(Error::Memory { .. })));
    assert!(matches!(fork.sequence.step(&kernels(), 1 << 20), Err(Error::Full { .. })));
    assert_eq!(store.tiers().map(|tier| tier.blocks).sum::<usize>(), level);
    first.check();
    fork.check();
    fork.append(&[7]).expect("room for one more block");
    fork.check();
    first.check();
}

#[test]
#[should_panic(expected = "keys and values of 3 tokens")]
fn a_step_takes_the_tokens_it_was_begun_for() {
    let pool = pool(1);
    let mut sequence = store("f32", &pool).sequence(100);
    let mut step = sequence.step(&kernels(), 3).expect("room");
    write(&mut step, &[1, 2, 3, 4]);
}
