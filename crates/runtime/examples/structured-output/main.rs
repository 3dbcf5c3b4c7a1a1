//! Generates JSON under a schema and prints what the constraint cost.
//!
//! `cargo run --release --example structured-output -- models/base-q8_0.gguf SCHEMAS.json [PROMPT]`
//!
//! The file holds one schema or a list of them. Costs are measured apart from the generation, by
//! following the tokens that it gave; with one line per schema on standard output.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ruvllm::serde_json::Value;
use ruvllm::{Checkpoint, Constraint, ConstraintCompiler, Engine, GenerateRequest, SamplingParams};

/// Tokens that an output may have.
const TOKENS: usize = 200;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(model), Some(schemas)) = (arguments.next(), arguments.next()) else {
        return Err("usage: structured-output MODEL SCHEMAS.json [PROMPT]".into());
    };
    let prompt = arguments.next().unwrap_or_else(|| "An example of the JSON data:\n".to_owned());
    let schemas = match ruvllm::serde_json::from_slice(&std::fs::read(schemas)?)? {
        Value::Array(schemas) => schemas,
        schema => vec![schema],
    };
    let engine = Engine::open(model.as_str())?;
    let tokenizer = Arc::new(ruvllm::crates::gguf::Gguf::open(&model)?.tokenizer()?);
    let ids = tokenizer.vocab_size();
    let started = Instant::now();
    let compiler = ConstraintCompiler::new(tokenizer, ids)?;
    println!("vocabulary of {ids} tokens: {:.1} ms", milliseconds(started.elapsed()));

    let (mut first_masks, mut steps, mut speeds) = (Vec::new(), Vec::new(), Vec::new());
    for (i, schema) in schemas.iter().enumerate() {
        let started = Instant::now();
        let constraint = Constraint::json_schema(schema)?;
        compiler.start(&constraint)?.mask()?;
        let first_mask = started.elapsed();
        let mut state = compiler.start(&constraint)?;
        let request = GenerateRequest::new(prompt.as_str())
            .with_max_tokens(TOKENS)
            .with_sampling(SamplingParams::greedy().with_temperature(1.0).with_seed(i as u64))
            .with_constraint(constraint);
        let completion = engine.generate(request)?;
        let mut own_steps = Vec::new();
        let mut forced = 0;
        for &token in &completion.tokens {
            let started = Instant::now();
            let mask = state.mask()?;
            let masked = started.elapsed();
            forced += usize::from(mask.ids().take(2).count() == 1);
            let started = Instant::now();
            state.accept(token)?;
            own_steps.push(masked + started.elapsed());
        }
        println!(
            "{i}: first mask {:.2} ms, step {:.0} us, {} tokens, {forced} forced, {}: {:?}",
            milliseconds(first_mask),
            1e3 * milliseconds(median(&mut own_steps)),
            completion.tokens.len(),
            completion.finish_reason,
            completion.text.chars().take(80).collect::<String>(),
        );
        first_masks.push(first_mask);
        steps.extend(own_steps);
        speeds.extend(completion.timings.decode_tok_s.filter(|_| completion.tokens.len() > 30));
    }
    first_masks.sort();
    steps.sort();
    speeds.sort_by(f64::total_cmp);
    let share = |times: &[Duration], of: usize| {
        times.get((times.len() * of / 100).min(times.len().saturating_sub(1))).copied().unwrap_or_default()
    };
    println!(
        "first mask: median {:.2} ms, 99 % {:.2} ms, most {:.2} ms",
        milliseconds(share(&first_masks, 50)),
        milliseconds(share(&first_masks, 99)),
        milliseconds(share(&first_masks, 100)),
    );
    println!(
        "mask and accept: median {:.0} us, 90 % {:.0} us, 99 % {:.0} us of {} steps; decode median {:.0} tokens/s",
        1e3 * milliseconds(share(&steps, 50)),
        1e3 * milliseconds(share(&steps, 90)),
        1e3 * milliseconds(share(&steps, 99)),
        steps.len(),
        speeds.get(speeds.len() / 2).copied().unwrap_or_default(),
    );
    Ok(())
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
