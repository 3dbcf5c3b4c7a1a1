//! Benchmarks a model on a GPU and compares its logits with the engine's.
//!
//! ```text
//! gpu-run MODEL.gguf [--adapter INDEX|NAME] [--software] [--context N] [--depth N]
//!         [--runs N] [--prompt N] [--tokens N] [--no-check] [--threads N] [--json FILE]
//! ```
//! Compares the logits of GPU and engine with those of the engine with the same weights in F32 (4
//! bytes of memory per weight), whose products do not round activations: the GPU's error may be
//! twice the engine's. Then compares greedy tokens, and prints figures of load, prefill (pp512) and
//! decode (tg64, at depth 0 and `--depth`) as JSON. Needs no other files; `ruvllm bench --device
//! gpu` measures the same.

mod args;
mod check;
mod figures;

use std::process::ExitCode;
use std::time::Instant;

use ruvllm::{GpuBackend, GpuOptions, InferenceBackend};

use crate::args::Args;
use crate::figures::Figures;

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let result = Args::parse(std::env::args().skip(1)).and_then(|args| run(&args));
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let mut text = error.to_string();
            let mut source = error.source();
            while let Some(error) = source {
                text.push_str(&format!(": {error}"));
                source = error.source();
            }
            eprintln!("gpu-run: {text}");
            ExitCode::from(2)
        }
    }
}

/// Loads, compares, measures; false if the comparison failed.
fn run(args: &Args) -> Result<bool, Failure> {
    let options = GpuOptions {
        adapter: args.adapter.clone(),
        software: args.software,
        context: Some(args.context()),
        ..GpuOptions::default()
    };
    let start = Instant::now();
    let backend = GpuBackend::load(&args.model.clone().into(), &options)?;
    let load = start.elapsed().as_secs_f64();
    println!("{}", backend.adapter());
    println!(
        "{}: {} layers, {:.0} MB of weights, {:.0} MB of keys and values, loaded in {load:.2} s",
        args.model.display(),
        backend.config().n_layers,
        backend.weight_bytes() as f64 / 1e6,
        backend.kv_bytes() as f64 / 1e6,
    );
    for name in backend.converted() {
        println!("stored as F16: {name}");
    }
    let mut figures = Figures::new(args, &backend, load);
    let agrees = if args.check { check::compare(args, &backend, &mut figures)? } else { true };
    figures::measure(args, &backend, &mut figures)?;
    figures.finish(args)?;
    Ok(agrees)
}
