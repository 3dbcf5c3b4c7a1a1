//! Measures forward passes with LoRA adapters of random values beside the same passes without:
//! decode of one sequence and of 16, prefill of 16 prompts of 32 tokens. Variants take turns, pass
//! by pass; a line per workload has the median time without adapters, and the median and quartiles
//! of the relative speed with one adapter for all sequences and with one for each.
//!
//! Usage: `adapters MODEL THREADS MODULES RANK FORMAT [WORKLOAD]`, as `model.gguf 2 all 16 f16`

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use gguf_rs_lite::Gguf;
use ruvllm_adapters::{
    Adapter, BaseModel, Digests, FactorFormat, Layout, Projection, ScaledAdapter, SiteShape,
};
use ruvllm_benches::values;
use ruvllm_kernels::quant::SharedBytes;
use ruvllm_memory::{PagePool, PoolConfig, Request};
use ruvllm_models::{Compute, KvStore, LogitsRows, Model, Segment, Sequence, Workspace};

const SEQUENCES: usize = 16;
const PROMPT: usize = 32;
const CAPACITY: usize = 256;

/// Passes per variant.
const DECODE_PASSES: usize = 25;
const PREFILL_PASSES: usize = 9;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}; usage: adapters MODEL THREADS MODULES RANK FORMAT [WORKLOAD]");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [model, threads, modules, rank, format, rest @ ..] = &words[..] else {
        return Err("five or six words".into());
    };
    let wanted = |name: &str| rest.first().is_none_or(|only| only == name);
    let model = Model::load(&Gguf::open(model)?, &mut |_| ())?;
    let pool = PagePool::new(PoolConfig::new(4 << 30))?;
    let targets = targets(modules).ok_or("MODULES is all, qv, logits or final")?;
    let format = FactorFormat::from_name(format).ok_or("FORMAT is f32, f16 or i8")?;
    let adapters = (0..SEQUENCES)
        .map(|_| adapter(model.adapter_base(), &targets, rank.parse()?, format, &pool))
        .collect::<Result<Vec<_>>>()?;
    let mut bench = Bench {
        compute: Compute::new(threads.parse()?)?,
        store: model.kv_store(&"f16".parse()?, &pool)?,
        workspace: Workspace::new(),
        adapters,
        model,
    };
    if wanted("one") {
        report("decode of 1", &bench.decode(1, 2)?);
    }
    if wanted("decode") {
        report("decode of 16", &bench.decode(SEQUENCES, 3)?);
    }
    if wanted("prefill") {
        report("prefill of 16 x 32", &bench.prefill()?);
    }
    Ok(())
}

struct Bench {
    model: Model,
    compute: Compute,
    store: KvStore,
    workspace: Workspace,
    adapters: Vec<ScaledAdapter>,
}

impl Bench {
    /// Seconds of each pass of the first `variants` variants.
    fn decode(&mut self, sequences: usize, variants: usize) -> Result<Vec<Vec<f64>>> {
        let mut caches = self.caches(sequences)?;
        self.pass(&mut caches, PROMPT, 0)?;
        self.turns(DECODE_PASSES, variants, |bench, variant| bench.pass(&mut caches, 1, variant))
    }

    fn prefill(&mut self) -> Result<Vec<Vec<f64>>> {
        self.turns(PREFILL_PASSES, 3, |bench, variant| {
            let mut caches = bench.caches(SEQUENCES)?;
            bench.pass(&mut caches, PROMPT, variant)
        })
    }

    /// Runs the variants in turn, once for warming up.
    fn turns(
        &mut self,
        passes: usize,
        variants: usize,
        mut pass: impl FnMut(&mut Self, usize) -> Result<f64>,
    ) -> Result<Vec<Vec<f64>>> {
        let mut times = vec![Vec::new(); variants];
        for round in 0..=passes {
            for (variant, times) in times.iter_mut().enumerate() {
                let seconds = pass(self, variant)?;
                if round > 0 {
                    times.push(seconds);
                }
            }
        }
        Ok(times)
    }

    fn caches(&self, n: usize) -> Result<Vec<Sequence>> {
        (0..n).map(|_| Ok(self.model.new_sequence(&self.store, CAPACITY)?)).collect()
    }

    /// Seconds of a pass of `n_tokens` tokens per sequence: without adapters, with the first for
    /// all sequences, or with one for each.
    fn pass(&mut self, caches: &mut [Sequence], n_tokens: usize, variant: usize) -> Result<f64> {
        let tokens: Vec<u32> = (0..n_tokens as u32).map(|i| 1 + i * 37 % 1000).collect();
        let Self { model, compute, workspace, adapters, .. } = self;
        let segments = caches.iter_mut().enumerate().map(|(index, cache)| {
            let adapters = match variant {
                0 => &[],
                1 => &adapters[..1],
                _ => std::slice::from_ref(&adapters[index]),
            };
            Ok(Segment::new(compute, &tokens, cache, LogitsRows::Last)?.with_adapters(adapters))
        });
        let segments = segments.collect::<Result<Vec<_>>>()?;
        let start = Instant::now();
        model.forward(compute, workspace, segments)?;
        Ok(start.elapsed().as_secs_f64())
    }
}

/// Prints the workload's line; the first variant is the one without adapters.
fn report(workload: &str, times: &[Vec<f64>]) {
    let (base, others) = times.split_first().expect("the variant without adapters");
    let mut line = format!("{workload}: without {:.2} ms", 1e3 * quartiles(base.clone())[1]);
    for (name, times) in ["one", "each its own"].iter().zip(others) {
        let speeds = base.iter().zip(times).map(|(base, time)| base / time).collect();
        let [low, median, high] = quartiles(speeds);
        line += &format!("; {name} {median:.3}x ({low:.3} to {high:.3})");
    }
    println!("{line}");
}

fn quartiles(mut samples: Vec<f64>) -> [f64; 3] {
    samples.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| samples[quarter * (samples.len() - 1) / 4])
}

fn targets(name: &str) -> Option<Vec<Projection>> {
    use Projection::{AttentionOutput, Down, FinalHidden, Gate, Key, Logits, Query, Up, Value};
    match name {
        "all" => Some(vec![Query, Key, Value, AttentionOutput, Gate, Up, Down]),
        "qv" => Some(vec![Query, Value]),
        "logits" => Some(vec![Logits]),
        "final" => Some(vec![FinalHidden]),
        _ => None,
    }
}

/// An adapter in pages of `pool`, of random values small enough that activations stay finite.
fn adapter(
    base: &Arc<BaseModel>,
    targets: &[Projection],
    rank: usize,
    format: FactorFormat,
    pool: &PagePool,
) -> Result<ScaledAdapter> {
    let layout = Arc::new(Layout::new(FactorFormat::F32, SiteShape::of_modules(base, targets, rank))?);
    let mut bytes = vec![0; layout.bytes() + 64];
    let start = bytes.as_ptr().align_offset(64);
    let count = layout.bytes() / size_of::<f32>();
    let small: Vec<f32> = values(count).into_iter().map(|value| 0.02 * value).collect();
    FactorFormat::F32.quantize(count, &small, &mut bytes[start..start + layout.bytes()]);
    let digests = Digests { factors: [0; 32], kv: None };
    let end = start + layout.bytes();
    let shared = SharedBytes::new(bytes).slice(start..end);
    let adapter = Adapter::from_bytes(Arc::clone(base), layout, shared, digests)?;
    Ok(Arc::new(adapter.to_format(format, pool, &Request::default())?).into())
}
