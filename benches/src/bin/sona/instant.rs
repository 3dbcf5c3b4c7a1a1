//! The instant loop on a domain's text, read once, and the time of its updates.

use std::time::Instant;

use ruvllm::crates::sona::LearningStore;
use ruvllm::crates::sona::instant::{InstantLearner, Lesson, Observations, Settings as Learning};
use ruvllm::crates::sona::online::{Taught, TaughtText};
use ruvllm::crates::sona::store::StoreOptions;
use ruvllm::{Engine, LearnedAdapter, LearningOptions, ScaledAdapter, Tenant};
use serde_json::{Value, json};

use super::{
    Domain, Result, Settings, WINDOW, candidates, change, encode, engine, percent, percentiles, perplexity,
};

/// Ordinary texts that the model writes, and their tokens.
const ORDINARY: (u64, usize) = (16, 128);
/// Tokens of training text in front of each window that is measured with it as context.
const CONTEXT: usize = 1024;
/// Tokens measured with a context.
const MEASURED_IN_CONTEXT: usize = 8 * WINDOW;
/// Tokens of the lessons whose updates are timed, and their number.
const TIMED: ([usize; 3], usize) = ([8, 16, 64], 200);

pub(super) fn run(settings: &Settings) -> Result<Value> {
    println!(
        "| domain | seed | tokens | test before | after | change | as context | general before | after | change | lessons learned | feedback p50, ms | p99, ms |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    let mut found = Vec::new();
    for domain in &settings.domains {
        for seed in 0..settings.seeds {
            found.push(of_domain(settings, domain, seed)?);
        }
    }
    println!();
    let times = match settings.domains.first() {
        Some(domain) => update_times(settings, domain)?,
        None => Value::Null,
    };
    Ok(json!({ "domains": found, "update_ms": times }))
}

/// The text of a domain as feedback, a correction for each window: logged, learned, judged.
fn of_domain(settings: &Settings, domain: &Domain, seed: u64) -> Result<Value> {
    let mut engine = engine(settings)?;
    let (test, general) = (encode(&engine, &domain.test)?, encode(&engine, &settings.general)?);
    let measure = |engine: &Engine| -> Result<[f64; 2]> {
        Ok([perplexity(engine, &test, settings.measured)?, perplexity(engine, &general, settings.measured)?])
    };
    let before = measure(&engine)?;
    let train = encode(&engine, &domain.train)?;
    let context = in_context(&engine, &train, &test)?;
    let folder = tempfile::tempdir()?;
    let store = LearningStore::open(folder.path().join("learning.redb"), StoreOptions::default())?;
    let mut options = LearningOptions::default();
    options.settings.seed = seed;
    let learned = engine.online_adapter(&Tenant::root(), "learned", &store, options)?;
    let (mut times, mut positions, mut lessons, mut taught) = (Vec::new(), 0, 0_u32, 0_u32);
    for window in train.chunks(WINDOW).filter(|window| window.len() > 1) {
        let (prompt, response) = (window[..1].to_vec(), window[1..].to_vec());
        positions += response.len();
        let started = Instant::now();
        let fate =
            learned.teach(&engine, &TaughtText { prompt, response, lesson: Lesson::Corrected }, &[])?;
        times.push(started.elapsed());
        lessons += 1;
        taught += u32::from(matches!(fate, Taught::Learned { .. }));
    }
    engine.set_adapters(&[ScaledAdapter::new(learned.current(), 1.0)])?;
    let after = measure(&engine)?;
    let [p50, p99] = percentiles(&mut times);
    println!(
        "| {} | {seed} | {positions} | {:.3} | {:.3} | {:+.2} % | {:+.2} % | {:.3} | {:.3} | {:+.2} % | {taught} of {lessons} | {p50:.0} | {p99:.0} |",
        domain.name,
        before[0],
        after[0],
        percent(before[0], after[0]),
        percent(context[0], context[1]),
        before[1],
        after[1],
        percent(before[1], after[1]),
    );
    Ok(json!({
        "domain": domain.name, "seed": seed, "tokens": positions,
        "test": change(before[0], after[0]), "general": change(before[1], after[1]),
        "in_context": change(context[0], context[1]),
        "lessons": lessons, "learned": taught,
        "feedback_ms": { "p50": p50, "p99": p99 },
    }))
}

/// Time of the instant loop alone, without the forward pass and the log: lessons of a few tokens.
fn update_times(settings: &Settings, domain: &Domain) -> Result<Value> {
    let engine = engine(settings)?;
    let train = encode(&engine, &domain.train)?;
    println!("| tokens of a lesson | steps | update p50, ms | p99, ms |\n|---:|---:|---:|---:|");
    let mut found = Vec::new();
    let (sizes, count) = TIMED;
    for tokens in sizes {
        let mut learner = engine.instant_learner(Learning::default(), candidates())?;
        for text in ordinary_texts(&engine)? {
            text.iter().try_for_each(|position| learner.observe_ordinary(position))?;
        }
        let mut times = Vec::new();
        for window in train.chunks_exact(tokens + 1).take(count) {
            let observations = engine.observe(window, 1..window.len(), candidates())?;
            let started = Instant::now();
            learner.learn(&observations, Lesson::Corrected)?;
            times.push(started.elapsed());
        }
        let steps = learner.updates() as f64 / times.len().max(1) as f64;
        let [p50, p99] = percentiles(&mut times);
        println!("| {tokens} | {steps:.1} | {p50:.2} | {p99:.2} |");
        found.push(json!({ "tokens": tokens, "steps": steps, "p50": p50, "p99": p99 }));
    }
    println!();
    Ok(Value::Array(found))
}

/// Texts that the model writes itself, observed.
fn ordinary_texts(engine: &Engine) -> Result<Vec<Observations>> {
    let (texts, tokens) = ORDINARY;
    let text = |seed| -> Result<Observations> {
        let text = super::ratings::sample(engine, "\n", tokens, seed, None)?.tokens;
        Ok(engine.observe(&text, 1..text.len().max(1), candidates())?)
    };
    (0..texts).map(text).collect()
}

/// Holds an adapter to the base at texts that the model writes itself.
pub(super) fn hold_on(engine: &Engine, learned: &LearnedAdapter) -> Result<()> {
    ordinary_texts(engine)?.iter().try_for_each(|text| Ok(learned.observe_ordinary(text)?))
}

/// Perplexity of windows of the test text alone, and behind the beginning of the training text.
fn in_context(engine: &Engine, train: &[u32], test: &[u32]) -> Result<[f64; 2]> {
    let context = &train[..train.len().min(CONTEXT)];
    let mut sums = [0.0; 2];
    let mut count = 0;
    for window in test[..test.len().min(MEASURED_IN_CONTEXT)].chunks_exact(WINDOW) {
        let with = [context, window].concat();
        let alone = losses(engine, &engine.observe(window, 1..window.len(), candidates())?)?;
        let targets = context.len() + 1..with.len();
        let behind = losses(engine, &engine.observe(&with, targets, candidates())?)?;
        sums = [sums[0] + alone, sums[1] + behind];
        count += window.len() - 1;
    }
    Ok(sums.map(|sum| (sum / count.max(1) as f64).exp()))
}

/// Sum of the losses at all positions of a text, in nats.
fn losses(engine: &Engine, observations: &Observations) -> Result<f64> {
    let mut learner: InstantLearner = engine.instant_learner(Learning::default(), candidates())?;
    Ok(-learner.scores(observations)?.iter().map(|score| score.base_log_probability).sum::<f64>())
}
