//! Strategies that adapt to error classes, retries within a budget, agreement and its calibration.

use std::sync::Mutex;

use crate::error::{Error, Result};
use crate::lexical::HashedWords;
use crate::model::{Generate, GenerateText};

use super::*;

/// Model that computes its answer from the request, and keeps the requests.
struct Scripted<F>(F, Mutex<Vec<GenerateText>>);

impl<F: Fn(&GenerateText) -> Result<String> + Send + Sync> Generate for Scripted<F> {
    fn generate(&self, request: &GenerateText) -> Result<String> {
        self.1.lock().unwrap().push(request.clone());
        (self.0)(request)
    }
}

fn scripted<F: Fn(&GenerateText) -> Result<String> + Send + Sync>(answer: F) -> Scripted<F> {
    Scripted(answer, Mutex::new(Vec::new()))
}

fn memory() -> ErrorMemory {
    ErrorMemory::new(64, 0.02, 0.1).unwrap()
}

fn budget(attempts: usize) -> Budget {
    Budget { attempts, tokens: 10_000, stronger_model: Some("large".into()) }
}

#[test]
fn messages_that_differ_in_values_have_one_class() {
    for (a, b, key) in [
        (
            "cannot open /tmp/a.txt: No such file (os error 2)",
            "cannot open C:\\b\\c: no such file (os error 3)",
            "cannot open <path>: no such file (os error <n>)",
        ),
        (
            "missing property 'name' at line 3, column 1.5",
            "missing property \"size\" at line 12, column 2",
            "missing property <text> at line <n>, column <n>",
        ),
        (
            "request 3f2a91bc-77aa-4e01-b1c2-0123456789ab: timeout after 30s",
            "request 00ff91bc-77aa-4e01-b1c2-0123456789ab: timeout after 5s",
            "request <id>: timeout after <n>s",
        ),
        ("GET https://a.example/x failed", "get http://b.example failed", "get <url> failed"),
        ("don't know 0x1f\nmore", "don't know 0xabc", "don't know <id>"),
        (
            "Traceback (most recent call last):\n  File \"a.py\", line 1\nKeyError: 'x'",
            "Traceback (most recent call last):\n  File \"b.py\", line 7\nKeyError: 'yy'\n",
            "keyerror: <text>",
        ),
    ] {
        assert_eq!(class_key(a), key);
        assert_eq!(class_key(b), key);
    }
    assert_ne!(class_key("permission denied"), class_key("timeout"));
    for odd in ["", "\n", "'", "\"\"", "///", "é'日'", &"x ".repeat(10_000)] {
        assert!(class_key(odd).chars().count() <= 160);
    }
}

#[test]
fn success_in_a_class_decides_there_and_informs_elsewhere() {
    let mut memory = memory();
    let (format, facts) = (memory.observe("no JSON at line 1"), memory.observe("wrong capital"));
    // Without experience the cheapest of equals is chosen.
    assert_eq!(memory.choose(&format, &Strategy::ALL).unwrap().strategy, Strategy::RetryWithError);
    for _ in 0..10 {
        memory.record(&format, Strategy::RetryWithError, true);
        memory.record(&facts, Strategy::RetryWithError, false);
        memory.record(&facts, Strategy::EscalateModel, true);
    }
    let choice = memory.choose(&format, &Strategy::ALL).unwrap();
    assert_eq!(choice.strategy, Strategy::RetryWithError);
    assert!(choice.mean > 0.8 && choice.deviation < 0.15);
    assert_eq!(memory.choose(&facts, &Strategy::ALL).unwrap().strategy, Strategy::EscalateModel);
    assert_eq!(memory.class(&facts).unwrap().outcomes(Strategy::EscalateModel), (10, 0));
    let unseen = memory.choose("never seen", &Strategy::ALL).unwrap();
    assert_eq!(unseen.strategy, Strategy::EscalateModel);
    // After failures of all strategies it is better to stop.
    for strategy in Strategy::ALL {
        for _ in 0..60 {
            memory.record(&format, strategy, false);
            memory.record(&facts, strategy, false);
        }
    }
    assert_eq!(memory.choose(&facts, &[Strategy::RetryWithError, Strategy::Simplify]), None);
}

#[test]
fn memory_of_classes_is_bounded() {
    assert!(ErrorMemory::new(0, 0.0, 0.1).is_err() && ErrorMemory::new(1, f64::NAN, 0.1).is_err());
    let mut memory = ErrorMemory::new(2, 0.0, 0.1).unwrap();
    for message in ["first kind", "second kind", "first kind", "third kind"] {
        memory.observe(message);
    }
    assert_eq!(memory.len(), 2);
    assert_eq!(memory.class("first kind").unwrap().count, 2);
    assert!(memory.class("second kind").is_none());
}

#[test]
fn retries_learn_which_strategy_resolves_a_class() {
    // Repairs its answer only if it sees it together with the error.
    let model = scripted(|request| {
        let is_repaired = request.prompt.contains("previous answer") && request.prompt.contains("no JSON");
        Ok(if is_repaired { "{}" } else { "hello" }.to_owned())
    });
    let check = |answer: &str| if answer == "{}" { Ok(()) } else { Err("no JSON at line 1".to_owned()) };
    let mut memory = memory();
    // Bad experience with retries in general, which the class corrects.
    for _ in 0..3 {
        memory.record("another class", Strategy::RetryWithError, false);
    }
    let attempts: Vec<usize> = (0..6)
        .map(|_| {
            let solved = solve(&model, &GenerateText::new("task"), &check, &mut memory, &budget(5)).unwrap();
            assert_eq!(solved.answer.as_deref(), Some("{}"));
            assert_eq!(solved.tokens, 512 * solved.attempts.len());
            solved.attempts.len()
        })
        .collect();
    assert!(attempts[0] > 2 && attempts[5] == 2, "{attempts:?}");
}

#[test]
fn retries_end_with_the_budget_and_use_no_strategy_twice() {
    let model = scripted(|request| match &request.model {
        Some(_) => Err(Error::Model { source: "out of memory".into() }),
        None => Ok("wrong".into()),
    });
    let never = |_: &str| Err("wrong answer".to_owned());
    let solved = solve(&model, &GenerateText::new("task"), &never, &mut memory(), &budget(9)).unwrap();
    let strategies: Vec<_> = solved.attempts.iter().filter_map(|attempt| attempt.strategy).collect();
    assert_eq!(strategies.len(), 4, "each strategy once");
    assert_eq!(solved.answer, None);
    let errors: Vec<_> = solved.attempts.iter().filter_map(|attempt| attempt.error.as_deref()).collect();
    assert!(errors.contains(&"the model failed: out of memory"), "{errors:?}");
    let seeds: Vec<u64> = model.1.lock().unwrap().iter().map(|request| request.seed).collect();
    assert_eq!(seeds, [0, 1, 2, 3, 4]);

    let short = Budget { tokens: 1_100, ..budget(9) };
    let solved = solve(&model, &GenerateText::new("task"), &never, &mut memory(), &short).unwrap();
    assert_eq!((solved.attempts.len(), solved.tokens), (2, 1_024));
    let none = Budget { tokens: 100, ..budget(9) };
    assert!(solve(&model, &GenerateText::new("task"), &never, &mut memory(), &none).is_err());
    let alone = Budget { stronger_model: None, ..budget(9) };
    let solved = solve(&model, &GenerateText::new("task"), &never, &mut memory(), &alone).unwrap();
    assert_eq!(solved.attempts.len(), 4);
}

#[test]
fn agreement_is_the_share_of_the_largest_group() {
    let model = scripted(|request| {
        let text = match request.seed {
            0 => "I think so.\nAnswer: 42 apples.",
            1 => "answer: **41 apples**",
            2 => "The ANSWER: unclear. Then ... Answer:  42 apples",
            _ => "nothing",
        };
        Ok(text.to_owned())
    });
    let request = GenerateText::new("How many apples?");
    let ask = |matching, tokens| agreement(&model, &request, &PERSPECTIVES, matching, tokens);
    let result = ask(Matching::Exact, 10_000).unwrap();
    assert_eq!(result.answers.iter().map(|answer| answer.group).collect::<Vec<_>>(), [0, 1, 0]);
    assert_eq!((result.answer.as_str(), result.agreement, result.skipped), ("42 apples.", 2.0 / 3.0, 0));
    // However similar, answers with different numbers differ.
    let embed = HashedWords { dimension: 64 };
    assert_eq!(ask(Matching::Semantic(&embed, 0.1), 10_000).unwrap().agreement, 2.0 / 3.0);
    let two = ask(Matching::Exact, 1_024).unwrap();
    assert_eq!((two.agreement, two.skipped, two.answers.len()), (0.5, 1, 2));
    assert!(ask(Matching::Exact, 1_000).is_err());
    let prompts: Vec<_> = model.1.lock().unwrap().iter().take(3).map(|r| r.prompt.clone()).collect();
    assert!(prompts.iter().zip(PERSPECTIVES).all(|(prompt, perspective)| prompt.contains(perspective)));
}

#[test]
fn calibration_reports_what_was_observed() {
    let mut calibration = Calibration::default();
    assert_eq!((calibration.estimate(1.0), calibration.error()), (None, None));
    assert!(calibration.record(f64::NAN, true).is_err() && calibration.record(1.1, true).is_err());
    for i in 0..40 {
        calibration.record(1.0, i % 4 != 0).unwrap();
    }
    for i in 0..9 {
        calibration.record(0.33, i < 3).unwrap();
    }
    let estimate = calibration.estimate(1.0).unwrap();
    assert_eq!((estimate.correct, estimate.samples), (0.75, 40));
    // Wilson's interval for 30 of 40.
    assert!((estimate.interval.0 - 0.598).abs() < 1e-3 && (estimate.interval.1 - 0.858).abs() < 1e-3);
    assert_eq!(calibration.estimate(0.33), None, "nine samples");
    assert!((calibration.error().unwrap() - (10.0 + 0.03) / 49.0).abs() < 1e-9);
}
