//! Fine-tunes a model on a text and reports held-out perplexity before and after.
//!
//! ```text
//! finetune MODEL.gguf TRAIN.txt TEST.txt GENERAL.txt OUT [key=value ...]
//! ```
//! `GENERAL.txt` is general text: its first 100 KB measure what was forgotten, and a part of what
//! follows, `replay` of the training windows, is mixed into the training data. Keys: `rank`,
//! `alpha`, `rate`, `steps`, `batch`, `window`, `replay`, `threads`, `seed`, `seconds` (a limit),
//! `gradients` (`auto`, `f32`, `bf16`, `q8_0`), `checkpointing` (`on`, `off`), `evaluate` (`on`,
//! `off`). The adapter is written to the folder OUT.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use gguf_rs_lite::Gguf;
use ruvllm_adapters::export::FactorType;
use ruvllm_models::{Compute, Model};
use ruvllm_text::tokenizer::{EncodeOptions, Tokenizer};
use ruvllm_training::{
    Backprop, BackpropOptions, GradientFormat, Lora, LoraConfig, Schedule, Sequence, TrainConfig, Trainer,
    mean_loss,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Tokens of a window of held-out text.
const TEST_WINDOW: usize = 512;

/// Most tokens of held-out text.
const TEST_TOKENS: usize = 24 * TEST_WINDOW;

/// Bytes of general text that measure forgetting.
const GENERAL_BYTES: usize = 100_000;

struct Settings {
    rank: usize,
    alpha: f32,
    rate: f32,
    steps: u64,
    batch: usize,
    window: usize,
    replay: f32,
    threads: usize,
    seed: u64,
    seconds: u64,
    evaluate: bool,
    options: BackpropOptions,
}

impl Settings {
    fn read(args: &[String]) -> Result<Self> {
        let mut settings = Self {
            rank: 8,
            alpha: 16.0,
            rate: 1.5e-3,
            steps: 200,
            batch: 8,
            window: 256,
            replay: 0.1,
            threads: std::thread::available_parallelism()?.get(),
            seed: 0,
            seconds: u64::MAX,
            evaluate: true,
            options: BackpropOptions::default(),
        };
        for arg in args {
            let (key, value) = arg.split_once('=').ok_or_else(|| format!("`{arg}` is not key=value"))?;
            match key {
                "rank" => settings.rank = value.parse()?,
                "alpha" => settings.alpha = value.parse()?,
                "rate" => settings.rate = value.parse()?,
                "steps" => settings.steps = value.parse()?,
                "batch" => settings.batch = value.parse()?,
                "window" => settings.window = value.parse()?,
                "replay" => settings.replay = value.parse()?,
                "threads" => settings.threads = value.parse()?,
                "seed" => settings.seed = value.parse()?,
                "seconds" => settings.seconds = value.parse()?,
                "evaluate" => settings.evaluate = value == "on",
                "checkpointing" => settings.options.checkpointing = value == "on",
                "gradients" => {
                    settings.options.gradients = match value {
                        "auto" => GradientFormat::Auto,
                        "f32" => GradientFormat::F32,
                        "bf16" => GradientFormat::BF16,
                        "q8_0" => GradientFormat::Q8_0,
                        other => return Err(format!("no gradient format `{other}`").into()),
                    }
                }
                other => return Err(format!("no key `{other}`").into()),
            }
        }
        Ok(settings)
    }
}

/// Windows of a text's tokens, without overlap.
fn windows(tokens: &[u32], len: usize) -> Vec<Sequence> {
    tokens.chunks_exact(len).map(Sequence::new).collect()
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, train, test, general, out, rest @ ..] = &args[..] else {
        return Err("finetune MODEL.gguf TRAIN.txt TEST.txt GENERAL.txt OUT [key=value ...]".into());
    };
    let settings = Settings::read(rest)?;
    let gguf = Gguf::open(model)?;
    let model = Model::load(&gguf, &mut |_| ())?;
    let tokenizer = Tokenizer::from_gguf(gguf.metadata())?;
    let compute = Compute::new(settings.threads)?;
    let options = EncodeOptions { add_special: false, parse_special: false };
    let encode = |text: &str| tokenizer.encode(text, options);

    let general = std::fs::read_to_string(general)?;
    let split = general.ceil_char_boundary(GENERAL_BYTES);
    let general_test = windows(&encode(&general[..split])?, TEST_WINDOW);
    let mut data = windows(&encode(&std::fs::read_to_string(train)?)?, settings.window);
    let n_replay = (data.len() as f32 * settings.replay / (1.0 - settings.replay)) as usize;
    let replay = windows(&encode(&general[split..])?, settings.window);
    let stride = (replay.len() / n_replay.max(1)).max(1);
    data.extend(replay.into_iter().step_by(stride).take(n_replay));
    let mut test = windows(&encode(&std::fs::read_to_string(test)?)?, TEST_WINDOW);
    test.truncate(TEST_TOKENS / TEST_WINDOW);

    let config = LoraConfig { rank: settings.rank, alpha: settings.alpha, ..LoraConfig::default() };
    let lora = Lora::new(model.adapter_base(), &config)?;
    let mut backprop = Backprop::new(&model, &compute, settings.options)?;
    let mut perplexity = |lora: Option<&Lora>, sequences: &[Sequence]| -> Result<f64> {
        Ok(mean_loss(&mut backprop, lora, sequences, 4)?.exp())
    };
    let before = if settings.evaluate {
        Some([perplexity(None, &test)?, perplexity(None, &general_test)?])
    } else {
        None
    };
    let config = TrainConfig {
        rate: settings.rate,
        steps: settings.steps,
        batch: settings.batch,
        seed: settings.seed,
        schedule: Schedule::Cosine { floor: 0.0 },
        ..TrainConfig::default()
    };
    let mut trainer = Trainer::new(&mut backprop, lora, &data, &[], config)?;
    let (start, mut tokens, mut timed) = (Instant::now(), 0, (0, 0.0));
    trainer.run(&mut |_, report| {
        tokens += report.tokens;
        // The first step makes the transposed weights and all buffers.
        if report.step == 1 {
            timed = (tokens, start.elapsed().as_secs_f64());
        }
        let seconds = start.elapsed().as_secs_f64();
        if report.step == 1 || report.step.is_multiple_of(10) {
            let speed = (tokens - timed.0) as f64 / (seconds - timed.1).max(1e-9);
            println!(
                "step {}: loss {:.4}, norm {:.3}, {speed:.0} tokens/s",
                report.step, report.loss, report.gradient_norm
            );
        }
        if seconds > settings.seconds as f64 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    let lora = trainer.into_lora();
    lora.write(Path::new(out), FactorType::F16, true)?;
    if let Some([domain, other]) = before {
        let mut perplexity = |sequences: &[Sequence]| -> Result<f64> {
            Ok(mean_loss(&mut backprop, Some(&lora), sequences, 4)?.exp())
        };
        for (what, before, sequences) in [("domain", domain, &test), ("general", other, &general_test)] {
            let after = perplexity(sequences)?;
            println!(
                "{what}: perplexity {before:.3} -> {after:.3} ({:+.1} %)",
                100.0 * (after / before - 1.0)
            );
        }
    }
    Ok(())
}
