//! Sequences with a state besides keys and values.

use proptest::prelude::*;
use ruvllm_kv_cache::{Block, Error, KvStore, Replay, Sequence, SnapshotUse, StateSnapshot};

use crate::oracle::{SHAPE, kernels, pool, store};

const VALUES: usize = 5;
const BLOCK: usize = 32;
const SEQUENCES: usize = 3;

#[derive(Debug, Clone)]
enum Operation {
    Step { at: usize, tokens: usize, is_committed: bool },
    Draft { at: usize, tokens: usize, kept: usize },
    Fork { from: usize, to: usize },
    Cut { at: usize, len: usize },
    Snapshot { at: usize },
    Return { at: usize },
    Begin { at: usize },
}

fn operation() -> impl Strategy<Value = Operation> {
    let at = || 0..SEQUENCES;
    prop_oneof![
        6 => (at(), 1usize..40, any::<bool>())
            .prop_map(|(at, tokens, is_committed)| Operation::Step { at, tokens, is_committed }),
        3 => (at(), 1usize..40, 0usize..40)
            .prop_map(|(at, tokens, kept)| Operation::Draft { at, tokens, kept: kept % (tokens + 1) }),
        2 => (at(), at()).prop_map(|(from, to)| Operation::Fork { from, to }),
        2 => (at(), prop_oneof![Just(0), 1usize..200])
            .prop_map(|(at, len)| Operation::Cut { at, len }),
        2 => at().prop_map(|at| Operation::Snapshot { at }),
        1 => at().prop_map(|at| Operation::Return { at }),
        1 => at().prop_map(|at| Operation::Begin { at }),
    ]
}

/// State behind another token: different for every history.
fn next(state: [f32; VALUES], token: f32) -> [f32; VALUES] {
    std::array::from_fn(|i| state[i] * 0.5 + token * (i + 1) as f32)
}

/// A sequence and what its state should be: token `i` is `salt + i`.
struct Modelled {
    sequence: Sequence,
    expected: [f32; VALUES],
    /// State at the last block border where a step ended, and its tokens.
    border: (usize, [f32; VALUES]),
}

impl Modelled {
    fn new(store: &KvStore) -> Self {
        let sequence = store.sequence(2000).with_state(VALUES);
        Self { sequence, expected: [0.0; VALUES], border: (0, [0.0; VALUES]) }
    }

    fn fork(&mut self) -> Self {
        Self { sequence: self.sequence.fork(), ..*self }
    }

    /// Runs a step, in two parts as two layers would.
    fn step(&mut self, tokens: usize, is_committed: bool) -> Result<(), TestCaseError> {
        self.run(tokens, is_committed, false)
    }

    /// Runs a step and drops its tokens but the first `kept`.
    fn draft(&mut self, tokens: usize, kept: usize) -> Result<(), TestCaseError> {
        let (first, before) = (self.sequence.len(), self.expected);
        self.run(tokens, true, true)?;
        prop_assert_eq!(self.sequence.rewindable(), tokens);
        let replay = |replay: Replay<'_>| {
            assert_eq!((replay.before, replay.journal.len(), replay.tokens), (&before[..], tokens, kept));
            let behind = replay.journal[..kept].iter().fold(before, |state, &token| next(state, token));
            replay.after.copy_from_slice(&behind);
        };
        self.sequence.rewind(first + kept, replay).expect("the last step has a journal");
        prop_assert_eq!(self.sequence.len(), first + kept);
        if kept < tokens {
            let state = (first..first + kept).fold(before, |state, token| next(state, token as f32));
            self.took(first + kept, state);
            prop_assert_eq!(self.sequence.rewindable(), 0);
        }
        Ok(())
    }

    fn run(&mut self, tokens: usize, is_committed: bool, has_journal: bool) -> Result<(), TestCaseError> {
        let first = self.sequence.len();
        let behind = (first..first + tokens).fold(self.expected, |state, token| next(state, token as f32));
        let mut step = self.sequence.step(&kernels(), tokens).expect("room");
        if has_journal {
            step.keep_journal(tokens).expect("memory");
            step.journal().iter_mut().zip(first..).for_each(|(note, token)| *note = token as f32);
        }
        let rows = vec![0.0; tokens * SHAPE.width()];
        for layer in 0..SHAPE.n_layers {
            step.write(&kernels(), layer, &rows, &rows);
        }
        for range in [0..2, 2..VALUES] {
            let (before, after) = step.state(range.clone());
            prop_assert_eq!(before, &self.expected[range.clone()]);
            after.copy_from_slice(&behind[range]);
        }
        if is_committed {
            step.commit();
            self.expected = behind;
            if self.sequence.len().is_multiple_of(BLOCK) {
                self.border = (self.sequence.len(), behind);
            }
        }
        Ok(())
    }

    /// Takes the state of a snapshot of `len` tokens.
    fn took(&mut self, len: usize, state: [f32; VALUES]) {
        self.expected = state;
        if len > 0 && len.is_multiple_of(BLOCK) {
            self.border = (len, state);
        } else if self.border.0 > len {
            self.border = (0, [0.0; VALUES]);
        }
    }

    fn cut(&mut self, len: usize) -> Result<(), TestCaseError> {
        let before = self.sequence.len();
        let most = self.sequence.truncatable(len);
        let is_possible = len >= before || len == 0 || len == self.border.0;
        prop_assert_eq!(self.sequence.truncate(len).is_ok(), is_possible);
        prop_assert_eq!(
            most,
            if len >= before {
                before
            } else if self.border.0 <= len {
                self.border.0
            } else {
                0
            }
        );
        match () {
            () if !is_possible || len >= before && len > 0 => prop_assert_eq!(self.sequence.len(), before),
            () if len == 0 => {
                *self = Self {
                    sequence: self.sequence.fork(),
                    expected: [0.0; VALUES],
                    border: (0, [0.0; VALUES]),
                }
            }
            () => self.expected = self.border.1,
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64 * ProptestConfig::default().cases / 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn states_follow_what_was_committed(operations in prop::collection::vec(operation(), 1..40)) {
        let pool = pool(8);
        let store = store("f16", &pool);
        let mut sequences: Vec<_> = (0..SEQUENCES).map(|_| Modelled::new(&store)).collect();
        // With its state, and the whole blocks of its sequence.
        let mut kept: Option<(StateSnapshot, [f32; VALUES], Vec<Block>)> = None;
        for operation in operations {
            match operation {
                Operation::Step { at, tokens, is_committed } => sequences[at].step(tokens, is_committed)?,
                Operation::Draft { at, tokens, kept } => sequences[at].draft(tokens, kept)?,
                Operation::Fork { from, to } => sequences[to] = sequences[from].fork(),
                Operation::Cut { at, len } => sequences[at].cut(len)?,
                Operation::Snapshot { at } => {
                    let Modelled { sequence, expected, border } = &sequences[at];
                    let snapshot = sequence.snapshot().expect("room");
                    prop_assert_eq!(snapshot.tokens(), sequence.len());
                    prop_assert_eq!(sequence.border(), border.0);
                    let at_border = sequence.border_snapshot().expect("room");
                    prop_assert_eq!(at_border.map_or(0, |snapshot| snapshot.tokens()), border.0);
                    kept = Some((snapshot, *expected, sequence.blocks().to_vec()));
                    prop_assert_eq!(store.snapshots().snapshots, 1);
                }
                Operation::Return { at } => {
                    let Some((snapshot, state, _)) = &kept else { continue };
                    let own = &mut sequences[at];
                    let fits = snapshot.tokens() <= own.sequence.len();
                    prop_assert_eq!(own.sequence.return_to(snapshot).is_ok(), fits);
                    if fits {
                        prop_assert_eq!(own.sequence.len(), snapshot.tokens());
                        own.took(snapshot.tokens(), *state);
                    }
                }
                Operation::Begin { at } => {
                    let Some((snapshot, state, blocks)) = &kept else { continue };
                    let mut own = Modelled::new(&store);
                    let fits = snapshot.tokens() == blocks.len() * BLOCK && snapshot.tokens() > 0;
                    if own.sequence.begin_with(blocks, snapshot).is_ok() {
                        prop_assert!(fits || snapshot.tokens() == 0);
                        own.took(snapshot.tokens(), *state);
                        sequences[at] = own;
                    } else {
                        prop_assert!(!fits);
                    }
                }
            }
        }
        for own in &mut sequences {
            prop_assert_eq!(own.sequence.state_values(), VALUES);
            own.step(1, true)?;
        }
        drop(kept);
        prop_assert_eq!(store.snapshots(), SnapshotUse::default());
    }
}

#[test]
fn other_numbers_of_tokens_have_no_state() {
    let pool = pool(8);
    let store = store("f16", &pool);
    let mut own = Modelled::new(&store);
    own.step(70, true).expect("a step");
    let error = own.sequence.truncate(64).expect_err("a state of 70 tokens");
    assert!(matches!(error, Error::StateOfAll { len: 64, tokens: 70, border: 0 }), "{error:?}");
    own.step(26, true).expect("a step to a border");
    own.step(3, true).expect("a step beyond it");
    let error = own.sequence.truncate(97).expect_err("a state of 99 tokens");
    assert!(matches!(error, Error::StateOfAll { len: 97, tokens: 99, border: 96 }), "{error:?}");
    own.sequence.truncate(99).expect("nothing to drop");
    let blocks = own.sequence.blocks().to_vec();
    let mut other = store.sequence(200).with_state(VALUES);
    let error = other.append_shared(&blocks).expect_err("blocks have no state");
    assert!(matches!(error, Error::StateOfAll { .. }), "{error:?}");
    assert!(other.append_copy(&kernels(), &blocks[0], 3).is_err());
    let snapshot = own.sequence.border_snapshot().expect("room").expect("a border");
    let error = other.begin_with(&blocks[..2], &snapshot).expect_err("a snapshot of three blocks");
    assert!(matches!(error, Error::OtherState { found_tokens: 96, tokens: 64, .. }), "{error:?}");
    let mut wider = store.sequence(200).with_state(VALUES + 1);
    assert!(matches!(wider.begin_with(&blocks, &snapshot), Err(Error::OtherState { .. })));
    assert!(matches!(own.sequence.begin_with(&blocks, &snapshot), Err(Error::StateOfAll { .. })));
    assert!(matches!(store.sequence(200).snapshot(), Err(Error::Stateless)));
    own.step(1, true).expect("nothing has changed");
    own.sequence.truncate(0).expect("0 tokens have a state");
    assert!(own.sequence.is_empty() && own.sequence.border() == 0);
}

#[test]
fn drafts_of_earlier_steps_and_without_a_journal_stay() {
    let pool = pool(8);
    let store = store("f16", &pool);
    let mut own = Modelled::new(&store);
    let unused = |_: Replay<'_>| panic!("nothing can be computed again");
    own.step(40, true).expect("a step without a journal");
    assert!(matches!(own.sequence.rewind(38, unused), Err(Error::StateOfAll { len: 38, .. })));
    own.draft(6, 6).expect("a draft that was right");
    assert!(matches!(own.sequence.rewind(39, unused), Err(Error::StateOfAll { len: 39, .. })));
    own.step(2, true).expect("the next step");
    assert!(matches!(own.sequence.rewind(45, unused), Err(Error::StateOfAll { len: 45, .. })));
    own.step(1, true).expect("nothing has changed");
}

#[test]
fn a_sequence_has_three_buffers_of_its_state_and_a_snapshot_is_in_the_budget() {
    let pool = pool(8);
    let store = store("f16", &pool);
    let mut own = Modelled::new(&store);
    (0..5).for_each(|_| own.step(BLOCK + 1, true).expect("a step"));
    (0..BLOCK * 3).for_each(|_| own.step(1, true).expect("a step"));
    let mut plain = store.sequence(2000);
    let tokens = own.sequence.len();
    let mut step = plain.step(&kernels(), tokens).expect("room");
    let rows = vec![0.0; tokens * SHAPE.width()];
    (0..SHAPE.n_layers).for_each(|layer| step.write(&kernels(), layer, &rows, &rows));
    step.commit();
    assert_eq!(own.sequence.bytes(), plain.bytes() + 3 * VALUES * size_of::<f32>());
    let before = pool.stats().used_pages;
    let snapshot = own.sequence.snapshot().expect("room");
    assert_eq!(pool.stats().used_pages, before + 1);
    assert_eq!(store.snapshots(), SnapshotUse { snapshots: 1, bytes: snapshot.bytes() });
}
