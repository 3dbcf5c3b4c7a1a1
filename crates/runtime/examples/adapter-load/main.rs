//! Throughput of requests that name one of many adapters, beside requests without adapters.
//!
//! ```text
//! cargo run --release -p ruvllm --example adapter-load -- MODEL [--adapters 1000] [--seconds 30]
//!     [--exponent 1] [--files 100] [--modules all|qv] [--rank 8] [--hot 100] [--warm 1000]
//!     [--precision tiered|f16|i8] [--in-flight 16] [--prompt 32] [--new 32] [--rounds 3]
//!     [--replace-per-second 0] [--kv-budget MIB] [--threads N] [--check]
//! ```
//! Adapters have random factors and are written to a temporary folder. Each request draws its name
//! by a Zipf law (exponent 0: uniform). Rounds alternate: without adapters, with them. With
//! `--check`, one output of fifty is computed again alone and compared token for token.

mod args;
mod clients;
mod files;

use std::time::Duration;

use ruvllm::crates::adapters::{Limits, ResidencyStatistics};
use ruvllm::{Engine, EngineOptions, PrefixCaching, ProcessMemory, StepStatistics, Tenant};

use crate::args::Args;
use crate::clients::{Clients, Served};
use crate::files::Files;

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let args = Args::parse(std::env::args().skip(1))?;
    let limits = Limits { hot_adapters: args.hot, warm_adapters: args.warm, ..Limits::default() };
    // Prompts share nothing, and outputs are computed again.
    let options = EngineOptions::default()
        .with_adapter_limits(limits)
        .with_prefixes(PrefixCaching::Off)
        .with_kv_budget(args.kv_budget.map(|mib| mib << 20))
        .with_threads(args.threads);
    let engine = Engine::open_with(args.model.as_str(), &options)?;
    let files = Files::write(engine.adapter_base(), &args)?;
    for index in 0..args.adapters {
        let path = files.path(index % args.files);
        engine.adapter_registry().register(&Tenant::root(), &name(index), path, args.precision)?;
    }
    println!(
        "{} adapters of rank {} on {}, {:.1} MiB in F16; {} hot, {} warm; exponent {}",
        args.adapters,
        args.rank,
        args.modules.name(),
        files.bytes as f64 / f64::from(1 << 20),
        args.hot,
        args.warm,
        args.exponent
    );
    run(&engine, &files, &args)
}

/// Name of an adapter in the registry.
pub(crate) fn name(index: usize) -> String {
    format!("adapter-{index}")
}

/// Counts of the rounds of a kind.
#[derive(Default)]
struct Total {
    seconds: f64,
    prefill: u64,
    decode: u64,
    steps: u64,
}

impl Total {
    fn add(&mut self, seconds: f64, before: StepStatistics, after: StepStatistics) {
        self.seconds += seconds;
        self.prefill += after.prefill_tokens - before.prefill_tokens;
        self.decode += after.decode_tokens - before.decode_tokens;
        self.steps += after.steps - before.steps;
    }

    fn decode_rate(&self) -> f64 {
        self.decode as f64 / self.seconds
    }
}

fn run(engine: &Engine, files: &Files, args: &Args) -> Result<(), Failure> {
    let clients = Clients::new(engine, files, args);
    let round = Duration::from_secs_f64(args.seconds / (2 * args.rounds) as f64);
    // The first requests touch weights and buffers.
    clients.run(Duration::from_secs_f64(1.0_f64.min(args.seconds / 10.0)), false)?;
    let (mut totals, mut served) = ([Total::default(), Total::default()], Served::default());
    let (before, memory) = (engine.adapter_registry().residency().statistics(), ProcessMemory::now());
    let mut warmed = None;
    for index in 0..args.rounds {
        for (total, is_named) in totals.iter_mut().zip([false, true]) {
            let steps = engine.step_statistics();
            let (seconds, found) = clients.run(round, is_named)?;
            total.add(seconds, steps, engine.step_statistics());
            served.add(found);
        }
        if index == 0 {
            warmed = ProcessMemory::now().resident_bytes;
        }
    }
    let after = engine.adapter_registry().residency().statistics();
    report(&totals, &served);
    report_residency(before, after);
    let mib = |bytes: Option<u64>| bytes.map_or(0.0, |bytes| bytes as f64 / f64::from(1 << 20));
    println!(
        "resident memory: {:.0} MiB at the start, {:.0} after the first round, {:.0} at the end",
        mib(memory.resident_bytes),
        mib(warmed),
        mib(ProcessMemory::now().resident_bytes)
    );
    if args.replace_per_second > 0.0 {
        println!("{} adapters were replaced meanwhile", clients.replaced());
    }
    if args.check {
        println!("{} outputs are those computed alone", clients.check()?);
    }
    Ok(())
}

fn report([base, named]: &[Total; 2], served: &Served) {
    println!("| | requests | tokens per step | prefill, tokens/s | decode, tokens/s | ratio |");
    println!("|---|---:|---:|---:|---:|---:|");
    for (label, total, requests) in
        [("no adapter", base, served.unnamed), ("named adapters", named, served.named())]
    {
        println!(
            "| {label} | {requests} | {:.1} | {:.0} | {:.0} | {:.3} |",
            (total.prefill + total.decode) as f64 / total.steps.max(1) as f64,
            total.prefill as f64 / total.seconds,
            total.decode_rate(),
            total.decode_rate() / base.decode_rate()
        );
    }
    let share = |count: u64| 100.0 * count as f64 / served.named().max(1) as f64;
    println!(
        "found hot {:.1} %, warm {:.1} %, cold {:.1} %; {:.1} % served in I8",
        share(served.hot),
        share(served.warm),
        share(served.cold),
        share(served.i8)
    );
}

fn report_residency(before: ResidencyStatistics, after: ResidencyStatistics) {
    println!(
        "{} hot, {} warm; {} loads of requests, {} ahead, {} promotions, {} demotions, {} evictions, {} \
         released, {} failures",
        after.hot_adapters,
        after.warm_adapters,
        after.misses - before.misses,
        after.prefetches - before.prefetches,
        after.promotions - before.promotions,
        after.demotions - before.demotions,
        after.evictions - before.evictions,
        after.released - before.released,
        after.failures - before.failures
    );
}
