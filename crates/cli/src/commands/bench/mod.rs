//! `ruvllm bench`: speed and memory of a model.

mod parallel;

use std::ops::ControlFlow;

use clap::Args;
use ruvllm::{BenchOptions, BenchResult, BenchTest, EngineOptions, Isa, KvPolicy, ProcessMemory, Spread};
use serde::Serialize;

use self::parallel::ParallelDocument;
use super::setup::Setup;
use crate::args::{self, AdapterArgs, CalibrationArgs, LoadingArgs, MeasuredSpeculationArgs, ModelArgs};
use crate::cpu_time::process_cpu_time;
use crate::device::{Defaults, DeviceArgs, GpuFacts, Loaded};
use crate::error::{Error, Result};
use crate::output;
use crate::progress::Progress;

const HELP: &str = "\
ppN computes a prompt of N tokens, tgN generates N tokens one by one (without sampling), greedyN decodes N tokens
greedily after one prompt token. Every run of one test is followed by one of the next, so that a slow spell of the machine
meets all tests alike.

--parallel N,.. submits N requests at the same time, in -r rounds, and reports the time to first token (TTFT) and the
inter-token latency (ITL) in milliseconds, tokens per second of a whole round, and of decode while all requests decode.
Drafts are off there unless --draft or --speculation asks for them; the prompts are random tokens, which drafts seldom
foretell.

With --device gpu each test has a run more, which is not counted; tg copies all logits to the host, as sampling needs
them, greedy 4 bytes per token. Results there have 1 thread and no CPU time; -t has no effect. --parallel computes a
pass with a row for each request in every step, and for each token of its draft; with a count above 32 all counts use
the kernels for many rows.

JSON: {version, commit, model: {name, fingerprint}, isa, parallel: [{parallel, prompt_tokens, shared_prefix,
new_tokens, requests, threads, kv, tokens_per_s, decode_tokens_per_s, ttft_ms: {p50, p95, p99}, itl_ms: {p50,
p95, p99}, cached_tokens, preemptions, speculation: {setting, drafted_tokens, accepted_tokens}}] with --parallel, else results: [{test, threads, batch, depth, kv,
runs, tokens_per_s: {median, min, max}, tokens_per_cpu_s: {median, min, max}}], load_ms, resident_bytes,
anonymous_bytes, gpu: {adapter, weights_bytes, host_weights_bytes, kv_bytes}}; on a GPU isa is absent and gpu is there;
tokens_per_cpu_s (t/cpu-s in the table) is tokens per second of this process's CPU time, times the threads,
and means the same on a busy machine. Memory is that of the process after the runs; the anonymous part is what
no file backs. What the system does not tell is absent.

Examples:
  ruvllm bench
  ruvllm bench --model model.gguf -p 512 -n 64 -t 1,2 --json
  ruvllm bench --model model.gguf --parallel 1,4,16 -p 256 -n 64 --shared-prefix 128
  ruvllm bench --model model.gguf --device gpu -p 512 -n 64 -g 64 -d 4096
  ruvllm bench --model model.gguf --device gpu --parallel 1,4,16 -p 128 -n 128";

/// Measure speed and memory
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct BenchArgs {
    /// Prompt lengths of the prefill tests; 0 = none
    #[arg(short = 'p', long = "n-prompt", value_name = "N,..", default_value = "512", value_delimiter = ',', value_parser = args::count)]
    prompt: Vec<usize>,

    /// Token counts of the decode tests; 0 = none
    #[arg(short = 'n', long = "n-gen", value_name = "N,..", default_value = "128", value_delimiter = ',', value_parser = args::count)]
    generate: Vec<usize>,

    /// Token counts of greedy decode, with the argmax on the device
    #[arg(short = 'g', long = "n-greedy", value_name = "N,..", value_delimiter = ',', value_parser = args::count)]
    greedy: Vec<usize>,

    /// Requests to run at once, with the first -p and -n: latencies and throughput
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = args::positive)]
    parallel: Vec<usize>,

    /// With --parallel: first tokens that all prompts have in common
    #[arg(long, value_name = "N", default_value = "0", requires = "parallel", value_parser = args::count)]
    shared_prefix: usize,

    /// Prompt tokens per forward pass
    #[arg(short, long = "batch-size", value_name = "B", default_value = "512", value_parser = args::positive)]
    batch: usize,

    /// Context depth before each test, in tokens; those beyond 4096 are copies
    #[arg(short, long = "n-depth", value_name = "N", default_value = "0", value_parser = args::count)]
    depth: usize,

    /// Thread counts to measure [default: one for each core]
    #[arg(short, long, value_name = "N,..", value_delimiter = ',', value_parser = args::positive)]
    threads: Vec<usize>,

    /// Measured runs of each test
    #[arg(short, long = "repetitions", value_name = "N", default_value = "5", value_parser = args::positive)]
    runs: usize,

    #[arg(long, value_name = "POLICY", help = args::KV_HELP, default_value = "f16", value_parser = args::kv_policy)]
    kv: KvPolicy,

    #[command(flatten)]
    calibration: CalibrationArgs,

    /// Memory budget of the KV cache, e.g. 512MiB [default: 4 contexts, as memory allows]
    #[arg(long, value_name = "BYTES", value_parser = args::bytes)]
    kv_budget: Option<usize>,

    /// Instruction set by name; `ruvllm doctor` lists those of this machine [default: the best]
    #[arg(long, value_name = "ISA", value_parser = args::isa)]
    isa: Option<Isa>,

    #[command(flatten)]
    device: DeviceArgs,

    #[command(flatten)]
    adapters: AdapterArgs,

    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    loading: LoadingArgs,

    #[command(flatten)]
    speculation: MeasuredSpeculationArgs,
}

/// The JSON document.
#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    setup: Setup,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    results: Vec<ResultDocument>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    parallel: Vec<ParallelDocument>,
    load_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    resident_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    anonymous_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu: Option<GpuFacts>,
}

/// Result of one test with one number of threads.
#[derive(Serialize)]
struct ResultDocument {
    test: String,
    threads: usize,
    batch: usize,
    depth: usize,
    kv: String,
    runs: usize,
    tokens_per_s: SpreadDocument,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens_per_cpu_s: Option<SpreadDocument>,
}

#[derive(Serialize)]
struct SpreadDocument {
    median: f64,
    min: f64,
    max: f64,
}

impl From<Spread> for SpreadDocument {
    fn from(spread: Spread) -> Self {
        let [median, min, max] = [spread.median, spread.min, spread.max].map(output::rounded);
        Self { median, min, max }
    }
}

impl From<&BenchResult> for ResultDocument {
    fn from(result: &BenchResult) -> Self {
        Self {
            test: result.test.to_string(),
            threads: result.threads,
            batch: result.batch,
            depth: result.depth,
            kv: result.kv.to_string(),
            runs: result.runs,
            tokens_per_s: result.tokens_per_s.into(),
            tokens_per_cpu_s: result.tokens_per_cpu_s.map(SpreadDocument::from),
        }
    }
}

impl BenchArgs {
    /// Options of the engine without threads.
    fn engine_options(&self) -> EngineOptions {
        (self.loading.options())
            .with_isa(self.isa)
            .with_kv(self.kv)
            .with_kv_calibration(self.calibration.kv_calibration.clone())
            .with_kv_budget(self.kv_budget)
    }
}

impl Document {
    fn new(
        setup: Setup,
        results: Vec<ResultDocument>,
        parallel: Vec<ParallelDocument>,
        model: &Loaded,
    ) -> Self {
        let memory = ProcessMemory::now();
        Self {
            setup,
            results,
            parallel,
            load_ms: output::rounded(model.load_time().as_secs_f64() * 1e3),
            resident_bytes: memory.resident_bytes,
            anonymous_bytes: memory.anonymous_bytes,
            gpu: model.gpu().cloned(),
        }
    }
}

pub(crate) fn run(args: &BenchArgs, json: bool) -> Result<()> {
    let document = if args.parallel.is_empty() { measure(args)? } else { parallel::measure(args)? };
    if json {
        return output::write_json(&document);
    }
    output::write_text(&human(&document)).map(|_| ())
}

/// Measures one request at a time.
fn measure(args: &BenchArgs) -> Result<Document> {
    let options = options(args)?;
    // The engine's own pool stays idle: the benchmark creates one for each number of threads.
    let engine_options = args.engine_options().with_threads(options.threads.first().copied());
    let longest = options.tests.iter().map(|test| test.tokens()).max().unwrap_or_default();
    let defaults =
        Defaults { gpu_context: Some(options.depth.saturating_add(longest)), ..Defaults::default() };
    let model = args.device.load(&args.model, &args.adapters, engine_options, defaults)?;
    let mut progress = Progress::steps("measuring");
    let results = model.backend().bench(&options, &mut |done, total| {
        progress.update(done as u64, total as u64);
        ControlFlow::Continue(())
    })?;
    drop(progress);
    let results = results.iter().map(ResultDocument::from).collect();
    Ok(Document::new(Setup::new(&args.model, &model)?, results, Vec::new(), &model))
}

fn options(args: &BenchArgs) -> Result<BenchOptions> {
    let prefill = args.prompt.iter().filter(|n| **n > 0).map(|n| BenchTest::Prefill(*n));
    let decode = args.generate.iter().filter(|n| **n > 0).map(|n| BenchTest::Decode(*n));
    let greedy = args.greedy.iter().filter(|n| **n > 0).map(|n| BenchTest::Greedy(*n));
    let tests: Vec<BenchTest> = prefill.chain(decode).chain(greedy).collect();
    if tests.is_empty() {
        return Err(Error::NothingToMeasure);
    }
    Ok(BenchOptions::default()
        .with_tests(tests)
        .with_batch(args.batch)
        .with_depth(args.depth)
        .with_threads(args.threads.clone())
        .with_runs(args.runs)
        .with_cpu_time(process_cpu_time))
}

fn human(document: &Document) -> String {
    let header = ["test", "threads", "batch", "depth", "t/s", "min..max", "t/cpu-s", "min..max", "kv"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for result in &document.results {
        let mut row = vec![
            result.test.clone(),
            result.threads.to_string(),
            result.batch.to_string(),
            result.depth.to_string(),
        ];
        for speed in [Some(&result.tokens_per_s), result.tokens_per_cpu_s.as_ref()] {
            match speed {
                Some(speed) => {
                    let digits = usize::from(speed.max < 1e4);
                    row.push(format!("{:.digits$}", speed.median));
                    row.push(format!("{:.digits$}..{:.digits$}", speed.min, speed.max));
                }
                None => row.extend(["-".to_owned(), "-".to_owned()]),
            }
        }
        row.push(result.kv.clone());
        rows.push(row);
    }
    let mut footer = format!("loaded in {:.0} ms", document.load_ms);
    if let Some(resident) = document.resident_bytes {
        footer.push_str(&format!(", {} resident", output::bytes(resident)));
    }
    if let Some(anonymous) = document.anonymous_bytes {
        footer.push_str(&format!(", of which {} are backed by no file", output::bytes(anonymous)));
    }
    if let Some(gpu) = &document.gpu {
        let (weights, kv) = (output::bytes(gpu.weights_bytes), output::bytes(gpu.kv_bytes));
        footer.push_str(&format!("\n{}, {weights} of weights, {kv} of keys and values", gpu.adapter));
        if gpu.host_weights_bytes > 0 {
            footer
                .push_str(&format!(", {} of weights in host memory", output::bytes(gpu.host_weights_bytes)));
        }
    }
    let table = match &document.parallel[..] {
        [] => output::table(&rows, &[1, 2, 3, 4, 5, 6, 7]),
        parallel => parallel::table(parallel),
    };
    format!("{table}\n{footer}\n")
}
