//! Divergence of two runs: against logits, perplexity, and invalid requests.

use std::ops::ControlFlow;

use gguf_rs_lite::{Array, Value};
use ruvllm::{Engine, Error, InferenceBackend, KlDivergence, KvPolicy, TokenId};
use ruvllm_testkit::builtin_model;

use crate::backend::Parrot;
use crate::common::{base, load, tiny, tiny_options, tiny_with};

/// Some ids of the tiny model.
fn text(n: usize) -> Vec<TokenId> {
    (0..n as u32).map(|i| (i * 37 + i * i * 11) % 500).collect()
}

/// The built-in model with another KV policy; heads of the tiny one are too small for most.
fn with_kv(policy: &str) -> Engine {
    load(builtin_model(), &tiny_options().with_kv(policy.parse::<KvPolicy>().expect("a policy")))
}

fn compare(
    reference: &Engine,
    candidate: &dyn InferenceBackend,
    tokens: &[TokenId],
    context: usize,
) -> Result<KlDivergence, Error> {
    reference.compare(candidate, tokens, context, None, &mut |_, _| ControlFlow::Continue(()))
}

/// Log-softmax of the logits of a window's positions that are scored.
fn log_probabilities(engine: &Engine, window: &[TokenId]) -> Vec<Vec<f64>> {
    let positions: Vec<usize> = (0..window.len() - 1).collect();
    let logits = engine.logits(window, &positions).expect("logits of a window");
    let rows = logits.chunks_exact(engine.config().vocab_size);
    rows.map(|row| {
        let total: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
        row.iter().map(|&x| f64::from(x) - total.ln()).collect()
    })
    .collect()
}

#[test]
fn equal_runs_do_not_diverge() {
    let tokens = text(100);
    for context in [2, 7, 32, 100] {
        let found = compare(tiny(), tiny(), &tokens, context).expect("a valid comparison");
        assert_eq!(found.positions, 100 / context * (context - 1));
        assert_eq!((found.mean, found.max, found.percentiles.p99), (0.0, 0.0, 0.0));
        assert_eq!((found.agreement, found.rms_delta_p, found.perplexity_ratio()), (1.0, 0.0, 1.0));
        assert!(found.complete);
    }
}

#[test]
fn divergence_follows_from_the_logits() {
    let (tokens, candidate) = (text(100), with_kv("q4"));
    let found = compare(base(), &candidate, &tokens, 32).expect("a valid comparison");
    let (mut divergences, mut agreements, mut squares) = (Vec::new(), 0, 0.0);
    for window in tokens.chunks_exact(32) {
        let rows = log_probabilities(base(), window).into_iter().zip(log_probabilities(&candidate, window));
        for ((p, q), &next) in rows.zip(&window[1..]) {
            divergences.push(p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>());
            let best = |row: &[f64]| row.iter().copied().enumerate().max_by(|a, b| a.1.total_cmp(&b.1));
            agreements += usize::from(best(&p).map(|best| best.0) == best(&q).map(|best| best.0));
            squares += (q[next as usize].exp() - p[next as usize].exp()).powi(2);
        }
    }
    let n = divergences.len();
    let mean = divergences.iter().sum::<f64>() / n as f64;
    assert_eq!(found.positions, n);
    assert!(mean > 1e-6 && (found.mean - mean).abs() < 1e-12, "{} and {mean}", found.mean);
    divergences.sort_by(f64::total_cmp);
    assert!((found.max - divergences[n - 1]).abs() < 1e-12);
    assert!((found.percentiles.p50 - divergences[n.div_ceil(2) - 1]).abs() < 1e-12);
    assert_eq!(found.agreement, agreements as f64 / n as f64);
    assert!((found.rms_delta_p - (squares / n as f64).sqrt()).abs() < 1e-12);
}

#[test]
fn perplexities_are_those_of_the_runs_alone() {
    let tokens = text(150);
    let alone = |backend: &dyn InferenceBackend| {
        let result = backend.perplexity(&tokens, 75, None, &mut |_, _| ControlFlow::Continue(()));
        result.expect("a valid measurement")
    };
    for policy in ["q8", "tiered:hot=0,warm=kivi2,cold=off"] {
        let candidate = with_kv(policy);
        let found = compare(base(), &candidate, &tokens, 75).expect("a valid comparison");
        assert_eq!((found.reference.nll, found.candidate.nll), (alone(base()).nll, alone(&candidate).nll));
        assert_eq!(found.candidate.nll_error, alone(&candidate).nll_error);
        assert!((found.difference.nll - (found.candidate.nll - found.reference.nll)).abs() < 1e-12);
    }
}

#[test]
fn backends_without_rows_of_logits_are_compared_token_by_token() {
    let (parrot, tokens) = (Parrot::saying("Hello"), text(40));
    let found = compare(tiny(), &parrot, &tokens, 20).expect("a valid comparison");
    let alone = parrot.perplexity(&tokens, 20, None, &mut |_, _| ControlFlow::Continue(()));
    assert_eq!(found.candidate.nll, alone.expect("a valid measurement").nll);
    assert!(found.mean > 0.0 && found.positions == 38);
}

#[test]
fn a_comparison_that_is_ended_has_the_result_so_far() {
    let (tokens, candidate) = (text(60), with_kv("q4"));
    let stop_at = |at: usize| {
        let progress = &mut |done: usize, total: usize| {
            assert_eq!(total, 60);
            if done >= at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        base().compare(&candidate, &tokens, 20, None, progress)
    };
    assert!(matches!(stop_at(0), Err(Error::Cancelled)));
    let partial = stop_at(20).expect("the first window");
    let first = compare(base(), &candidate, &tokens[..20], 20).expect("a valid comparison");
    assert!(!partial.complete && first.complete);
    assert_eq!(
        (partial.positions, partial.mean, partial.candidate),
        (first.positions, first.mean, first.candidate)
    );
}

#[test]
fn other_vocabularies_are_refused() {
    let reason = |candidate: &dyn InferenceBackend| match compare(tiny(), candidate, &text(40), 20) {
        Err(Error::ComparedVocabulary { reason }) => reason,
        other => panic!("expected a refusal, found {other:?}"),
    };
    let sizes = [base(), tiny()].map(|engine| engine.tokenizer().text_vocab_size());
    assert_eq!(reason(base()), format!("it has {} tokens, the reference has {}", sizes[0], sizes[1]));
    let renamed = tiny_with(|metadata| {
        let key = "tokenizer.ggml.tokens";
        let mut tokens = metadata.get_strings(key).expect("texts").expect("a vocabulary").to_vec();
        // A special token: others are part of merges.
        let renamed = tokens.iter_mut().find(|text| text.contains("header")).expect("special tokens");
        *renamed = renamed.replace("header", "other");
        metadata.insert(key, Value::Array(Array::String(tokens)));
    });
    let found = reason(&renamed);
    assert!(found.starts_with("token ") && found.contains("other") && found.contains("header"), "{found}");
}

#[test]
fn impossible_comparisons_are_refused() {
    let tokens = text(20);
    let refused = |tokens: &[TokenId], context| compare(tiny(), tiny(), tokens, context).err();
    assert!(matches!(refused(&tokens, 1), Some(Error::WindowTooShort { context: 1 })));
    assert!(matches!(refused(&tokens, 21), Some(Error::TextTooShort { tokens: 20, context: 21 })));
    assert!(matches!(refused(&[1, u32::MAX, 2], 3), Some(Error::TokenOutOfRange { position: 1, .. })));
    let long = text(tiny().config().context_length + 1);
    assert!(matches!(refused(&long, long.len()), Some(Error::ContextTooLong { .. })));
}

#[test]
fn a_logit_that_is_no_number_is_named() {
    struct Broken<'e>(&'e Engine);
    impl InferenceBackend for Broken<'_> {
        fn name(&self) -> &str {
            "broken"
        }
        fn config(&self) -> &ruvllm::ModelConfig {
            self.0.config()
        }
        fn codec(&self) -> &ruvllm::TextCodec {
            InferenceBackend::codec(self.0)
        }
        fn context_length(&self) -> usize {
            self.0.context_length()
        }
        fn session(&self, _: usize) -> Result<Box<dyn ruvllm::BackendSession + '_>, Error> {
            Ok(Box::new(BrokenSession { len: 0, logits: vec![0.0; self.config().vocab_size] }))
        }
    }
    struct BrokenSession {
        len: usize,
        logits: Vec<f32>,
    }
    impl ruvllm::BackendSession for BrokenSession {
        fn len(&self) -> usize {
            self.len
        }
        fn forward(&mut self, tokens: &[TokenId]) -> Result<&[f32], Error> {
            self.len += tokens.len();
            self.logits[7] = if self.len == 5 { f32::NAN } else { 0.0 };
            Ok(&self.logits)
        }
        fn truncate(&mut self, len: usize) -> Result<usize, Error> {
            self.len = len;
            Ok(len)
        }
    }
    let error = compare(tiny(), &Broken(tiny()), &text(40), 20).expect_err("no number");
    assert!(
        matches!(error, Error::ComparedLogit { run: "candidate", token: 7, position: 4, .. }),
        "{error:?}"
    );
    assert!(error.to_string().contains("candidate gives token 7 the logit NaN"), "{error}");
}
