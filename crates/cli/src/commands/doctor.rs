//! `ruvllm doctor`: what this machine offers, what the engine chose, and what would change it.

use std::thread;

use clap::Args;
use gguf_rs_lite::TensorInfo;
use ruvllm_kernels::{ISA_VARIABLE, Isa, Kernels};
use ruvllm_models::ModelConfig;
use serde::Serialize;

use crate::args::ModelArgs;
use crate::default_model::{MODEL_VARIABLE, ModelChoice};
use crate::error::{Error, Result, printable};
use crate::{output, system};

const HELP: &str = "\
JSON: {version, cpu: {model, features, features_used, cores}, memory: {total_bytes, available_bytes, huge_pages},
isa: {chosen, chosen_by, available}, threads, model: {name, origin, architecture, parameters, weights_bytes,
context}}; what the system does not tell is absent.

Examples:
  ruvllm doctor
  ruvllm doctor --model model.gguf --json";

/// CPU features, as the kernel names them, that matter to language models.
const RELEVANT_FEATURES: [&str; 18] = [
    "avx",
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512dq",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "amx_int8",
    "asimd",
    "asimdhp",
    "asimddp",
    "i8mm",
    "bf16",
    "sve",
];

/// Show what this machine offers and what the engine chose
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    model: ModelArgs,
}

/// The JSON document, and the facts of the human form.
#[derive(Serialize)]
struct Document {
    version: &'static str,
    cpu: Cpu,
    memory: Memory,
    isa: IsaChoice,
    /// Threads that the engine takes without being told.
    threads: usize,
    model: ModelFacts,
}

#[derive(Serialize)]
struct Cpu {
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    /// The relevant ones that the CPU has.
    #[serde(skip_serializing_if = "Option::is_none")]
    features: Option<Vec<&'static str>>,
    /// The ones that the chosen kernels use.
    features_used: &'static [&'static str],
    /// Cores that this process may use.
    cores: usize,
}

#[derive(Serialize)]
struct Memory {
    #[serde(skip_serializing_if = "Option::is_none")]
    total_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    huge_pages: Option<String>,
}

#[derive(Serialize)]
struct IsaChoice {
    chosen: &'static str,
    /// `detection`, or the environment variable that decided.
    chosen_by: &'static str,
    available: Vec<&'static str>,
}

#[derive(Serialize)]
struct ModelFacts {
    name: String,
    origin: &'static str,
    architecture: String,
    parameters: u64,
    weights_bytes: u64,
    context: usize,
}

pub(crate) fn run(args: &DoctorArgs, json: bool) -> Result<()> {
    let document = examine(args)?;
    if json {
        return output::write_json(&document);
    }
    output::write_text(&human(&document)).map(|_| ())
}

fn examine(args: &DoctorArgs) -> Result<Document> {
    let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let chosen = Kernels::detect()?.isa();
    let forced = std::env::var_os(ISA_VARIABLE).is_some_and(|name| !name.is_empty());
    let (total_bytes, available_bytes) = system::machine_memory();
    Ok(Document {
        version: env!("CARGO_PKG_VERSION"),
        cpu: Cpu {
            model: system::cpu_model(),
            features: system::cpu_flags()
                .map(|flags| RELEVANT_FEATURES.into_iter().filter(|name| flags.contains(*name)).collect()),
            features_used: chosen.features(),
            cores,
        },
        memory: Memory { total_bytes, available_bytes, huge_pages: system::transparent_huge_pages() },
        isa: IsaChoice {
            chosen: chosen.name(),
            chosen_by: if forced { ISA_VARIABLE } else { "detection" },
            available: Isa::ALL.into_iter().filter(|isa| isa.is_available()).map(Isa::name).collect(),
        },
        threads: cores,
        model: model_facts(&ModelChoice::new(args.model.model.as_deref()))?,
    })
}

fn model_facts(choice: &ModelChoice) -> Result<ModelFacts> {
    let checkpoint = choice.open()?;
    let config = ModelConfig::from_checkpoint(&*checkpoint)
        .map_err(|source| Error::Model { model: choice.name(), source })?;
    let sum = |count: fn(&TensorInfo) -> u64| checkpoint.tensors().map(count).fold(0, u64::saturating_add);
    Ok(ModelFacts {
        name: choice.name(),
        origin: choice.origin(),
        architecture: config.architecture,
        parameters: sum(TensorInfo::elements),
        weights_bytes: sum(TensorInfo::bytes),
        context: config.context_length,
    })
}

fn human(document: &Document) -> String {
    let Document { version, cpu, memory, isa, threads, model } = document;
    let unknown = || "unknown".to_owned();
    let memory_size = |n: Option<u64>| n.map_or_else(unknown, output::bytes);
    let list = |names: &[&str]| if names.is_empty() { "none".to_owned() } else { names.join(" ") };
    let why = if isa.chosen_by == ISA_VARIABLE {
        format!("asked for by {ISA_VARIABLE}")
    } else {
        "the best one that this CPU and this build have".to_owned()
    };
    let rows = [
        ("version", (*version).to_owned()),
        ("cpu", cpu.model.as_deref().map_or_else(unknown, printable)),
        ("  features found", cpu.features.as_deref().map_or_else(unknown, list)),
        ("  features used", list(cpu.features_used)),
        ("  cores", cpu.cores.to_string()),
        ("memory", memory_size(memory.total_bytes)),
        ("  available", memory_size(memory.available_bytes)),
        ("  2 MiB pages", memory.huge_pages.clone().unwrap_or_else(unknown)),
        ("instruction set", format!("{} ({why})", isa.chosen)),
        ("  available", list(&isa.available)),
        ("threads", format!("{threads} (one for each core)")),
        ("model", format!("{} ({})", printable(&model.name), model.origin)),
        (
            "  shape",
            format!(
                "{}, {:.1} M parameters, {}, context {}",
                printable(&model.architecture),
                model.parameters as f64 / 1e6,
                output::bytes(model.weights_bytes),
                model.context
            ),
        ),
    ];
    let table = output::table(&rows.map(|(name, value)| vec![name.to_owned(), value]), &[]);
    let ways = [
        (format!("{ISA_VARIABLE}=scalar, --isa scalar"), "another instruction set: the same results, slower"),
        ("--threads N".to_owned(), "another number of threads"),
        (format!("{MODEL_VARIABLE}=FILE, --model FILE"), "another model"),
    ];
    let ways = output::table(&ways.map(|(way, effect)| vec![format!("  {way}"), effect.to_owned()]), &[]);
    format!("{table}\nwhat would change this\n{ways}")
}
