//! The deep loop: fine-tuning by back-propagation.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use gguf_rs_lite::Gguf;
use ruvllm_models::{Compute, Model};
use ruvllm_text::tokenizer::{EncodeOptions, Tokenizer};
use ruvllm_training::{
    Backprop, BackpropOptions, Lora, LoraConfig, Schedule, Sequence, TrainConfig, Trainer, mean_loss,
};
use serde_json::{Value, json};

use super::{Domain, Result, Settings, WINDOW, change, columns};

/// Tokens of a training window.
const TRAINED: usize = 256;
/// Windows of a step.
pub(super) const WINDOWS: usize = 8;
/// Share of general text in the training data.
const REPLAY: f64 = 0.1;

pub(super) fn run(settings: &Settings) -> Result<Value> {
    println!(
        "| domain | steps | tokens/s | test before | after | change | general before | after | change |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|");
    let mut found = Vec::new();
    let trainable = Trainable::load(settings)?;
    for domain in &settings.domains {
        found.push(of_domain(settings, &trainable, domain)?);
    }
    println!();
    Ok(Value::Array(found))
}

/// A model to fine-tune, its tokenizer, and general text that is mixed into the training data.
pub(super) struct Trainable {
    model: Model,
    tokenizer: Tokenizer,
    compute: Compute,
    /// Windows of general text behind what is measured.
    replay: Vec<Sequence>,
    /// Windows of general text that are measured.
    general: Vec<Sequence>,
}

/// Factors, and tokens per second of their training.
pub(super) struct FineTuned {
    pub(super) lora: Lora,
    pub(super) speed: f64,
}

impl Trainable {
    pub(super) fn load(settings: &Settings) -> Result<Self> {
        let gguf = Gguf::open(&settings.model)?;
        let mut trainable = Self {
            model: Model::load(&gguf, &mut |_| ())?,
            tokenizer: Tokenizer::from_gguf(gguf.metadata())?,
            compute: Compute::new(std::thread::available_parallelism()?.get())?,
            replay: Vec::new(),
            general: Vec::new(),
        };
        let mut general = trainable.windows(&settings.general, WINDOW)?;
        let rest = general.split_off((settings.measured / WINDOW).max(1).min(general.len()));
        let halves = rest.iter().flat_map(|sequence| sequence.tokens.chunks_exact(TRAINED));
        trainable.replay = halves.map(Sequence::new).collect();
        trainable.general = general;
        Ok(trainable)
    }

    fn windows(&self, path: &Path, len: usize) -> Result<Vec<Sequence>> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let options = EncodeOptions { add_special: false, parse_special: false };
        let tokens = self.tokenizer.encode(&text, options)?;
        Ok(tokens.chunks_exact(len).map(Sequence::new).collect())
    }

    fn backprop(&self) -> Result<Backprop<'_>> {
        Ok(Backprop::new(&self.model, &self.compute, BackpropOptions::default())?)
    }

    /// Trains factors on the data and [`REPLAY`] of general text.
    pub(super) fn fine_tune(&self, mut data: Vec<Sequence>, steps: u64) -> Result<FineTuned> {
        let replayed = (data.len() as f64 * REPLAY / (1.0 - REPLAY)) as usize;
        let stride = (self.replay.len() / replayed.max(1)).max(1);
        data.extend(self.replay.iter().step_by(stride).take(replayed).cloned());
        let config = LoraConfig { rank: 8, alpha: 16.0, ..LoraConfig::default() };
        let lora = Lora::new(self.model.adapter_base(), &config)?;
        let config = TrainConfig {
            rate: 1.5e-3,
            steps,
            batch: WINDOWS,
            schedule: Schedule::Cosine { floor: 0.0 },
            ..TrainConfig::default()
        };
        let mut backprop = self.backprop()?;
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
        Ok(FineTuned { lora: trainer.into_lora(), speed })
    }
}

fn of_domain(settings: &Settings, trainable: &Trainable, domain: &Domain) -> Result<Value> {
    let mut test = trainable.windows(&domain.test, WINDOW)?;
    test.truncate((settings.measured / WINDOW).max(1));
    let mut backprop = trainable.backprop()?;
    let mut measure = |lora: Option<&Lora>| -> Result<[f64; 2]> {
        let mut of = |sequences: &[Sequence]| mean_loss(&mut backprop, lora, sequences, 4);
        Ok([of(&test)?.exp(), of(&trainable.general)?.exp()])
    };
    let before = measure(None)?;
    let data = trainable.windows(&domain.train, TRAINED)?;
    let FineTuned { lora, speed } = trainable.fine_tune(data, settings.steps)?;
    let after = measure(Some(&lora))?;
    println!("| {} | {} | {speed:.0} | {} |", domain.name, settings.steps, columns(before, after));
    Ok(json!({
        "domain": domain.name, "steps": settings.steps, "tokens_per_s": speed,
        "test": change(before[0], after[0]), "general": change(before[1], after[1]),
    }))
}
