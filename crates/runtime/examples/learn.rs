//! Teaches an adapter a text, read once, and measures perplexity before and after on other texts:
//! `cargo run --release --example learn -- MODEL.gguf TRAIN.txt TEST.txt [MORE.txt ...]`.
//!
//! The training text is the corrected answer; texts that the model writes itself are the ordinary
//! traffic at which it is held to its base.
use std::ops::ControlFlow;
use std::str::FromStr;
use std::time::{Duration, Instant};

use ruvllm::crates::sona::instant::{Lesson, Settings};
use ruvllm::crates::text::tokenizer::EncodeOptions;
use ruvllm::{
    Engine, EngineOptions, GenerateRequest, KvPolicy, SamplingParams, ScaledAdapter, Tenant, TokenId,
};

/// Tokens of a window of training and of measuring.
const WINDOW: usize = 512;
/// Tokens kept at each position.
const CANDIDATES: usize = 48;
/// Tokens of each measured text.
const MEASURED: usize = 20_480;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(model), Some(train)) = (args.next(), args.next()) else {
        return Err("usage: learn MODEL.gguf TRAIN.txt TEST.txt [MORE.txt ...]".into());
    };
    let others: Vec<String> = args.collect();
    let mut engine = Engine::open_with(model, &EngineOptions::default().with_kv(KvPolicy::from_str("f32")?))?;
    let encode = |engine: &Engine, path: &str| -> Result<Vec<TokenId>, Box<dyn std::error::Error>> {
        let options = EncodeOptions { add_special: false, parse_special: true };
        Ok(engine.tokenizer().encode(&std::fs::read_to_string(path)?, options)?)
    };
    let texts = others.iter().map(|path| encode(&engine, path)).collect::<Result<Vec<_>, _>>()?;
    let measure = |engine: &Engine| -> Result<Vec<f64>, ruvllm::Error> {
        let of = |text: &Vec<TokenId>| {
            let go_on = &mut |_, _| ControlFlow::Continue(());
            engine.perplexity(text, WINDOW, Some(MEASURED), go_on).map(|result| result.perplexity)
        };
        texts.iter().map(of).collect()
    };
    let before = measure(&engine)?;

    let learned = engine.learned_adapter(&Tenant::root(), "learned", Settings::default(), CANDIDATES)?;
    for seed in 0..16 {
        let mut sampling = SamplingParams::default();
        sampling.temperature = 1.0;
        let request = GenerateRequest::new("\n").with_max_tokens(128).with_seed(seed).with_sampling(sampling);
        let tokens = engine.generate(request)?.tokens;
        if tokens.len() > 1 {
            learned.observe_ordinary(&engine.observe(&tokens, 1..tokens.len(), CANDIDATES)?)?;
        }
    }
    let tokens = encode(&engine, &train)?;
    let (mut times, mut applied, mut positions) = (Vec::new(), 0, 0);
    for window in tokens.chunks(WINDOW).filter(|window| window.len() > 1) {
        let observations = engine.observe(window, 1..window.len(), CANDIDATES)?;
        let started = Instant::now();
        let update = learned.learn(&observations, Lesson::Corrected)?;
        times.push(started.elapsed() / update.positions.div_ceil(64).max(1) as u32);
        (applied, positions) = (applied + update.applied, positions + update.positions);
    }
    engine.set_adapters(&[ScaledAdapter::new(learned.current(), 1.0)])?;
    let after = measure(&engine)?;
    times.sort_unstable();
    let at = |share: f64| {
        times.get(((times.len() - 1) as f64 * share) as usize).copied().unwrap_or(Duration::ZERO)
    };
    println!("{positions} tokens, {applied} updates of at most 64, {:?} each (p99 {:?})", at(0.5), at(0.99));
    for ((path, before), after) in others.iter().zip(before).zip(after) {
        println!("{path}: {before:.3} -> {after:.3}, {:+.2} %", 100.0 * (after / before - 1.0));
    }
    Ok(())
}
