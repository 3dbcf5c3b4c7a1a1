//! Time of sampling, for one request and for 16 in a step on all threads.
//!
//! ```sh
//! cargo run --release -p ruvllm --example sampling
//! ```

use std::hint::black_box;
use std::sync::Mutex;
use std::time::Instant;

use ruvllm::{Logprobs, Sampler, SamplingParams};
use ruvllm_kernels::Kernels;
use ruvllm_kernels::pool::ThreadPool;

/// Requests of a step.
const REQUESTS: usize = 16;

/// Measured steps of each line.
const STEPS: usize = 200;

/// Parameters, and whether log-probabilities are computed.
type Setting = (&'static str, SamplingParams, bool);

fn settings() -> [Setting; 6] {
    let usual = || SamplingParams::default().with_seed(Some(1));
    let penalties = usual().with_repeat_penalty(1.1).with_frequency_penalty(0.1).with_repeat_last_n(256);
    [
        ("greedy", SamplingParams::greedy(), false),
        ("top-k 40, top-p, min-p", usual(), false),
        ("top-p, min-p", usual().with_top_k(0), false),
        ("no filters", usual().with_top_k(0).with_top_p(1.0).with_min_p(0.0), false),
        ("penalties, top-k 40, ...", penalties, false),
        ("top-k 40, ..., logprobs 5", usual(), true),
    ]
}

/// A uniform number of an index (SplitMix64).
fn uniform(index: u64) -> f64 {
    let mut z = index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}

/// A row of logits: normal with a deviation of 2.5, and a few likely tokens. It is flat: top-p
/// alone keeps tens of thousands of tokens, which is its worst case.
fn row(vocab_size: usize, seed: u64) -> Vec<f32> {
    let number = |index: u64, k: u64| uniform((seed << 40) | (index << 4) | k);
    let normal = |index: u64| (0..12).map(|k| number(index, k)).sum::<f64>() - 6.0;
    let mut row: Vec<f32> = (0..vocab_size as u64).map(|index| 2.5 * normal(index) as f32).collect();
    for k in 0..20 {
        row[(number(k, 13) * vocab_size as f64) as usize] += 6.0 + 4.0 * number(k, 14) as f32;
    }
    row
}

/// A request: its sampler, and memory for log-probabilities.
struct Request {
    sampler: Sampler,
    logprobs: Option<Logprobs>,
}

impl Request {
    /// Samples the token at a position.
    fn sample(&mut self, logits: &[f32], position: usize) {
        let token = self.sampler.sample(logits, position).expect("a token is possible");
        if let Some(logprobs) = &mut self.logprobs {
            self.sampler.logprobs_into(logits, token, 5, logprobs).expect("a distribution");
        }
        self.sampler.accept(black_box(token));
    }
}

/// Median of microseconds.
fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let kernels = Kernels::detect()?;
    let pool = ThreadPool::new(std::thread::available_parallelism()?.get())?;
    println!("{} threads, {}\n", pool.threads(), kernels.isa());
    println!("| vocabulary | setting | one request, us | {REQUESTS} requests, us |");
    println!("|---:|---|---:|---:|");
    for vocab_size in [8_192, 32_000, 128_256] {
        let rows: Vec<Vec<f32>> = (0..REQUESTS as u64).map(|seed| row(vocab_size, seed)).collect();
        for (name, params, has_logprobs) in settings() {
            let request = || {
                let sampler = Sampler::new(kernels, &params, vocab_size)?;
                let logprobs = has_logprobs.then(Logprobs::default);
                Ok::<_, ruvllm::Error>(Mutex::new(Request { sampler, logprobs }))
            };
            let requests = (0..REQUESTS).map(|_| request()).collect::<Result<Vec<_>, _>>()?;
            let sample = |index: usize, position| {
                requests[index].lock().expect("no panic").sample(&rows[index], position);
            };
            let (mut one, mut all) = (Vec::new(), Vec::new());
            for position in 0..STEPS {
                let start = Instant::now();
                sample(position % REQUESTS, 2 * position);
                one.push(start.elapsed().as_secs_f64() * 1e6);
                let start = Instant::now();
                pool.for_each_chunk(REQUESTS, 1, &|range| {
                    range.for_each(|index| sample(index, 2 * position + 1));
                });
                all.push(start.elapsed().as_secs_f64() * 1e6);
            }
            println!("| {vocab_size} | {name} | {:.1} | {:.1} |", median(one), median(all));
        }
    }
    Ok(())
}
