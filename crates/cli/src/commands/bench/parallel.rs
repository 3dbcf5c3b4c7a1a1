//! `ruvllm bench --parallel`: many requests at once.

use ruvllm::{Engine, ParallelOptions, ParallelResult, Percentiles, PrefixCaching, Speculation};
use serde::Serialize;

use super::{BenchArgs, Document};
use crate::commands::setup::Setup;
use crate::device::{Defaults, Loaded};
use crate::error::{Error, Result};
use crate::output;
use crate::progress::Progress;

/// Requests that ran at once.
#[derive(Serialize)]
pub(super) struct ParallelDocument {
    parallel: usize,
    prompt_tokens: usize,
    shared_prefix: usize,
    new_tokens: usize,
    requests: usize,
    threads: usize,
    kv: String,
    tokens_per_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    decode_tokens_per_s: Option<f64>,
    ttft_ms: PercentilesDocument,
    #[serde(skip_serializing_if = "Option::is_none")]
    itl_ms: Option<PercentilesDocument>,
    cached_tokens: usize,
    preemptions: u64,
    /// Absent if speculative decoding was off.
    #[serde(skip_serializing_if = "Option::is_none")]
    speculation: Option<SpeculationDocument>,
}

/// Setting of speculative decoding, and its counts.
#[derive(Serialize)]
struct SpeculationDocument {
    setting: String,
    drafted_tokens: usize,
    accepted_tokens: usize,
}

#[derive(Serialize)]
struct PercentilesDocument {
    p50: f64,
    p95: f64,
    p99: f64,
}

impl From<Percentiles> for PercentilesDocument {
    fn from(percentiles: Percentiles) -> Self {
        let [p50, p95, p99] = [percentiles.p50, percentiles.p95, percentiles.p99].map(output::rounded);
        Self { p50, p95, p99 }
    }
}

impl ParallelDocument {
    fn new(result: &ParallelResult, options: &ParallelOptions, model: &Loaded) -> Self {
        Self {
            parallel: result.parallel,
            prompt_tokens: options.prompt_tokens,
            shared_prefix: options.shared_prefix,
            new_tokens: options.new_tokens,
            requests: result.requests,
            threads: model.engine().map_or(1, Engine::threads),
            kv: model.backend().kv_policy().to_string(),
            tokens_per_s: output::rounded(result.tokens_per_s),
            decode_tokens_per_s: result.decode_tokens_per_s.map(output::rounded),
            ttft_ms: result.ttft_ms.into(),
            itl_ms: result.itl_ms.map(Into::into),
            cached_tokens: result.cached_tokens,
            preemptions: result.preemptions,
            speculation: (options.speculation != Speculation::Off).then(|| SpeculationDocument {
                setting: options.speculation.to_string(),
                drafted_tokens: result.drafted_tokens,
                accepted_tokens: result.accepted_tokens,
            }),
        }
    }
}

/// Measures on the device.
///
/// # Errors
/// No tokens to measure; a model that cannot be loaded; errors of the requests.
pub(super) fn measure(args: &BenchArgs) -> Result<Document> {
    let first = |tokens: &[usize]| tokens.first().copied().filter(|&tokens| tokens > 0);
    let (Some(prompt_tokens), Some(new_tokens)) = (first(&args.prompt), first(&args.generate)) else {
        return Err(Error::NothingToMeasure);
    };
    let options = ParallelOptions::default()
        .with_parallel(args.parallel.clone())
        .with_prompt_tokens(prompt_tokens)
        .with_new_tokens(new_tokens)
        .with_shared_prefix(args.shared_prefix)
        .with_runs(args.runs)
        .with_speculation(args.speculation.setting());
    let caching = if args.shared_prefix > 0 { PrefixCaching::Memory } else { PrefixCaching::Off };
    let engine_options = args
        .engine_options()
        .with_threads(args.threads.first().copied())
        .with_prefixes(caching)
        .with_prefill_chunk(args.batch);
    let engine_options = args.speculation.apply(engine_options, &args.model)?;
    let defaults = Defaults {
        gpu_context: Some(prompt_tokens.saturating_add(new_tokens)),
        gpu_sequences: args.parallel.iter().max().copied(),
        ..Defaults::default()
    };
    let model = args.device.load(&args.model, &args.adapters, engine_options, defaults)?;
    if let Some(engine) = model.engine() {
        warn_of_memory(engine, &options);
    }
    let mut progress = Progress::steps("measuring");
    let results = model
        .backend()
        .bench_parallel(&options, &mut |done, total| progress.update(done as u64, total as u64))?;
    drop(progress);
    let parallel = results.iter().map(|result| ParallelDocument::new(result, &options, &model)).collect();
    Ok(Document::new(Setup::new(&args.model, &model)?, Vec::new(), parallel, &model))
}

/// Warns of requests that will wait for memory, which is then part of the measurement.
fn warn_of_memory(engine: &Engine, options: &ParallelOptions) {
    let tokens = options.prompt_tokens.saturating_add(options.new_tokens);
    let parallel = options.parallel.iter().max().copied().unwrap_or(1);
    let (store, pool) = (engine.kv_store(), engine.kv_store().pool());
    let needed = store.sequence_bytes(tokens).saturating_mul(parallel);
    let budget = pool.capacity_pages() * pool.page_bytes();
    if needed > budget {
        let [needed, budget] = [needed, budget].map(|size| output::bytes(size as u64));
        output::warn(&format!(
            "{parallel} requests need {needed} of KV cache and the budget is {budget}, so that requests wait for \
             memory; raise --kv-budget to measure without"
        ));
    }
}

/// Table for people.
pub(super) fn table(results: &[ParallelDocument]) -> String {
    let header = ["requests", "t/s", "decode t/s", "TTFT p50", "p95", "p99", "ITL p50", "p95", "p99"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for result in results {
        let number = |value: f64| format!("{value:.1}");
        let three = |of: Option<&PercentilesDocument>| {
            of.map_or(["-"; 3].map(str::to_owned), |of| [of.p50, of.p95, of.p99].map(number))
        };
        let mut row = vec![
            result.parallel.to_string(),
            number(result.tokens_per_s),
            result.decode_tokens_per_s.map_or_else(|| "-".to_owned(), number),
        ];
        row.extend(three(Some(&result.ttft_ms)));
        row.extend(three(result.itl_ms.as_ref()));
        rows.push(row);
    }
    let mut text = output::table(&rows, &[0, 1, 2, 3, 4, 5, 6, 7, 8]);
    for result in results.iter().filter(|result| result.preemptions > 0 || result.cached_tokens > 0) {
        let preemptions = usize::try_from(result.preemptions).unwrap_or(usize::MAX);
        text.push_str(&format!(
            "{} at once: {} from the prefix cache, {}\n",
            result.parallel,
            output::counted(result.cached_tokens, "prompt token"),
            output::counted(preemptions, "preemption"),
        ));
    }
    for result in results {
        let Some(speculation) = &result.speculation else { continue };
        text.push_str(&format!(
            "{} at once: {} of {} accepted\n",
            result.parallel,
            speculation.accepted_tokens,
            output::counted(speculation.drafted_tokens, "draft"),
        ));
    }
    text
}
