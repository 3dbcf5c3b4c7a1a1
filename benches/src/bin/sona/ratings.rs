//! Ratings alone: a preference for one property of the text.

use ruvllm::crates::sona::Rating;
use ruvllm::crates::sona::instant::{Lesson, Settings as Learning};
use ruvllm::{Completion, Engine, GenerateRequest, LearnedAdapter, SamplingParams, Tenant};
use serde_json::{Value, json};

use super::{Result, Settings, candidates, encode, engine, instant, percent, perplexity};

/// Tokens of a sample.
const TOKENS: usize = 24;
/// Ratings that are given.
const RATINGS: u64 = 200;
/// Samples that are measured before and after, from other seeds.
const SAMPLES: u64 = 200;
/// Properties that are tried: those nearest to one half.
const TRIED: usize = 2;

/// Prompts, in turn.
const PROMPTS: [&str; 8] = [
    "In the morning",
    "The old house",
    "When the train arrived",
    "She opened the door",
    "On the third day",
    "The teacher said",
    "Near the river",
    "After the storm",
];

/// A property of a text.
type Property = (&'static str, fn(&str) -> bool);

const PROPERTIES: [Property; 6] = [
    ("has a comma", |text| text.contains(',')),
    ("has a full stop", |text| text.contains('.')),
    ("has a quotation mark", |text| text.contains('"')),
    ("has a line break", |text| text.contains('\n')),
    ("has the word the", |text| text.split_whitespace().any(|word| word == "the")),
    ("is longer than 100 characters", |text| text.chars().count() > 100),
];

pub(super) fn run(settings: &Settings) -> Result<Value> {
    let engine = engine(settings)?;
    let texts = samples(&engine, None)?;
    let share = |texts: &[String], holds: fn(&str) -> bool| {
        texts.iter().filter(|text| holds(text)).count() as f64 / texts.len() as f64
    };
    let mut properties: Vec<_> =
        PROPERTIES.iter().map(|&(name, holds)| (name, holds, share(&texts, holds))).collect();
    properties.sort_by(|a, b| (a.2 - 0.5).abs().total_cmp(&(b.2 - 0.5).abs()));
    println!("| the sample | rated | before | after | general text |\n|---|---|---:|---:|---:|");
    let mut found = Vec::new();
    for (number, &(name, holds, before)) in properties.iter().take(TRIED).enumerate() {
        for (way, wanted) in [("for", true), ("against", false)] {
            let adapter = format!("{way}-{number}");
            let learned =
                engine.learned_adapter(&Tenant::root(), &adapter, Learning::default(), candidates())?;
            instant::hold_on(&engine, &learned)?;
            teach(&engine, &learned, &adapter, |text| holds(text) == wanted)?;
            let after = share(&samples(&engine, Some(&adapter))?, holds);
            let general = general(settings, &learned)?;
            println!(
                "| {name} | {way} | {:.0} % | {:.0} % | {general:+.2} % |",
                100.0 * before,
                100.0 * after
            );
            found.push(json!({
                "property": name, "rated": way, "before": before, "after": after,
                "general_percent": general,
            }));
        }
    }
    println!();
    Ok(Value::Array(found))
}

/// Generates samples with what was learned so far and rates each 1 or -1.
fn teach(
    engine: &Engine,
    learned: &LearnedAdapter,
    adapter: &str,
    is_wanted: impl Fn(&str) -> bool,
) -> Result<()> {
    for number in 0..RATINGS {
        let prompt = PROMPTS[number as usize % PROMPTS.len()];
        let sample = sample(engine, prompt, TOKENS, 1_000_000 + number, Some(adapter))?;
        let rating = Rating::new(if is_wanted(&sample.text) { 1.0 } else { -1.0 })?;
        let prompt = engine.encode_prompt(&ruvllm::Prompt::Text(prompt.to_owned()))?;
        let text = [prompt.as_slice(), &sample.tokens].concat();
        let observations = engine.observe(&text, prompt.len()..text.len(), candidates())?;
        learned.learn(&observations, Lesson::Rated(rating))?;
    }
    Ok(())
}

fn samples(engine: &Engine, adapter: Option<&str>) -> Result<Vec<String>> {
    (0..SAMPLES)
        .map(|number| {
            let prompt = PROMPTS[number as usize % PROMPTS.len()];
            Ok(sample(engine, prompt, TOKENS, number, adapter)?.text)
        })
        .collect()
}

/// Text at temperature 1.
pub(super) fn sample(
    engine: &Engine,
    prompt: &str,
    tokens: usize,
    seed: u64,
    adapter: Option<&str>,
) -> Result<Completion> {
    let mut sampling = SamplingParams::default();
    sampling.temperature = 1.0;
    let request =
        GenerateRequest::new(prompt).with_max_tokens(tokens).with_sampling(sampling).with_seed(seed);
    let request = request.with_ignore_eos(true);
    let request = match adapter {
        Some(name) => request.with_named_adapter(name, 1.0),
        None => request,
    };
    Ok(engine.generate(request)?)
}

/// Change of the perplexity of the general text in percent.
fn general(settings: &Settings, learned: &LearnedAdapter) -> Result<f64> {
    let mut engine = engine(settings)?;
    let general = encode(&engine, &settings.general)?;
    let before = perplexity(&engine, &general, settings.measured)?;
    engine.set_adapters(&[ruvllm::ScaledAdapter::new(learned.current(), 1.0)])?;
    Ok(percent(before, perplexity(&engine, &general, settings.measured)?))
}
