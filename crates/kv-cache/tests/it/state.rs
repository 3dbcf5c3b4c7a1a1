//! Sequences with a state besides keys and values.

use proptest::prelude::*;
use ruvllm_kv_cache::{Error, Sequence};

use crate::oracle::{SHAPE, kernels, pool, store};

const VALUES: usize = 5;
const SEQUENCES: usize = 3;

#[derive(Debug, Clone)]
enum Operation {
    Step { at: usize, tokens: usize, is_committed: bool },
    Fork { from: usize, to: usize },
    Clear { at: usize },
}

fn operation() -> impl Strategy<Value = Operation> {
    let at = || 0..SEQUENCES;
    prop_oneof![
        6 => (at(), 1usize..40, any::<bool>())
            .prop_map(|(at, tokens, is_committed)| Operation::Step { at, tokens, is_committed }),
        2 => (at(), at()).prop_map(|(from, to)| Operation::Fork { from, to }),
        1 => at().prop_map(|at| Operation::Clear { at }),
    ]
}

/// State behind another token: different for every history.
fn next(state: [f32; VALUES], token: f32) -> [f32; VALUES] {
    std::array::from_fn(|i| state[i] * 0.5 + token * (i + 1) as f32)
}

/// Runs a step over a sequence whose state should be `expected`, in two parts as two layers would.
fn step(
    sequence: &mut Sequence,
    expected: &mut [f32; VALUES],
    tokens: usize,
    is_committed: bool,
) -> Result<(), TestCaseError> {
    let first = sequence.len();
    let behind = (first..first + tokens).fold(*expected, |state, token| next(state, token as f32));
    let mut step = sequence.step(&kernels(), tokens).expect("room");
    let rows = vec![0.0; tokens * SHAPE.width()];
    for layer in 0..SHAPE.n_layers {
        step.write(&kernels(), layer, &rows, &rows);
    }
    for range in [0..2, 2..VALUES] {
        let (before, after) = step.state(range.clone());
        prop_assert_eq!(before, &expected[range.clone()]);
        after.copy_from_slice(&behind[range]);
    }
    if is_committed {
        step.commit();
        *expected = behind;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64 * ProptestConfig::default().cases / 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn states_follow_what_was_committed(operations in prop::collection::vec(operation(), 1..40)) {
        let pool = pool(8);
        let store = store("f16", &pool);
        let new = || (store.sequence(2000).with_state(VALUES), [0.0; VALUES]);
        let mut sequences: Vec<_> = (0..SEQUENCES).map(|_| new()).collect();
        for operation in operations {
            match operation {
                Operation::Step { at, tokens, is_committed } => {
                    let (sequence, expected) = &mut sequences[at];
                    step(sequence, expected, tokens, is_committed)?;
                }
                Operation::Fork { from, to } => {
                    let (sequence, expected) = &mut sequences[from];
                    sequences[to] = (sequence.fork(), *expected);
                }
                Operation::Clear { at } => {
                    let (sequence, expected) = &mut sequences[at];
                    sequence.clear();
                    *expected = [0.0; VALUES];
                }
            }
        }
        for (sequence, expected) in &mut sequences {
            prop_assert_eq!(sequence.state_values(), VALUES);
            step(sequence, expected, 1, true)?;
        }
    }
}

#[test]
fn other_numbers_of_tokens_have_no_state() {
    let pool = pool(8);
    let store = store("f16", &pool);
    let (mut sequence, mut expected) = (store.sequence(200).with_state(VALUES), [0.0; VALUES]);
    step(&mut sequence, &mut expected, 64, true).expect("a step");
    let bytes = sequence.bytes();
    sequence.truncate(64).expect("nothing to drop");
    let error = sequence.truncate(63).expect_err("a state of 64 tokens");
    assert!(matches!(error, Error::StateOfAll { len: 63, tokens: 64 }), "{error:?}");
    let blocks = sequence.blocks().to_vec();
    let error = sequence.append_shared(&blocks).expect_err("blocks have no state");
    assert!(matches!(error, Error::StateOfAll { .. }), "{error:?}");
    assert!(sequence.append_copy(&kernels(), &blocks[0], 3).is_err());
    step(&mut sequence, &mut expected, 1, true).expect("nothing has changed");

    // Two buffers of the state beside what a sequence without one takes.
    let mut plain = store.sequence(200);
    let mut step = plain.step(&kernels(), 64).expect("room");
    (0..SHAPE.n_layers).for_each(|layer| {
        step.write(&kernels(), layer, &vec![0.0; 64 * SHAPE.width()], &vec![0.0; 64 * SHAPE.width()]);
    });
    step.commit();
    assert_eq!(bytes, plain.bytes() + 2 * VALUES * size_of::<f32>());
    sequence.truncate(0).expect("0 tokens have a state");
    assert!(sequence.is_empty());
}
