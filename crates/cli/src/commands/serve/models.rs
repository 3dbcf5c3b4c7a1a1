//! Models of a server: of the flags, else of its configuration, else the default model.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use ruvllm::{EngineOptions, Isa, KvCalibration, KvPolicy, PrefixCaching, PressurePolicy};
use ruvllm_server::config::Model;
use ruvllm_server::{Config, ModelEntry};

use crate::args::{
    self, CalibrationArgs, KernelPackArgs, LoadingArgs, ModelArgs, NamedAdapter, OrDefault, PrefixArgs,
    SpeculationArgs,
};
use crate::commands::offer;
use crate::default_model::ModelChoice;
use crate::device::DeviceArgs;
use crate::error::{Error, Result};

/// Options of the models and their engines.
#[derive(Debug, Clone, Args)]
pub(super) struct ModelsArgs {
    #[arg(
        long,
        short,
        value_name = "MODEL",
        help = "GGUF file, HF folder, pulled model, or ORG/REPO[/FILE] on the Hugging Face hub; repeatable \
                [default: those of --config, else RUVLLM_MODEL, else the built-in one]"
    )]
    model: Vec<PathBuf>,

    /// Further name of the first model in requests; repeatable, `*` = every other name
    #[arg(long, value_name = "NAME")]
    alias: Vec<String>,

    /// LoRA adapter of the first model: a compact file or a name of the store; repeatable
    #[arg(long, value_name = "NAME[=PATH]", value_parser = args::named_adapter)]
    adapter: Vec<NamedAdapter>,

    /// KV-cache type, as for `ruvllm generate` [default: f16; q8 where memory is short]
    #[arg(long, value_name = "POLICY", value_parser = args::kv_policy)]
    kv: Option<KvPolicy>,

    /// Context length: tokens of prompt and output [default: 0 = the model's]
    #[arg(long, short, visible_alias = "ctx-size", value_name = "N", value_parser = args::context)]
    context: Option<OrDefault<usize>>,

    /// Number of threads of each model [default: one for each core]
    #[arg(long, short, value_name = "N", value_parser = args::positive)]
    threads: Option<usize>,

    /// Instruction set by name; `ruvllm doctor` lists those of this machine [default: the best]
    #[arg(long, value_name = "ISA", value_parser = args::isa)]
    isa: Option<Isa>,

    #[command(flatten)]
    loading: LoadingArgs,

    #[command(flatten)]
    device: DeviceArgs,

    /// Sequences that a GPU is meant to decode together; each has KV memory for a context, unless
    /// --kv-budget gives another amount
    #[arg(long, value_name = "N", default_value = "4", value_parser = args::positive)]
    gpu_sequences: usize,

    /// Memory budget of each KV cache, e.g. 512MiB [default: 4 contexts, as memory allows]
    #[arg(long, value_name = "BYTES", value_parser = args::bytes)]
    kv_budget: Option<usize>,

    /// On memory pressure: lower-precision (default), evict-prefixes, spill, reject, drop-oldest
    #[arg(long, value_name = "POLICY", default_value_t, hide_default_value = true)]
    pressure: PressurePolicy,

    #[command(flatten)]
    calibration: CalibrationArgs,

    #[command(flatten)]
    prefixes: PrefixArgs,

    #[command(flatten)]
    speculation: SpeculationArgs,

    #[command(flatten)]
    kernel_pack: KernelPackArgs,
}

impl ModelsArgs {
    /// The models that are served. Flags of the engine hold for all of them; settings of a section
    /// `[[models]]` go before these.
    ///
    /// # Errors
    /// A model or adapter that is absent, and settings that its engine does not know.
    pub(super) fn entries(&self, config: &Config) -> Result<Vec<ModelEntry>> {
        let mut entries = if !self.model.is_empty() {
            let models = self.model.iter().map(|model| self.of_flag(Some(model), config));
            models.collect::<Result<Vec<_>>>()?
        } else if config.models.is_empty() {
            vec![self.of_flag(None, config)?]
        } else {
            config.models.iter().map(|model| self.of_section(model)).collect::<Result<Vec<_>>>()?
        };
        if let Some(first) = entries.first_mut() {
            first.aliases.extend(self.alias.iter().cloned());
            for adapter in &self.adapter {
                first.adapters.push(named(adapter)?);
            }
        }
        check_names(&entries)?;
        for entry in &mut entries {
            entry.backend = self.device.loader(&entry.source, &entry.options, self.gpu_sequences)?;
        }
        Ok(entries)
    }

    /// A model of `--model`, or the default one. It is loaded at the start unless a limit of memory
    /// says that models come and go.
    fn of_flag(&self, path: Option<&PathBuf>, config: &Config) -> Result<ModelEntry> {
        let model = ModelArgs { model: path.cloned() };
        let choice = offer::model(path.map(PathBuf::as_path))?;
        readable(&choice)?;
        let name = name_of(path.map(PathBuf::as_path), &choice);
        let options = self.speculation.apply(self.options()?, &model)?;
        let mut entry = ModelEntry::new(name, choice.source(), options);
        entry.keep = config.memory_limit.is_none();
        Ok(entry)
    }

    /// A model of the configuration.
    fn of_section(&self, section: &Model) -> Result<ModelEntry> {
        let conflict = |flag, reason: String| Error::Conflict { flag, reason };
        let path = section.path.as_ref().map(PathBuf::from);
        let choice = match &path {
            Some(path) => offer::model(Some(path))?,
            None => ModelChoice::BuiltIn,
        };
        readable(&choice)?;
        let mut options = self.options()?;
        if let Some(kv) = &section.kv {
            let kv = args::kv_policy(kv).map_err(|reason| conflict("models.kv", reason))?;
            options = options.with_kv(Some(kv));
        }
        if let Some(context) = section.context {
            options = options.with_context(Some(context));
        }
        if let Some(budget) = section.kv_budget {
            options = options.with_kv_budget(Some(budget.len()));
        }
        if let Some(threads) = section.threads {
            options = options.with_threads(Some(threads));
        }
        let speculation = match &section.draft {
            Some(draft) => &self.speculation.with_draft(draft),
            None => &self.speculation,
        };
        let options = speculation.apply(options, &ModelArgs { model: path.clone() })?;
        let name = section.name.clone().unwrap_or_else(|| name_of(path.as_deref(), &choice));
        let mut entry = ModelEntry::new(name, choice.source(), options);
        entry.aliases.clone_from(&section.aliases);
        entry.keep = section.keep;
        for (name, path) in &section.adapters {
            let adapter = args::named_adapter(&format!("{name}={path}"));
            entry.adapters.push(named(&adapter.map_err(|reason| conflict("models.adapters", reason))?)?);
        }
        Ok(entry)
    }

    fn options(&self) -> Result<EngineOptions> {
        let calibration: Option<Arc<KvCalibration>> = self.calibration.kv_calibration.clone();
        let options = self
            .loading
            .options()
            .with_threads(self.threads)
            .with_isa(self.isa)
            .with_kv(self.kv)
            .with_kv_calibration(calibration)
            .with_kv_budget(self.kv_budget)
            .with_pressure(self.pressure)
            .with_context(self.context.and_then(|context| context.0))
            .with_prefixes(self.prefixes.caching(|_| PrefixCaching::Memory)?)
            .with_prefix_key(self.prefixes.prefix_key.clone());
        self.kernel_pack.apply(options)
    }
}

/// Refuses a model that cannot be read, now and not at its first request.
fn readable(choice: &ModelChoice) -> Result<()> {
    choice.open().map(drop)
}

/// Name and file of an adapter.
///
/// # Errors
/// A scale other than 1, and a file that is no compact adapter.
fn named(adapter: &NamedAdapter) -> Result<(String, PathBuf)> {
    let NamedAdapter { name, source } = adapter;
    if source.scale != 1.0 {
        let reason = format!("{name}@{}: requests give the scale; leave it out here", source.scale);
        return Err(Error::Conflict { flag: "--adapter", reason });
    }
    ruvllm_adapters::CompactFile::open(&source.path)?;
    Ok((name.clone(), source.path.clone()))
}

/// Name of a model in requests: that of the store, the file without its extension, the folder.
fn name_of(path: Option<&Path>, choice: &ModelChoice) -> String {
    let path = match (path, choice) {
        (_, ModelChoice::BuiltIn) => return choice.name(),
        (Some(path), _) => path,
        (None, ModelChoice::File { path, .. }) => path,
    };
    let name = if path.extension().is_some_and(|extension| extension == "gguf") {
        path.file_stem()
    } else {
        path.file_name()
    };
    name.map_or_else(|| choice.name(), |name| name.to_string_lossy().into_owned())
}

/// Refuses a name that two models have.
fn check_names(entries: &[ModelEntry]) -> Result<()> {
    let names: Vec<&String> =
        entries.iter().flat_map(|entry| std::iter::once(&entry.name).chain(&entry.aliases)).collect();
    match names.iter().enumerate().find(|(index, name)| names[..*index].contains(name)) {
        Some((_, name)) => Err(Error::Conflict {
            flag: "--model",
            reason: format!("two models are called {name}; give them a name each in [[models]] of --config"),
        }),
        None => Ok(()),
    }
}
