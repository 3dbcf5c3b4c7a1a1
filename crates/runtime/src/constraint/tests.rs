//! Constraints over the built-in model's vocabulary, with random logits in place of a model.

use std::sync::{Arc, OnceLock};

use ruvllm_kernels::Kernels;
use ruvllm_models::Checkpoint;
use ruvllm_testkit::builtin_model;
use ruvllm_text::tokenizer::{EncodeOptions, Tokenizer};

use super::{Constraint, ConstraintCompiler, ConstraintError, ConstraintState};
use crate::sampler::{Sampler, SamplingParams, uniform};

/// The tokenizer of the built-in model.
pub(super) fn tokenizer() -> Arc<Tokenizer> {
    static TOKENIZER: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    let load = || {
        let gguf = gguf_rs_lite::Gguf::open(builtin_model()).expect("the model is there");
        Arc::new(gguf.tokenizer().expect("it has a tokenizer"))
    };
    Arc::clone(TOKENIZER.get_or_init(load))
}

/// A compiler for its vocabulary.
pub(super) fn compiler() -> &'static ConstraintCompiler {
    static COMPILER: OnceLock<ConstraintCompiler> = OnceLock::new();
    COMPILER.get_or_init(|| {
        ConstraintCompiler::new(tokenizer(), tokenizer().vocab_size()).expect("the vocabulary fits")
    })
}

/// True if the constraint accepts exactly this text.
pub(super) fn matches(constraint: &Constraint, text: &str) -> bool {
    let plain = EncodeOptions { add_special: false, parse_special: false };
    let tokens = tokenizer().encode(text, plain).expect("the text can be encoded");
    let mut state = compiler().start(constraint).expect("the constraint compiles");
    if state.accepted_prefix(&tokens).expect("no step fails") < tokens.len() {
        return false;
    }
    tokens.iter().for_each(|&token| state.accept(token).expect("the token is accepted"));
    state.is_complete().expect("no step fails")
}

/// Checks that a constraint is refused when it is compiled or first used.
pub(super) fn refused(constraint: &Constraint, what: &str) {
    let result =
        compiler().start(constraint).and_then(|mut state| state.mask().map(|mask| mask.ids().count()));
    assert!(result.is_err(), "{what}: {result:?}");
}

/// Generates from random logits with the sampler that generations use; the tokens, or the fault.
pub(super) fn random_walk(
    constraint: &Constraint,
    seed: u64,
    steps: usize,
) -> Result<(String, ConstraintState), ConstraintError> {
    let tokenizer = tokenizer();
    let mut state = compiler().start(constraint)?;
    let params = SamplingParams::greedy().with_temperature(1.0).with_seed(seed);
    let mut sampler = Sampler::new(Kernels::detect().expect("kernels"), &params, tokenizer.vocab_size())
        .expect("valid parameters");
    let (mut tokens, mut masked) = (Vec::new(), Vec::new());
    for position in 0..steps {
        let logits: Vec<f32> = (0..tokenizer.vocab_size())
            .map(|id| 4.0 * uniform(seed ^ 0x5eed, (position * tokenizer.vocab_size() + id) as u64) as f32)
            .collect();
        state.mask()?.apply(&logits, &mut masked);
        let token = sampler.sample(&masked, position).expect("a token is allowed");
        state.accept(token)?;
        if !tokenizer.is_end_of_generation(token) {
            tokens.push(token);
        }
        if state.is_ended() {
            break;
        }
    }
    Ok((tokenizer.decode(&tokens, false).expect("the ids are known"), state))
}

#[test]
fn random_output_is_in_the_language() {
    let date = Constraint::regex("[12][0-9]{3}-(0[1-9]|1[0-2])").unwrap();
    let choices = Constraint::choices(["red", "green", "dark green", "\"\\\n"]).unwrap();
    for seed in 0..20 {
        for constraint in [&date, &choices] {
            let (text, state) = random_walk(constraint, seed, 100).unwrap();
            assert!(state.is_ended() && matches(constraint, &text), "{text:?}");
        }
        let (text, state) = random_walk(&Constraint::json(), seed, 300).unwrap();
        assert!(!state.is_ended() || serde_json::from_str::<serde_json::Map<_, _>>(&text).is_ok(), "{text}");
    }
}

#[test]
fn ends_are_allowed_exactly_where_the_output_is_complete() {
    let tokenizer = tokenizer();
    let end = tokenizer.end_of_generation()[0];
    let constraint = Constraint::regex("ab?").unwrap();
    let mut state = compiler().start(&constraint).unwrap();
    assert!(!state.mask().unwrap().allows(end) && !state.is_complete().unwrap());
    let token = |text: &str| tokenizer.token_to_id(text).unwrap();
    state.accept(token("a")).unwrap();
    assert!(state.mask().unwrap().allows(end) && state.is_complete().unwrap() && !state.is_ended());
    state.accept(token("b")).unwrap();
    assert!(state.is_ended() && state.is_complete().unwrap());
    assert_eq!(state.mask().unwrap().ids().collect::<Vec<_>>(), tokenizer.end_of_generation());
    state.rollback(1).unwrap();
    assert!(!state.is_ended() && state.mask().unwrap().allows(token("b")));
    state.accept(end).unwrap();
    assert!(state.is_ended() && state.is_complete().unwrap());
    let mut other = compiler().start(&constraint).unwrap();
    assert!(matches!(other.accept(token("b")), Err(ConstraintError::Step { .. })));
    assert!(matches!(other.mask(), Err(ConstraintError::Step { .. })));
}

#[test]
fn empty_output_can_be_an_element() {
    let mut state = compiler().start(&Constraint::regex("a*").unwrap()).unwrap();
    assert!(state.is_complete().unwrap());
    assert!(state.mask().unwrap().allows(tokenizer().end_of_generation()[0]));
    let mut empty = compiler().start(&Constraint::regex("").unwrap()).unwrap();
    assert_eq!(empty.mask().unwrap().ids().collect::<Vec<_>>(), tokenizer().end_of_generation());
}

#[test]
fn forced_tokens_are_those_of_the_tokenizer() {
    let constraint = Constraint::regex("The quick brown fox (jumps|sleeps)").unwrap();
    let mut state = compiler().start(&constraint).unwrap();
    let forced = state.forced();
    let plain = EncodeOptions { add_special: false, parse_special: false };
    let whole = tokenizer().encode("The quick brown fox jumps", plain).unwrap();
    assert!(forced.len() >= 3 && whole.starts_with(&forced), "{forced:?} {whole:?}");
    assert_eq!(state.accepted_prefix(&forced).unwrap(), forced.len());
    for &token in &forced {
        assert_eq!(state.mask().unwrap().ids().collect::<Vec<_>>(), [token]);
        state.accept(token).unwrap();
    }
}

#[test]
fn masks_do_not_depend_on_other_sequences() {
    let constraint = Constraint::json();
    let walk = |seed| random_walk(&constraint, seed, 60).unwrap().0;
    let alone: Vec<_> = (0..4).map(walk).collect();
    let threads: Vec<_> = (0..4)
        .map(|seed| {
            std::thread::spawn({
                let constraint = constraint.clone();
                move || random_walk(&constraint, seed, 60).unwrap().0
            })
        })
        .collect();
    let together: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert_eq!(alone, together);
}

#[test]
fn compiled_constraints_are_kept_once() {
    let compiler = ConstraintCompiler::new(tokenizer(), tokenizer().vocab_size()).unwrap();
    for _ in 0..3 {
        compiler.start(&Constraint::choices(["a", "b"]).unwrap()).unwrap();
        compiler.start(&Constraint::regex("a|b").unwrap()).unwrap();
    }
    assert_eq!(compiler.cached(), 2);
    assert!(compiler.start(&Constraint::regex("(").unwrap()).is_err());
    assert_eq!(compiler.cached(), 2);
}

#[test]
fn faults_say_what_and_where() {
    for (result, pieces) in [
        (Constraint::regex("a(b"), ["cannot compile the regex", "unclosed group"]),
        (Constraint::regex("(?=a)b"), ["cannot compile the regex", "look-around"]),
        (Constraint::lark("start: foo"), ["cannot compile the Lark grammar", "foo"]),
        (Constraint::lark("start: \"a\n"), ["cannot compile the Lark grammar", "1(10)"]),
        (Constraint::lark(""), ["cannot compile the Lark grammar", "start"]),
        (Constraint::regex(&"a".repeat(1 << 20)), ["65536", "bytes"]),
        (Constraint::lark(&"a: b\n".repeat(3000)), ["2000", "definitions"]),
        (Constraint::choices([""; 0]), ["at least one", ""]),
        (Constraint::choices(["a", ""]), ["choice 2", "empty"]),
    ] {
        let started = result.and_then(|constraint| compiler().start(&constraint));
        let message = started.map(|_| ()).unwrap_err().to_string();
        assert!(
            pieces.iter().all(|piece| message.contains(piece)) && !message.contains("backtrace"),
            "{message}"
        );
    }
}

#[test]
fn hostile_expressions_stay_within_limits() {
    for pattern in [
        "(a*)*b",
        "((((a{1,1000}){1,1000}){1,1000}){1,1000})",
        "(a|b)*a(a|b){2000}",
        "(.*x){200}",
        "([a-z]{1,500}|[a-y]{1,500}|[b-z]{1,400}){300}",
    ] {
        if let Err(error) = random_walk(&Constraint::regex(pattern).unwrap(), 1, 40) {
            assert!(
                matches!(error, ConstraintError::Step { .. } | ConstraintError::Compile { .. }),
                "{error}"
            );
        }
    }
    let nested = format!("{}a{}", "(".repeat(20_000), ")".repeat(20_000));
    refused(&Constraint::regex(&nested).unwrap(), "nested groups");
    let nested = format!("start: {}\"a\"{}", "(".repeat(100_000), ")".repeat(100_000));
    refused(&Constraint::lark(&nested).unwrap(), "nested groups");
    let chain: String = (0..1990).map(|i| format!("A{i}: (\"x\" A{})*\n", i + 1)).collect();
    let _ = random_walk(&Constraint::lark(&format!("start: A0\n{chain}A1990: \"a\"")).unwrap(), 1, 5);
}

#[test]
fn vocabularies_that_lack_a_character_are_a_dead_end() {
    let compiler = ConstraintCompiler::new(tokenizer(), 40).unwrap();
    let mut state = compiler.start(&Constraint::regex("猫").unwrap()).unwrap();
    assert_eq!(state.mask().unwrap_err(), ConstraintError::DeadEnd);
    assert!(ConstraintCompiler::new(tokenizer(), 0).is_err());
}
