//! The deep loop: fine-tuning by back-propagation.

use std::ops::ControlFlow;
use std::time::Instant;

use gguf_rs_lite::Gguf;
use ruvllm_models::{Compute, Model};
use ruvllm_text::tokenizer::{EncodeOptions, Tokenizer};
use ruvllm_training::{
    Backprop, BackpropOptions, Lora, LoraConfig, Schedule, Sequence, TrainConfig, Trainer, mean_loss,
};
use serde_json::{Value, json};

use super::{Domain, Result, Settings, WINDOW, change, percent};

/// Tokens of a training window, and windows of a step.
const TRAINED: (usize, usize) = (256, 8);
/// Share of general text in the training data.
const REPLAY: f64 = 0.1;

pub(super) fn run(settings: &Settings) -> Result<Value> {
    println!(
        "| domain | steps | tokens/s | test before | after | change | general before | after | change |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|");
    let mut found = Vec::new();
    for domain in &settings.domains {
        found.push(of_domain(settings, domain)?);
    }
    println!();
    Ok(Value::Array(found))
}

fn of_domain(settings: &Settings, domain: &Domain) -> Result<Value> {
    let gguf = Gguf::open(&settings.model)?;
    let model = Model::load(&gguf, &mut |_| ())?;
    let tokenizer = Tokenizer::from_gguf(gguf.metadata())?;
    let compute = Compute::new(std::thread::available_parallelism()?.get())?;
    let windows = |path: &std::path::Path, len: usize| -> Result<Vec<Sequence>> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let tokens = tokenizer.encode(&text, EncodeOptions { add_special: false, parse_special: false })?;
        Ok(tokens.chunks_exact(len).map(Sequence::new).collect())
    };
    let (window, batch) = TRAINED;
    let mut data = windows(&domain.train, window)?;
    let mut test = windows(&domain.test, WINDOW)?;
    let measured = (settings.measured / WINDOW).max(1);
    test.truncate(measured);
    // The beginning of the general text is measured, some of the rest is in the training data.
    let mut general = windows(&settings.general, WINDOW)?;
    let rest = general.split_off(measured.min(general.len()));
    let replayed = (data.len() as f64 * REPLAY / (1.0 - REPLAY)) as usize;
    let halves = rest.iter().flat_map(|sequence| sequence.tokens.chunks_exact(window)).map(Sequence::new);
    let halves: Vec<_> = halves.collect();
    let stride = (halves.len() / replayed.max(1)).max(1);
    data.extend(halves.into_iter().step_by(stride).take(replayed));

    let mut backprop = Backprop::new(&model, &compute, BackpropOptions::default())?;
    let measure = |lora: Option<&Lora>, backprop: &mut Backprop<'_>| -> Result<[f64; 2]> {
        let of =
            |sequences: &[Sequence], backprop: &mut Backprop<'_>| mean_loss(backprop, lora, sequences, 4);
        Ok([of(&test, backprop)?.exp(), of(&general, backprop)?.exp()])
    };
    let before = measure(None, &mut backprop)?;
    let config = LoraConfig { rank: 8, alpha: 16.0, ..LoraConfig::default() };
    let lora = Lora::new(model.adapter_base(), &config)?;
    let config = TrainConfig {
        rate: 1.5e-3,
        steps: settings.steps,
        batch,
        schedule: Schedule::Cosine { floor: 0.0 },
        ..TrainConfig::default()
    };
    let mut trainer = Trainer::new(&mut backprop, lora, &data, &[], config)?;
    let (start, mut first, mut tokens) = (Instant::now(), None, 0);
    trainer.run(&mut |_, report| {
        // The first step makes the transposed weights and all buffers.
        match first {
            None => first = Some(start.elapsed().as_secs_f64()),
            Some(_) => tokens += report.tokens,
        }
        ControlFlow::Continue(())
    })?;
    let speed = tokens as f64 / (start.elapsed().as_secs_f64() - first.unwrap_or(0.0)).max(1e-9);
    let lora = trainer.into_lora();
    let after = measure(Some(&lora), &mut backprop)?;
    println!(
        "| {} | {} | {speed:.0} | {:.3} | {:.3} | {:+.1} % | {:.3} | {:.3} | {:+.1} % |",
        domain.name,
        settings.steps,
        before[0],
        after[0],
        percent(before[0], after[0]),
        before[1],
        after[1],
        percent(before[1], after[1]),
    );
    Ok(json!({
        "domain": domain.name, "steps": settings.steps, "tokens_per_s": speed,
        "test": change(before[0], after[0]), "general": change(before[1], after[1]),
    }))
}
