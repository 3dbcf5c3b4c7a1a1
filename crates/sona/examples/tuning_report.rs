//! The tuner beside every static setting of a grid, on the simulated shifting load.
//!
//! `cargo run --release -p ruvllm-sona --features simulator --example tuning_report`

use std::error::Error;

use ruvllm_sona::tuning::simulator::{Report, shifting_load, simulate};
use ruvllm_sona::tuning::{Bounds, StepSettings, TunerSettings};

/// KiB of KV cache: 2 GiB.
const CAPACITY: f64 = 2.0 * 1024.0 * 1024.0;

fn step(hot: usize, max_batch: usize, prefill_chunk: usize, draft_tokens: usize) -> StepSettings {
    StepSettings { hot_tokens: hot, warm_tokens: hot, max_batch, prefill_chunk, draft_tokens }
}

fn main() -> Result<(), Box<dyn Error>> {
    let bounds = Bounds { low: step(64, 2, 32, 0), high: step(8192, 96, 1024, 8) };
    let settings = TunerSettings::new(bounds);
    let load = shifting_load(400.0);
    let run = |start, is_tuned, seed| simulate(&load, CAPACITY, &settings, start, is_tuned, seed);
    let mut reports = Vec::new();
    for hot in [128, 512, 1024, 2048, 8192] {
        for batch in [8, 16, 24, 32, 48, 64] {
            for chunk in [64, 128, 256] {
                for draft in [0, 1, 2, 4, 8] {
                    let start = step(hot, batch, chunk, draft);
                    reports.push((run(start, false, 1)?, start));
                }
            }
        }
    }
    reports.sort_by(|a, b| b.0.score.total_cmp(&a.0.score));
    println!("best of {} static settings", reports.len());
    for (report, start) in reports.iter().take(3) {
        print(&format!("{start:?}"), report);
    }
    for seed in 1..=5 {
        print(&format!("tuned, seed {seed}"), &run(step(1024, 32, 256, 0), true, seed)?);
    }
    Ok(())
}

fn print(name: &str, report: &Report) {
    let phases: Vec<String> = report.phases.iter().map(|value| format!("{value:6.1}")).collect();
    println!("{:6.1} [{}] {} changes: {name}", report.score, phases.join(" "), report.changes.len());
}
