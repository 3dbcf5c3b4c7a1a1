//! `ruvllm doctor`: this machine, the engine's plan for a model, and the flags that change it.

use clap::Args;
use gguf_rs_lite::TensorInfo;
use ruvllm::{Choice, EngineOptions, KvPolicy, Machine, Plan, PressurePolicy};
use ruvllm_kernels::{Isa, Kernels};
use ruvllm_models::{ModelConfig, ParameterCounts};
use serde::Serialize;

use super::gpu_report::{self, GpuReportArgs};
use crate::adapter_store;
use crate::args::{self, CalibrationArgs, ModelArgs};
use crate::commands::load;
use crate::config::{self, Settings};
use crate::default_model::{MODEL_VARIABLE, ModelChoice};
use crate::error::{Error, Result, printable};
use crate::{console, output, plan_text, system};

const HELP: &str = "\
What the engine chooses for a model depends on the machine's memory (or the limit of the process's control group) and
cores, never on how much memory is free at the moment. Each choice can be made by hand with the flag of its name, here
and with the commands that run the model. The plan is that of `generate` and `chat`: what these refuse is refused here.

JSON: {version, cpu: {model, features, features_used, cores, physical_cores}, memory: {total_bytes, limit_bytes,
available_bytes, huge_pages}, isa: {chosen, chosen_by, available}, threads, model: {name, origin, architecture,
parameters, active_parameters, weights_bytes, context}, plan: {threads, context, kv, kv_budget: {value, reason} each, repacked,
sequence_bytes, slack_bytes, state_bytes, warnings}, adapters: {hot_adapters, warm_adapters, store, stored, stored_bytes, damaged},
settings: {file, values: [{name, value, source}]}}; source is flag,
environment, file or default; what the system does not tell is absent. sequence_bytes is what keys and values of a full
context take, slack_bytes what is added for pages that are not full, state_bytes what a sequence of any length takes
beside them for layers that keep a state instead of keys and values.

--gpu (a build with the feature `gpu`) reports on the GPUs instead; --device gpu:N chooses one of them for --self-test,
--tune and --dump-kernels. --shapes N adds N small random shapes to the self-test, whose names end in `, small`. --tune
measures how the work of the model's matrix products is best divided on this GPU, takes seconds to minutes, and writes a
file beside the compiled kernels that every later use of the GPU reads. JSON: {version, platform, adapters: [{index, name, backend, kind, driver, f16, subgroup, timestamps,
cooperative, max_buffer_bytes, workgroup_bytes, max_threads}], used, reason, self_test: {adapter, passed, kernels,
seconds, checks: [{name, passed, worst, shape, shapes}]}, tuned: {file, products: [{format, rows, cols, batch,
matrix_instructions, usual_us, fastest_us, tiles, changed}]}, dumped: {folder, kernels}}. The interface does not tell how
much memory a GPU has.

Examples:
  ruvllm doctor
  ruvllm doctor --model model.gguf --json
  ruvllm doctor --model model.gguf --context 32768 --kv tiered
  ruvllm doctor --gpu --self-test
  ruvllm doctor --gpu --tune --model model.gguf";

/// CPU features that matter to inference, by their Linux names (`/proc/cpuinfo`).
const RELEVANT_FEATURES: [&str; 19] = [
    "popcnt",
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

/// Show the hardware, the chosen settings and their sources
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    model: ModelArgs,

    /// Number of threads to plan with
    #[arg(long, short, value_name = "N", value_parser = args::positive)]
    threads: Option<usize>,

    /// Context length to plan for
    #[arg(long, short, value_name = "N", value_parser = args::positive)]
    context: Option<usize>,

    #[arg(long, value_name = "POLICY", help = args::KV_HELP, value_parser = args::kv_policy)]
    kv: Option<KvPolicy>,

    /// Memory budget of the KV cache to plan with, e.g. 512MiB
    #[arg(long, value_name = "BYTES", value_parser = args::bytes)]
    kv_budget: Option<usize>,

    #[command(flatten)]
    calibration: CalibrationArgs,

    #[command(flatten)]
    gpu: GpuReportArgs,
}

/// The JSON document, and the data of the text form.
#[derive(Serialize)]
struct Document {
    version: &'static str,
    cpu: Cpu,
    memory: Memory,
    isa: IsaChoice,
    /// Threads of the engine.
    threads: usize,
    model: ModelFacts,
    plan: PlanDocument,
    adapters: AdapterTiers,
    /// Flags, environment, configuration file and defaults.
    settings: Settings,
}

#[derive(Serialize)]
struct Cpu {
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    /// Features found, of [`RELEVANT_FEATURES`].
    #[serde(skip_serializing_if = "Option::is_none")]
    features: Option<Vec<&'static str>>,
    /// Features that the chosen kernels enable, by their names in rustc (`avx512vnni`, `neon`,
    /// `dotprod`).
    features_used: &'static [&'static str],
    /// Processors that this process may use.
    cores: usize,
    /// Physical cores of these processors.
    #[serde(skip_serializing_if = "Option::is_none")]
    physical_cores: Option<usize>,
}

#[derive(Serialize)]
struct Memory {
    #[serde(skip_serializing_if = "Option::is_none")]
    total_bytes: Option<u64>,
    /// Memory limit of the process's control group, if it is lower.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit_bytes: Option<u64>,
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
    active_parameters: u64,
    weights_bytes: u64,
    context: usize,
}

/// Settings that the engine chooses.
#[derive(Serialize)]
struct PlanDocument {
    threads: Chosen<usize>,
    context: Chosen<usize>,
    kv: Chosen<String>,
    kv_budget: Chosen<usize>,
    /// True if weights are repacked when they are loaded.
    repacked: Chosen<bool>,
    sequence_bytes: u64,
    slack_bytes: u64,
    state_bytes: u64,
    warnings: Vec<String>,
}

/// Limits of the tiers of registered adapters, and the store.
#[derive(Serialize)]
struct AdapterTiers {
    hot_adapters: usize,
    warm_adapters: usize,
    /// Folder of the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<String>,
    /// Usable adapters in it.
    stored: usize,
    stored_bytes: u64,
    /// Files in it that are none.
    damaged: usize,
}

impl AdapterTiers {
    /// Defaults of an engine, and the headers of the store. Without a home folder, or with one that
    /// cannot be read, there is none.
    fn examine() -> Self {
        let limits = EngineOptions::default().adapter_limits;
        let store = adapter_store::store().ok();
        let (stored, damaged) = store.as_ref().and_then(|store| store.list().ok()).unwrap_or_default();
        Self {
            hot_adapters: limits.hot_adapters,
            warm_adapters: limits.warm_adapters,
            store: store.map(|store| store.root().display().to_string()),
            stored: stored.len(),
            stored_bytes: stored.iter().map(|adapter| adapter.bytes).sum(),
            damaged: damaged.len(),
        }
    }

    fn stored(&self) -> String {
        let damaged = match self.damaged {
            0 => String::new(),
            n => format!("; {}: `ruvllm adapter list`", output::counted(n, "damaged file")),
        };
        format!("{}, {}{damaged}", output::counted(self.stored, "adapter"), output::bytes(self.stored_bytes))
    }
}

#[derive(Serialize)]
struct Chosen<T> {
    value: T,
    reason: String,
}

impl<T: Copy> From<Choice<T>> for Chosen<T> {
    fn from(choice: Choice<T>) -> Self {
        Self { value: choice.value, reason: plan_text::reason(&choice.reason) }
    }
}

impl PlanDocument {
    fn new(plan: &Plan, machine: &Machine) -> Self {
        let reason = "the mapped file is used as it is; what a product needs is expanded when it needs it";
        Self {
            threads: plan.threads.into(),
            context: plan.context.into(),
            kv: Chosen { value: plan.kv.value.to_string(), reason: plan_text::reason(&plan.kv.reason) },
            kv_budget: plan.kv_budget.into(),
            repacked: Chosen { value: false, reason: reason.to_owned() },
            sequence_bytes: plan.sequence_bytes,
            slack_bytes: plan.slack_bytes,
            state_bytes: plan.state_bytes,
            warnings: (plan.warnings.iter())
                .chain(&plan.narrow_budget())
                .chain(&plan.shortage(machine))
                .map(plan_text::warning)
                .collect(),
        }
    }
}

pub(crate) fn run(args: &DoctorArgs, json: bool) -> Result<()> {
    if args.gpu.is_asked_for() {
        return gpu_report::run(&args.gpu, &args.model, args.context, json);
    }
    let document = examine(args)?;
    if json {
        return output::write_json(&document);
    }
    output::write_text(&human(&document)).map(|_| ())
}

fn examine(args: &DoctorArgs) -> Result<Document> {
    let chosen = Kernels::detect()?.isa();
    let forced = std::env::var_os(Isa::VARIABLE).is_some_and(|name| !name.is_empty());
    let machine = Machine::detect();
    let (model, plan) = model_and_plan(args, &machine)?;
    let Machine { total_bytes, limit_bytes, available_bytes, cpus, cores } = machine;
    Ok(Document {
        version: env!("CARGO_PKG_VERSION"),
        cpu: Cpu {
            model: system::cpu_model(),
            features: system::cpu_flags()
                .map(|flags| RELEVANT_FEATURES.into_iter().filter(|name| flags.contains(*name)).collect()),
            features_used: chosen.features(),
            cores: cpus,
            physical_cores: cores,
        },
        memory: Memory {
            total_bytes,
            limit_bytes,
            available_bytes,
            huge_pages: system::transparent_huge_pages(),
        },
        isa: IsaChoice {
            chosen: chosen.name(),
            chosen_by: if forced { Isa::VARIABLE } else { "detection" },
            available: Isa::ALL.into_iter().filter(|isa| isa.is_available()).map(Isa::name).collect(),
        },
        threads: plan.threads.value,
        model,
        plan: PlanDocument::new(&plan, &machine),
        adapters: AdapterTiers::examine(),
        settings: config::settings(),
    })
}

/// Reads the model's header and plans the engine's settings for it.
fn model_and_plan(args: &DoctorArgs, machine: &Machine) -> Result<(ModelFacts, Plan)> {
    let choice = ModelChoice::new(args.model.model.as_deref());
    let checkpoint = choice.open()?;
    let config = ModelConfig::from_checkpoint(&*checkpoint)
        .map_err(|source| Error::Model { model: choice.name(), source })?;
    let sum = |count: fn(&TensorInfo) -> u64| checkpoint.tensors().map(count).fold(0, u64::saturating_add);
    let weights_bytes = sum(TensorInfo::bytes);
    let parameters = ParameterCounts::of(&*checkpoint);
    let DoctorArgs { threads, context, kv, kv_budget, .. } = *args;
    load::check_context(context, config.context_length)?;
    let options = EngineOptions::default()
        .with_threads(threads)
        .with_context(context)
        .with_kv(kv)
        .with_kv_budget(kv_budget)
        .with_kv_calibration(args.calibration.kv_calibration.clone());
    let plan = Plan::of_source(&choice.source(), &options, machine)?;
    let facts = ModelFacts {
        name: choice.name(),
        origin: choice.origin(),
        architecture: config.architecture,
        parameters: parameters.total,
        active_parameters: parameters.active,
        weights_bytes,
        context: config.context_length,
    };
    Ok((facts, plan))
}

/// The parameters of a token, where they are not all.
fn active(model: &ModelFacts) -> String {
    match model.active_parameters {
        all if all == model.parameters => String::new(),
        some => format!(" ({:.1} M active per token)", some as f64 / 1e6),
    }
}

fn human(document: &Document) -> String {
    let Document { version, cpu, memory, isa, threads: _, model, plan, adapters, settings } = document;
    let unknown = || "unknown".to_owned();
    let memory_size = |n: Option<u64>| n.map_or_else(unknown, output::bytes);
    let list = |names: &[&str]| if names.is_empty() { "none".to_owned() } else { names.join(" ") };
    let why = if isa.chosen_by == Isa::VARIABLE {
        format!("asked for by {}", Isa::VARIABLE)
    } else {
        "the best one that this CPU and this build have".to_owned()
    };
    let rows = [
        ("version", (*version).to_owned()),
        ("cpu", cpu.model.as_deref().map_or_else(unknown, printable)),
        ("  features found", cpu.features.as_deref().map_or_else(unknown, list)),
        ("  features used", list(cpu.features_used)),
        ("  cores", cores(cpu)),
        ("memory", memory_size(memory.total_bytes)),
        ("  limit", memory.limit_bytes.map_or_else(|| "none below that".to_owned(), output::bytes)),
        ("  available", memory_size(memory.available_bytes)),
        ("  2 MiB pages", memory.huge_pages.clone().unwrap_or_else(unknown)),
        ("instruction set", format!("{} ({why})", isa.chosen)),
        ("  available", list(&isa.available)),
        ("model", format!("{} ({})", printable(&model.name), model.origin)),
        (
            "  shape",
            format!(
                "{}, {:.1} M parameters{}, {}, context {}",
                printable(&model.architecture),
                model.parameters as f64 / 1e6,
                active(model),
                output::bytes(model.weights_bytes),
                model.context
            ),
        ),
        (
            "adapters",
            format!("{} hot (F16) and {} warm (I8) at most", adapters.hot_adapters, adapters.warm_adapters),
        ),
        ("  store", adapters.store.as_deref().map_or_else(unknown, printable)),
        ("  stored", adapters.stored()),
    ];
    let table = output::table(&rows.map(|(name, value)| vec![name.to_owned(), value]), &[]);
    let ladder = "tokens lose precision from 80 % use, idle prefixes are evicted from 85 %, both until 70 %"
        .to_owned();
    let chosen = [
        ("  --threads", plan.threads.value.to_string(), &plan.threads.reason),
        ("  --context", plan.context.value.to_string(), &plan.context.reason),
        ("  --kv", plan.kv.value.clone(), &plan.kv.reason),
        ("  --kv-budget", output::bytes(plan.kv_budget.value as u64), &plan.kv_budget.reason),
        ("  --pressure", PressurePolicy::default().to_string(), &ladder),
        ("  weights", "not repacked".to_owned(), &plan.repacked.reason),
    ];
    let chosen =
        output::table(&chosen.map(|(name, value, reason)| vec![name.to_owned(), value, reason.clone()]), &[]);
    let [full, slack] = [plan.sequence_bytes, plan.slack_bytes].map(output::bytes);
    let state = match plan.state_bytes {
        0 => String::new(),
        bytes => format!("; {} of state for a sequence of any length", output::bytes(bytes)),
    };
    let line = |warning: &String| output::wrapped(&format!("warning: {warning}\n"), console::columns());
    let warnings: String = plan.warnings.iter().map(line).collect();
    let ways = [
        (
            format!("{}=scalar, --isa scalar", Isa::VARIABLE),
            "another instruction set: the same results, slower",
        ),
        (format!("{MODEL_VARIABLE}=FILE, --model FILE"), "another model"),
        (gpu_report::WAYS.0.to_owned(), gpu_report::WAYS.1),
    ];
    let ways = output::table(&ways.map(|(way, effect)| vec![format!("  {way}"), effect.to_owned()]), &[]);
    format!(
        "{table}\nchosen for this model (full context: {full} and {slack} of slack in its pages{state})\n\
         {chosen}{warnings}\nother ways to change it\n{ways}\n{}",
        config::table(settings)
    )
}

/// Text for the processors, with the physical cores if their number differs.
fn cores(cpu: &Cpu) -> String {
    match cpu.physical_cores.filter(|&cores| cores != cpu.cores) {
        Some(physical) => format!("{} processors of {physical} cores", cpu.cores),
        None => cpu.cores.to_string(),
    }
}
