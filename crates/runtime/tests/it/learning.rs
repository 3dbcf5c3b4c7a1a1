//! Adapters that feedback changes: effect through the engine, the base without learning, versions.

use ruvllm::crates::sona::instant::{Lesson, Outcome, Settings};
use ruvllm::{Completion, Engine, Error, GenerateRequest, Prompt, Tenant, TokenId};

use crate::common::{complete, greedy, load, tiny_options, tiny_path};

const CANDIDATES: usize = 16;

/// Log-probability of the tokens behind the first, as requests with the adapter see it.
fn log_probability(engine: &Engine, tokens: &[TokenId], adapter: Option<&str>) -> f64 {
    let request = greedy(Prompt::Tokens(tokens.to_vec()), 0).with_prompt_logprobs(1);
    let request = match adapter {
        Some(name) => request.with_named_adapter(name, 1.0),
        None => request,
    };
    let scored = complete(engine, &request).prompt_logprobs;
    scored.iter().map(|entry| entry.token.logprob).sum::<f64>() / scored.len() as f64
}

fn settings() -> Settings {
    Settings { rate: 1e-2, column_rate: 1e-2, ..Settings::default() }
}

#[test]
fn lessons_change_what_requests_compute_and_restoring_takes_them_back() {
    let engine = load(tiny_path(), &tiny_options());
    let learned =
        engine.learned_adapter(&Tenant::root(), "learned", settings(), CANDIDATES).expect("an adapter");
    let text: Vec<TokenId> = (0..24).map(|index| 40 + 7 * index).collect();
    let base = log_probability(&engine, &text, None);
    assert_eq!(log_probability(&engine, &text, Some("learned")), base, "not taught yet");

    let untaught = learned.snapshot();
    let observations = engine.observe(&text, 1..text.len(), CANDIDATES).expect("observations");
    assert_eq!(observations.len(), text.len() - 1);
    let update = learned.learn(&observations, Lesson::Corrected).expect("an update");
    assert_eq!(update.outcome, Outcome::Applied);
    let taught = log_probability(&engine, &text, Some("learned"));
    assert!(taught > base, "{taught} and {base}");
    // The learner computes with dequantized rows, the engine with 8-bit activations.
    assert!((taught - update.log_probability_after).abs() < 0.05, "{taught}, {update:?}");
    assert_eq!(log_probability(&engine, &text, None), base, "others compute as before");
    assert_eq!(learned.current().kv_digest(), None, "cached prefixes stay valid");

    learned.restore(&untaught).expect("the state before");
    assert_eq!(log_probability(&engine, &text, Some("learned")), base);
}

#[test]
fn an_adapter_that_was_not_taught_changes_no_bit() {
    let engine = load(tiny_path(), &tiny_options());
    engine.learned_adapter(&Tenant::root(), "learned", settings(), CANDIDATES).expect("an adapter");
    let outputs = |request: &GenerateRequest| -> (Vec<TokenId>, Vec<u64>) {
        let Completion { tokens, logprobs, .. } = complete(&engine, request);
        (tokens, logprobs.iter().map(|entry| entry.token.logprob.to_bits()).collect())
    };
    let request = greedy("The river", 12).with_logprobs(1);
    assert_eq!(outputs(&request), outputs(&request.clone().with_named_adapter("learned", 1.0)));
}

#[test]
fn wrong_texts_and_settings_are_refused() {
    let engine = load(tiny_path(), &tiny_options());
    let text: Vec<TokenId> = (5..15).collect();
    for targets in [0..4, 3..11] {
        let observed = engine.observe(&text, targets.clone(), CANDIDATES);
        assert!(matches!(observed, Err(Error::PositionOutOfRange { .. })), "{targets:?}");
    }
    assert!(matches!(engine.observe(&text, 1..4, 0), Err(Error::Learning { .. })));
    assert!(matches!(engine.observe(&[u32::MAX, 1], 1..2, 4), Err(Error::TokenOutOfRange { .. })));
    assert!(engine.observe(&text, 4..4, CANDIDATES).expect("no positions").is_empty());
    let differing = Settings { hidden_rank: 2, logits_rank: 4, ..settings() };
    let made = engine.learned_adapter(&Tenant::root(), "a", differing, CANDIDATES);
    assert!(matches!(made, Err(Error::Learning { .. })));
    let named = |name: &str| engine.learned_adapter(&Tenant::root(), name, settings(), CANDIDATES);
    assert!(named("b").is_ok());
    assert!(matches!(named("b"), Err(Error::Adapter { .. })), "the name is taken");
}
