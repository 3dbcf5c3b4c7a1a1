//! Time of an update of the instant loop by the number of tokens that it teaches, on the shapes of
//! two models with random weights.
//!
//! `cargo run --release -p ruvllm-sona --example update_times`

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use ruvllm_kernels::Kernels;
use ruvllm_kernels::quant::{PackedMatrix, SharedBytes, WeightFormat};
use ruvllm_sona::evaluation::Latency;
use ruvllm_sona::instant::{InstantLearner, Lesson, Observations, OutputHead, Scratch, Settings};
use ruvllm_sona::random::Random;

/// Name, width, vocabulary.
const MODELS: [(&str, usize, usize); 2] = [("base", 512, 32_000), ("1B", 2048, 128_256)];
/// Tokens of a lesson.
const TOKENS: [usize; 3] = [8, 16, 64];
const LESSONS: usize = 60;
const CANDIDATES: usize = 48;
/// Positions of ordinary text that are kept.
const ORDINARY: usize = 512;

/// Output projection in `Q8_0`.
struct Head {
    kernels: Kernels,
    weights: PackedMatrix,
}

impl OutputHead for Head {
    fn model_dim(&self) -> usize {
        self.weights.cols()
    }

    fn vocab_size(&self) -> usize {
        self.weights.rows()
    }

    fn row(&self, token: u32, row: &mut [f32]) {
        self.weights.dequantize_row_with(&self.kernels, token as usize, row);
    }

    fn kernels(&self) -> Kernels {
        self.kernels
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let kernels = Kernels::detect()?;
    println!("| model | tokens of a lesson | steps | p50, ms | p99, ms |\n|---|---:|---:|---:|---:|");
    for (name, dim, vocab_size) in MODELS {
        let mut random = Random::new(1);
        let values: Vec<f32> = (0..dim * 1024).map(|_| (random.uniform() as f32 - 0.5) * 0.1).collect();
        // Rows repeat, at other places: their values do not matter, their bytes do.
        let format = WeightFormat::Q8_0;
        let mut block = vec![0; format.row_bytes(values.len()).unwrap_or(0)];
        format.quantize(&values, &mut block);
        let row = block.len() / 1024;
        let bytes: Vec<u8> =
            (0..vocab_size).flat_map(|i| block[(i % 1024) * row..][..row].iter().copied()).collect();
        let weights = PackedMatrix::new(format, vocab_size, dim, SharedBytes::new(bytes))?;
        let head = Arc::new(Head { kernels, weights });
        for tokens in TOKENS {
            let mut learner = InstantLearner::new(head.clone(), Settings::default(), CANDIDATES)?;
            let ordinary = observe(&head, &mut random, ORDINARY)?;
            ordinary.iter().try_for_each(|position| learner.observe_ordinary(position))?;
            let mut times = Vec::new();
            for _ in 0..LESSONS {
                let observations = observe(&head, &mut random, tokens)?;
                let start = Instant::now();
                learner.learn(&observations, Lesson::Corrected)?;
                times.push(start.elapsed());
            }
            let steps = learner.updates() as f64 / LESSONS as f64;
            let Some(Latency { p50_us, p99_us, .. }) = Latency::of(times) else { continue };
            println!("| {name} | {tokens} | {steps:.1} | {:.2} | {:.2} |", p50_us / 1e3, p99_us / 1e3);
        }
    }
    Ok(())
}

/// Positions whose logits have a few likely tokens among many others, as those of a language model.
fn observe(head: &Head, random: &mut Random, positions: usize) -> Result<Observations, Box<dyn Error>> {
    let (dim, vocab_size) = (head.model_dim(), head.vocab_size());
    let mut observations = Observations::new(dim, CANDIDATES)?;
    let mut scratch = Scratch::default();
    let mut logits = vec![0.0; vocab_size];
    for _ in 0..positions {
        let hidden: Vec<f32> = (0..dim).map(|_| random.normal() as f32).collect();
        logits.fill_with(|| random.normal() as f32);
        // Zipf: frequent tokens are likely at most positions.
        for _ in 0..200 {
            let token = (vocab_size as f64).powf(random.uniform()) as usize - 1;
            logits[token.min(vocab_size - 1)] = 6.0 + 2.0 * random.normal() as f32;
        }
        let target = (vocab_size as f64).powf(random.uniform()) as usize - 1;
        observations.push(&head.kernels, &hidden, &logits, target as u32, &mut scratch)?;
    }
    Ok(observations)
}
