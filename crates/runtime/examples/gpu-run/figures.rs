//! Measurements.

use std::ops::ControlFlow;
use std::time::Instant;

use ruvllm::{BackendSession, GpuBackend, InferenceBackend};
use serde_json::{Map, Value, json};

use crate::Failure;
use crate::args::Args;
use crate::check::tokens;

/// Named results.
pub(crate) struct Figures {
    values: Map<String, Value>,
}

impl Figures {
    pub(crate) fn new(args: &Args, backend: &GpuBackend, load: f64) -> Self {
        let mut figures = Self { values: Map::new() };
        figures.set("adapter", json!(backend.adapter()));
        figures.set("model", json!(args.model.display().to_string()));
        figures.set("weight_bytes", json!(backend.weight_bytes()));
        figures.set("kv_bytes", json!(backend.kv_bytes()));
        figures.set("load_seconds", json!(load));
        figures
    }

    pub(crate) fn set(&mut self, name: &str, value: Value) {
        self.values.insert(name.to_owned(), value);
    }

    /// Prints the results and writes them to the file given by `--json`.
    pub(crate) fn finish(mut self, args: &Args) -> Result<(), Failure> {
        self.set("runs", json!(args.runs));
        let text = serde_json::to_string_pretty(&self.values)?;
        println!("{text}");
        if let Some(path) = &args.json {
            std::fs::write(path, text)?;
        }
        Ok(())
    }
}

/// Measures prefill and decode at depth 0 and at the requested depth. The first round is a warm-up:
/// it compiles kernels and raises clocks.
pub(crate) fn measure(args: &Args, backend: &GpuBackend, figures: &mut Figures) -> Result<(), Failure> {
    let room = args.prompt.max(args.tokens) + 1;
    let depths = if args.depth == 0 { vec![0] } else { vec![0, args.depth] };
    for depth in depths {
        let before = tokens(backend, depth);
        let prompt = tokens(backend, args.prompt);
        let mut session = backend.gpu_session((depth + room).min(backend.context_length()))?;
        if !before.is_empty() {
            session.prefill(&before, backend.prefill_chunk(), &mut || ControlFlow::Continue(()))?;
        }
        let mut prefill = Vec::new();
        for _ in 0..=args.runs {
            session.truncate(depth)?;
            let start = Instant::now();
            session.prefill(&prompt, backend.prefill_chunk(), &mut || ControlFlow::Continue(()))?;
            prefill.push(args.prompt as f64 / start.elapsed().as_secs_f64());
        }
        report(figures, &format!("pp{} at {depth}", args.prompt), &mut prefill[1..]);

        // Argmax on the device, then logits of each token on the host.
        let (mut chained, mut on_host) = (Vec::new(), Vec::new());
        for _ in 0..=args.runs {
            session.truncate(depth)?;
            let mut start = Instant::now();
            let mut seen = 0;
            // The first token belongs to the prefill.
            session.greedy(&prompt[..1], args.tokens + 1, &mut |_| {
                if seen == 0 {
                    start = Instant::now();
                }
                seen += 1;
                ControlFlow::Continue(())
            })?;
            chained.push(args.tokens as f64 / start.elapsed().as_secs_f64());
            session.truncate(depth)?;
            let start = Instant::now();
            for &token in prompt.iter().cycle().take(args.tokens) {
                session.forward(&[token])?;
            }
            on_host.push(args.tokens as f64 / start.elapsed().as_secs_f64());
        }
        report(figures, &format!("tg{} at {depth}", args.tokens), &mut chained[1..]);
        report(figures, &format!("tg{} at {depth}, logits to the host", args.tokens), &mut on_host[1..]);
    }
    figures.set("device_bytes", json!(backend.device_bytes()));
    Ok(())
}

/// Median, smallest and largest rate in tokens per second.
fn report(figures: &mut Figures, name: &str, rates: &mut [f64]) {
    rates.sort_by(f64::total_cmp);
    let (median, least, most) = (rates[rates.len() / 2], rates[0], rates[rates.len() - 1]);
    println!("{name}: {median:.1} tokens/s ({least:.1} to {most:.1})");
    figures.set(name, json!({ "median": median, "least": least, "most": most }));
}
