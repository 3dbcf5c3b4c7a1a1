//! `cargo xtask bench`: Criterion suites, or whole-model runs beside another engine.
//!
//! Numbers are only ever measured. A run beside a peer goes round by round (this engine, then the peer in
//! each of its settings, then again), so that a busy minute hits all of them alike; medians and spreads over
//! the rounds are reported, raw samples are kept as JSON.

mod machine;
mod peer;
mod report;

use std::path::PathBuf;

use crate::process::CommandLine;
use crate::{Error, Result, Workspace};
use machine::Machine;
use peer::{LlamaBench, Plan, Ruvllm};
use report::Report;

/// What to measure.
#[derive(clap::Args, Debug)]
pub struct BenchArgs {
    /// Criterion suite: a bench target of the benches package (all without a name)
    #[arg(value_name = "SUITE", conflicts_with = "peer")]
    pub suite: Option<String>,
    /// Runs beside another engine: llama-bench=PATH
    #[arg(long, value_name = "NAME=PATH")]
    pub peer: Option<String>,
    /// Model file for runs beside a peer; may be repeated
    #[arg(long, value_name = "FILE", requires = "peer")]
    pub model: Vec<PathBuf>,
    /// Prompt lengths in tokens (prefill)
    #[arg(short = 'p', long, value_delimiter = ',', default_value = "512", requires = "peer")]
    pub prompt: Vec<usize>,
    /// Numbers of generated tokens (decode)
    #[arg(short = 'n', long, value_delimiter = ',', default_value = "64", requires = "peer")]
    pub generate: Vec<usize>,
    /// Tokens in the cache before a test begins
    #[arg(short = 'd', long, default_value_t = 0, requires = "peer")]
    pub depth: usize,
    /// Thread counts
    #[arg(short = 't', long, value_delimiter = ',', default_value = "1,2", requires = "peer")]
    pub threads: Vec<usize>,
    /// KV cache type for both engines: f16 or f32
    #[arg(long, default_value = "f16", requires = "peer")]
    pub kv: String,
    /// Interleaved rounds
    #[arg(long, default_value_t = 3, requires = "peer")]
    pub rounds: usize,
    /// A `ruvllm` program to measure instead of building one, such as that of an earlier commit
    #[arg(long, value_name = "FILE", requires = "peer")]
    pub program: Option<PathBuf>,
    /// Only prints the commands of one round
    #[arg(long, requires = "peer")]
    pub dry_run: bool,
    /// Leaves docs/performance.md as it is
    #[arg(long, requires = "peer")]
    pub no_record: bool,
}

/// Runs what `args` ask for.
///
/// # Errors
/// When a program is missing, fails, or prints something else than its JSON.
pub fn bench(workspace: &Workspace, args: &BenchArgs) -> Result<()> {
    match &args.peer {
        Some(peer) => beside_peer(workspace, args, peer),
        None => suites(workspace, args.suite.as_deref()),
    }
}

fn suites(workspace: &Workspace, suite: Option<&str>) -> Result<()> {
    let command = CommandLine::cargo(workspace).args(["bench", "--package", "ruvllm-benches"]);
    match suite {
        Some(name) => command.args(["--bench", name]).run(),
        None => command.run(),
    }
}

fn beside_peer(workspace: &Workspace, args: &BenchArgs, peer: &str) -> Result<()> {
    let (name, path) = peer.split_once('=').unwrap_or((peer, ""));
    if name != "llama-bench" || path.is_empty() {
        return Err(Error::UnknownPeer { name: name.to_owned() });
    }
    if args.model.is_empty() {
        return Err(Error::NoModel);
    }
    let peer = LlamaBench::new(workspace, path)?;
    let ours = match &args.program {
        Some(program) => Ruvllm::at(workspace, program)?,
        None if args.dry_run => Ruvllm::unbuilt(workspace),
        None => Ruvllm::build(workspace)?,
    };
    let plans = plans(args);
    if args.dry_run {
        for plan in &plans {
            println!("{}", ours.command(plan).display());
            for setting in peer.settings() {
                println!("{}", peer.command(plan, setting).display());
            }
        }
        return Ok(());
    }
    let mut report = Report::new(Machine::describe(workspace));
    for round in 1..=args.rounds {
        for plan in &plans {
            eprintln!("round {round}/{}: {plan}", args.rounds);
            report.add_ours(plan, ours.run(plan)?);
            for setting in peer.settings() {
                report.add_peer(plan, setting, peer.run(plan, setting)?);
            }
        }
    }
    let json = report.write_json(workspace)?;
    println!("{}", report.markdown());
    println!("raw samples: {}", json.display());
    if args.no_record { Ok(()) } else { report.record(workspace) }
}

/// One plan per model and thread count.
fn plans(args: &BenchArgs) -> Vec<Plan> {
    let of_model = |model: &PathBuf| {
        let plan = |&threads: &usize| Plan {
            model: model.clone(),
            prompt: args.prompt.clone(),
            generate: args.generate.clone(),
            depth: args.depth,
            threads,
            kv: args.kv.clone(),
        };
        args.threads.iter().map(plan).collect::<Vec<_>>()
    };
    args.model.iter().flat_map(of_model).collect()
}
