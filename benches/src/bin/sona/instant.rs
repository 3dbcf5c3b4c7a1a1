//! The instant loop on a domain's text, read once.

use std::time::{Duration, Instant};

use ruvllm::crates::sona::instant::{InstantLearner, Lesson, Observations, Settings as Learning};
use ruvllm::{Engine, LearnedAdapter, ScaledAdapter, Tenant};
use serde_json::{Value, json};

use super::{CANDIDATES, Domain, Result, Settings, WINDOW, change, encode, engine, percent, perplexity};

/// Ordinary texts that the model writes, and their tokens.
const ORDINARY: (u64, usize) = (16, 128);
/// Tokens of training text in front of each window that is measured with it as context.
const CONTEXT: usize = 1024;
/// Tokens measured with a context.
const MEASURED_IN_CONTEXT: usize = 8 * WINDOW;

pub(super) fn run(settings: &Settings) -> Result<Value> {
    println!(
        "| domain | tokens | test before | after | change | as context | general before | after | change | update p50, ms | p99, ms |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    let mut found = Vec::new();
    for domain in &settings.domains {
        for seed in 0..settings.seeds {
            found.push(of_domain(settings, domain, seed)?);
        }
    }
    println!();
    Ok(Value::Array(found))
}

fn of_domain(settings: &Settings, domain: &Domain, seed: u64) -> Result<Value> {
    let mut engine = engine(settings)?;
    let (test, general) = (encode(&engine, &domain.test)?, encode(&engine, &settings.general)?);
    let measure = |engine: &Engine| -> Result<[f64; 2]> {
        Ok([perplexity(engine, &test, settings.measured)?, perplexity(engine, &general, settings.measured)?])
    };
    let before = measure(&engine)?;
    let train = encode(&engine, &domain.train)?;
    let context = in_context(&engine, &train, &test)?;
    let learning = Learning { seed, ..Learning::default() };
    let learned = engine.learned_adapter(&Tenant::root(), "learned", learning, CANDIDATES)?;
    hold_on(&engine, &learned)?;
    let (mut times, mut positions) = (Vec::new(), 0);
    for window in train.chunks(WINDOW).filter(|window| window.len() > 1) {
        let observations = engine.observe(window, 1..window.len(), CANDIDATES)?;
        let started = Instant::now();
        let update = learned.learn(&observations, Lesson::Corrected)?;
        times.push(started.elapsed() / update.positions.div_ceil(64).max(1) as u32);
        positions += update.positions;
    }
    engine.set_adapters(&[ScaledAdapter::new(learned.current(), 1.0)])?;
    let after = measure(&engine)?;
    times.sort_unstable();
    let at = |share: f64| {
        let index = ((times.len().max(1) - 1) as f64 * share) as usize;
        times.get(index).copied().unwrap_or(Duration::ZERO).as_secs_f64() * 1e3
    };
    println!(
        "| {} | {positions} | {:.3} | {:.3} | {:+.2} % | {:+.2} % | {:.3} | {:.3} | {:+.2} % | {:.2} | {:.2} |",
        domain.name,
        before[0],
        after[0],
        percent(before[0], after[0]),
        percent(context[0], context[1]),
        before[1],
        after[1],
        percent(before[1], after[1]),
        at(0.5),
        at(0.99),
    );
    Ok(json!({
        "domain": domain.name, "seed": seed, "tokens": positions,
        "test": change(before[0], after[0]), "general": change(before[1], after[1]),
        "in_context": change(context[0], context[1]),
        "update_ms": { "p50": at(0.5), "p99": at(0.99) },
    }))
}

/// Texts that the model writes itself are the ordinary traffic at which it is held to its base.
pub(super) fn hold_on(engine: &Engine, learned: &LearnedAdapter) -> Result<()> {
    let (texts, tokens) = ORDINARY;
    for seed in 0..texts {
        let text = super::ratings::sample(engine, "\n", tokens, seed, None)?.tokens;
        if text.len() > 1 {
            learned.observe_ordinary(&engine.observe(&text, 1..text.len(), CANDIDATES)?)?;
        }
    }
    Ok(())
}

/// Perplexity of windows of the test text alone, and behind the beginning of the training text.
fn in_context(engine: &Engine, train: &[u32], test: &[u32]) -> Result<[f64; 2]> {
    let context = &train[..train.len().min(CONTEXT)];
    let mut sums = [0.0; 2];
    let mut count = 0;
    for window in test[..test.len().min(MEASURED_IN_CONTEXT)].chunks_exact(WINDOW) {
        let with = [context, window].concat();
        let alone = losses(engine, &engine.observe(window, 1..window.len(), CANDIDATES)?)?;
        let targets = context.len() + 1..with.len();
        let behind = losses(engine, &engine.observe(&with, targets, CANDIDATES)?)?;
        sums = [sums[0] + alone, sums[1] + behind];
        count += window.len() - 1;
    }
    Ok(sums.map(|sum| (sum / count.max(1) as f64).exp()))
}

/// Sum of the losses at all positions of a text, in nats.
fn losses(engine: &Engine, observations: &Observations) -> Result<f64> {
    let mut learner: InstantLearner = engine.instant_learner(Learning::default(), CANDIDATES)?;
    Ok(-learner.scores(observations)?.iter().map(|score| score.base_log_probability).sum::<f64>())
}
