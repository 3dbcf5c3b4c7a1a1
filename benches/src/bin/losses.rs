//! Gain of DPO, GRPO and contrastive fine-tuning on held-out paragraphs of two texts.
//!
//! ```text
//! losses MODEL.gguf TRAIN.txt TEST.txt STEPS [contrastive] [dpo] [grpo]
//! ```
//!
//! DPO: pairs of a continuation without its commas (chosen) and with them (rejected). GRPO: the
//! reward of a sample is 1 without a comma, else 0. Contrastive: 32 words of each half of a
//! paragraph.

use std::ops::{ControlFlow, RangeInclusive};
use std::sync::Arc;
use std::time::Instant;

use gguf_rs_lite::Gguf;
use ruvllm::{AdapterSource, Engine, EngineOptions, GenerateRequest, Prompt, SamplingParams};
use ruvllm_adapters::Adapter;
use ruvllm_adapters::export::FactorType;
use ruvllm_models::{Compute, Model, Pooling};
use ruvllm_text::tokenizer::{EncodeOptions, Tokenizer};
use ruvllm_training::{
    Answer, Backprop, BackpropOptions, Contrastive, GroupRelative, Lora, LoraConfig, Objective, Pair,
    Preference, Preferences, RewardConfig, Rollout, Sequence, TrainConfig, Trainer, retrieval,
};

type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// Tokens of a sample.
const TOKENS: usize = 24;
/// Samples of each held-out prompt that are measured.
const SAMPLES: u64 = 3;
const BETA: f64 = 0.1;
/// Characters of a paragraph of DPO and GRPO.
const LENGTHS: RangeInclusive<usize> = 250..=700;
/// Characters of a paragraph of two halves.
const HALVED_LENGTHS: RangeInclusive<usize> = 250..=1500;
/// Words of a query and of its positive.
const WORDS: usize = 32;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, train, test, steps, parts @ ..] = &arguments[..] else {
        return Err("usage: losses MODEL.gguf TRAIN.txt TEST.txt STEPS [contrastive] [dpo] [grpo]".into());
    };
    let steps = steps.parse().map_err(|_| format!("{steps} is no number of steps"))?;
    let has = |name: &str| parts.is_empty() || parts.iter().any(|part| part == name);
    let gguf = Gguf::open(model)?;
    let (loaded, tokenizer) = (Model::load(&gguf, &mut |_| ())?, Tokenizer::from_gguf(gguf.metadata())?);
    let compute = Compute::new(std::thread::available_parallelism()?.get())?;
    let engine = Engine::open_with(std::path::Path::new(model), &EngineOptions::default())?;
    let bench = Bench { model: &loaded, compute: &compute, tokenizer: &tokenizer, engine: &engine, steps };
    let halved = (paragraphs(train, &HALVED_LENGTHS)?, paragraphs(test, &HALVED_LENGTHS)?);
    let (train, test) = (paragraphs(train, &LENGTHS)?, paragraphs(test, &LENGTHS)?);
    println!("| loss | steps | s | held-out measurement | before | after |\n|---|---:|---:|---|---:|---:|");
    if has("contrastive") {
        bench.contrastive(&halved.0, &halved.1)?;
    }
    if has("dpo") {
        bench.preference(&train, &test)?;
    }
    if has("grpo") {
        bench.reward(&train, &test)?;
    }
    Ok(())
}

/// Paragraphs of these lengths, in one line each.
fn paragraphs(path: &str, lengths: &RangeInclusive<usize>) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let line = |paragraph: &str| paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
    Ok(text
        .split("\n\n")
        .map(line)
        .filter(|text| text.is_ascii() && text.starts_with(char::is_alphabetic))
        .filter(|text| lengths.contains(&text.len()))
        .collect())
}

struct Bench<'b> {
    model: &'b Model,
    compute: &'b Compute,
    tokenizer: &'b Tokenizer,
    engine: &'b Engine,
    steps: u64,
}

impl Bench<'_> {
    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let options = EncodeOptions { add_special: false, parse_special: false };
        Ok(self.tokenizer.encode(text, options)?)
    }

    fn backprop(&self) -> Result<Backprop<'_>> {
        Ok(Backprop::new(self.model, self.compute, BackpropOptions::default())?)
    }

    fn lora(&self) -> Result<Lora> {
        let config = LoraConfig { rank: 8, alpha: 16.0, ..LoraConfig::default() };
        Ok(Lora::new(self.model.adapter_base(), &config)?)
    }

    /// Trains on an objective; seconds and factors.
    fn train<'t>(
        &self,
        backprop: &'t mut Backprop<'_>,
        objective: Box<dyn Objective + 't>,
        (steps, batch, rate): (u64, usize, f32),
    ) -> Result<(f64, Lora)> {
        let config = TrainConfig { rate, steps, batch, ..TrainConfig::default() };
        let start = Instant::now();
        let mut trainer = Trainer::with_objective(backprop, self.lora()?, objective, config)?;
        trainer.run(&mut |trainer, report| {
            if report.step.is_multiple_of(5) {
                eprintln!("{}: step {}, {:.4}", trainer.label(), report.step, report.loss);
            }
            ControlFlow::Continue(())
        })?;
        Ok((start.elapsed().as_secs_f64(), trainer.into_lora()))
    }

    fn contrastive(&self, train: &[String], test: &[String]) -> Result<()> {
        let pairs = |texts: &[String]| -> Result<Vec<Pair>> {
            let mut pairs = Vec::new();
            for text in texts {
                let words: Vec<&str> = text.split(' ').collect();
                let (query, positive) = words.split_at(words.len() / 2);
                let sequence = |words: &[&str]| -> Result<Sequence> {
                    Ok(Sequence::new(self.encode(&words[..words.len().min(WORDS)].join(" "))?))
                };
                pairs.push(Pair { query: sequence(query)?, positive: sequence(positive)?, negative: None });
            }
            Ok(pairs)
        };
        let (data, test, steps) = (pairs(train)?, pairs(test)?, self.steps);
        let mut backprop = self.backprop()?;
        let before = retrieval(&mut backprop, &self.lora()?, &test, Pooling::Mean, 16)?;
        let objective = Contrastive::new(&backprop, &data, &[], 0.05, Pooling::Mean)?;
        let (seconds, lora) = self.train(&mut backprop, Box::new(objective), (steps, 32, 1e-3))?;
        let after = retrieval(&mut backprop, &lora, &test, Pooling::Mean, 16)?;
        let row = |name: &str, before: f64, after: f64| {
            println!(
                "| contrastive | {steps} | {seconds:.0} | {name} of {} | {before:.3} | {after:.3} |",
                test.len()
            );
        };
        row("recall@1", before.recall_at_1, after.recall_at_1);
        row("MRR", before.mrr, after.mrr);
        Ok(())
    }

    fn preference(&self, train: &[String], test: &[String]) -> Result<()> {
        let pairs = |texts: &[String], n: usize| -> Result<Vec<Preference>> {
            let mut pairs = Vec::new();
            let (with_comma, mut start) = (with_comma(texts), Vec::new());
            start.extend(with_comma.iter().map(|(prompt, rest)| (prompt.as_str(), rest.as_str())));
            for (prompt, rest) in spread(&start, n) {
                let prompt = self.encode(prompt)?;
                let answer = |text: &str| -> Result<Sequence> {
                    Ok(Sequence::with_prompt(&prompt, &self.encode(text)?))
                };
                pairs.push(Preference { chosen: answer(&rest.replace(',', ""))?, rejected: answer(rest)? });
            }
            Ok(pairs)
        };
        let (data, held_out, steps) = (pairs(train, 400)?, pairs(test, 60)?, self.steps);
        let mut backprop = self.backprop()?;
        let mut first = Preferences::new(&backprop, &data, &held_out, BETA)?;
        let before = first.measure(&mut backprop, None, 8)?.ok_or("no pairs")?;
        // Without validation, so that the factors are those of the last step.
        let objective = Preferences::new(&backprop, &data, &[], BETA)?;
        let (seconds, lora) = self.train(&mut backprop, Box::new(objective), (steps, 4, 1e-3))?;
        let after = first.measure(&mut backprop, Some(&lora), 8)?.ok_or("no pairs")?;
        let row = |name: &str, before: f64, after: f64| {
            println!("| DPO | {steps} | {seconds:.0} | {name} | {before:.3} | {after:.3} |");
        };
        row("loss of held-out pairs", before.loss, after.loss);
        row("chosen likelier", before.preferred, after.preferred);
        row("samples without comma", self.share(test, None)?, self.share(test, Some(&lora))?);
        Ok(())
    }

    fn reward(&self, train: &[String], test: &[String]) -> Result<()> {
        let texts: Vec<String> = with_comma(train).into_iter().map(|(prompt, _)| prompt).collect();
        let mut prompts = Vec::new();
        for text in spread(&texts, 200) {
            prompts.push(self.encode(text)?);
        }
        let steps = self.steps;
        let mut backprop = self.backprop()?;
        let config = RewardConfig { group: 6, beta: 0.04, seed: 1 };
        let objective = GroupRelative::new(Sampled { bench: self, prompts }, config)?;
        let (seconds, lora) = self.train(&mut backprop, Box::new(objective), (steps, 4, 1e-3))?;
        let [before, after] = [self.share(test, None)?, self.share(test, Some(&lora))?];
        println!("| GRPO | {steps} | {seconds:.0} | samples without comma | {before:.3} | {after:.3} |");
        Ok(())
    }

    /// Share of samples without a comma, for 20 held-out prompts.
    fn share(&self, test: &[String], lora: Option<&Lora>) -> Result<f64> {
        let adapter = lora.map(|lora| self.adapter(lora)).transpose()?;
        let prompts: Vec<String> = with_comma(test).into_iter().map(|(prompt, _)| prompt).collect();
        let prompts = spread(&prompts, 20);
        let (mut without, mut n) = (0_u32, 0_u32);
        for prompt in &prompts {
            for seed in 0..SAMPLES {
                let found = self.sample(&self.encode(prompt)?, seed, adapter.as_ref())?;
                without += u32::from(!found.1.contains(','));
                n += 1;
            }
        }
        Ok(f64::from(without) / f64::from(n.max(1)))
    }

    fn adapter(&self, lora: &Lora) -> Result<Arc<Adapter>> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("adapter");
        lora.write(&path, FactorType::F32, false)?;
        Ok(self.engine.load_adapter(&[AdapterSource { path, scale: 1.0 }])?)
    }

    /// A continuation from the whole distribution: tokens and text.
    fn sample(
        &self,
        prompt: &[u32],
        seed: u64,
        adapter: Option<&Arc<Adapter>>,
    ) -> Result<(Vec<u32>, String)> {
        let mut sampling = SamplingParams::default();
        (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) = (1.0, 0, 1.0, 0.0);
        let request = GenerateRequest::new(Prompt::Tokens(prompt.to_vec()))
            .with_max_tokens(TOKENS)
            .with_sampling(sampling)
            .with_seed(seed)
            .with_ignore_eos(true)
            .with_adapter(adapter.cloned());
        let completion = self.engine.generate(request)?;
        Ok((completion.tokens, completion.text))
    }
}

/// Prompts of 8 words with the 18 words behind them, of paragraphs that have a comma there.
fn with_comma(texts: &[String]) -> Vec<(String, String)> {
    let split = |text: &String| {
        let words: Vec<&str> = text.split(' ').collect();
        let rest = format!(" {}", words.get(8..26)?.join(" "));
        rest.contains(',').then(|| (words[..8].join(" "), rest))
    };
    texts.iter().filter_map(split).collect()
}

/// At most `n` items, at equal distances.
fn spread<T>(items: &[T], n: usize) -> Vec<&T> {
    items.iter().step_by(items.len().div_ceil(n).max(1)).collect()
}

/// Samples of the engine, rewarded if they have no comma.
struct Sampled<'b> {
    bench: &'b Bench<'b>,
    prompts: Vec<Vec<u32>>,
}

impl Rollout for Sampled<'_> {
    fn n_prompts(&self) -> usize {
        self.prompts.len()
    }

    fn n_held_out(&self) -> usize {
        0
    }

    fn sample(
        &mut self,
        lora: &Lora,
        prompts: &[usize],
        _: bool,
        count: usize,
        seed: u64,
    ) -> ruvllm_training::Result<Vec<Answer>> {
        let failed =
            |error: Box<dyn std::error::Error>| ruvllm_training::Error::Other(error.to_string().into());
        let adapter = self.bench.adapter(lora).map_err(failed)?;
        let mut answers = Vec::new();
        for &prompt in prompts {
            let prompt = &self.prompts[prompt];
            for _ in 0..count {
                let seed = seed.wrapping_add(1_000_000 + answers.len() as u64);
                let (tokens, text) = self.bench.sample(prompt, seed, Some(&adapter)).map_err(failed)?;
                let reward = f64::from(u8::from(!text.contains(',')));
                answers.push(Answer { sequence: Sequence::with_prompt(prompt, &tokens), reward });
            }
        }
        Ok(answers)
    }

    fn settings(&self) -> String {
        "no comma".to_owned()
    }

    fn data_digest(&self) -> [u8; 32] {
        [0; 32]
    }
}
