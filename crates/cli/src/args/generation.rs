//! Flags of commands that generate text: engine, KV cache, prefix cache, sampling.

use std::path::{Path, PathBuf};

use clap::Args;
use ruvllm::{EngineOptions, FolderKey, KvPolicy, PrefixCaching};

use super::adapters::AdapterArgs;
use super::engine::{ComputeArgs, ModelArgs};
use super::output::OutputArgs;
use super::prefix_place::PrefixPlace;
use super::sampling::SamplingArgs;
use super::speculation::SpeculationArgs;
use super::thinking::ThinkingArgs;
use super::tools::ToolArgs;
use super::values::{self, OrDefault};
use crate::error::Result;

/// Flags shared by the commands that generate text. The groups with headings come last: a heading
/// holds for all that follows.
// Aliases are llama.cpp's names where those differ.
#[derive(Debug, Args)]
pub(crate) struct GenerationArgs {
    /// Stop sequence; repeatable
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,

    #[arg(
        long,
        value_name = "POLICY",
        help = format!("{}\n[default: f16; q8 where memory is short]", values::KV_HELP),
        value_parser = values::kv_policy
    )]
    kv: Option<KvPolicy>,

    /// Context length: tokens of prompt and output [default: 0 = the model's]
    #[arg(long, short, visible_alias = "ctx-size", value_name = "N", value_parser = values::context)]
    context: Option<OrDefault<usize>>,

    #[command(flatten)]
    pub(crate) model: ModelArgs,

    #[command(flatten)]
    pub(crate) adapters: AdapterArgs,

    #[command(flatten)]
    pub(crate) compute: ComputeArgs,

    #[command(flatten)]
    pub(crate) output: OutputArgs,

    #[command(flatten)]
    pub(crate) tools: ToolArgs,

    #[command(flatten)]
    pub(crate) thinking: ThinkingArgs,

    #[command(flatten)]
    prefixes: PrefixArgs,

    #[command(flatten)]
    speculation: SpeculationArgs,

    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}

impl GenerationArgs {
    /// Engine options of these flags.
    ///
    /// Without `--prefix-cache`, keys and values of a session are kept in the folder `session`.
    ///
    /// # Errors
    /// An error of the place of stored prefixes if the prefix cache needs a folder and none is
    /// given or known; a draft model that is neither a path nor in the store.
    pub(crate) fn options(&self, session: Option<&Path>) -> Result<EngineOptions> {
        let of_session = |limit_bytes| match session {
            Some(path) => PrefixCaching::Folder { path: path.to_owned(), limit_bytes },
            None => PrefixCaching::Off,
        };
        let options = self
            .compute
            .options(self.kv)?
            .with_context(self.context.and_then(|context| context.0))
            .with_prefixes(self.prefixes.caching(of_session)?)
            .with_prefix_key(self.prefixes.prefix_key.clone());
        self.speculation.apply(options, &self.model)
    }
}

/// Options of the prefix cache on disk.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Prefix cache")]
pub(crate) struct PrefixArgs {
    /// Prefix cache on disk: `on` stores every prefix, `spill` those evicted from memory
    /// [default: off; in memory with `serve`; that of the session with --session]
    #[arg(long, value_enum, value_name = "off|on|spill", hide_possible_values = true)]
    prefix_cache: Option<PrefixFiles>,

    /// Folder of the prefix cache, or an object store that several workers share:
    /// `s3://BUCKET/PREFIX`, with the settings of `AWS_*` variables [default: ruvllm/prefixes in
    /// the user's cache folder]
    #[arg(long, value_name = "DIR|URL")]
    prefix_dir: Option<PathBuf>,

    /// Key file of a prefix folder or object store shared with other users, 32 to 1024 bytes
    #[arg(long, value_name = "FILE", value_parser = values::prefix_key)]
    pub(crate) prefix_key: Option<FolderKey>,

    /// Maximum size of the prefix folder; the least recently used prefixes are deleted (in an
    /// object store those written first)
    #[arg(long, value_name = "BYTES", default_value = "4GiB", value_parser = values::bytes)]
    prefix_limit: usize,
}

/// Setting of the prefix cache on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum PrefixFiles {
    Off,
    On,
    Spill,
}

impl PrefixArgs {
    /// Prefix cache of these flags; `default` gives that without `--prefix-cache`, for the largest
    /// size of a folder.
    ///
    /// # Errors
    /// An unknown folder, a URL that names no store, and an object store that refuses.
    pub(crate) fn caching(&self, default: impl FnOnce(u64) -> PrefixCaching) -> Result<PrefixCaching> {
        let limit_bytes = self.prefix_limit as u64;
        let stored = |only_evicted| {
            let place = PrefixPlace::of(self.prefix_dir.as_deref())?;
            Ok(place.caching(limit_bytes, only_evicted, self.prefix_key.is_some())?)
        };
        match self.prefix_cache {
            None => Ok(default(limit_bytes)),
            Some(PrefixFiles::Off) => Ok(PrefixCaching::Off),
            Some(PrefixFiles::On) => stored(false),
            Some(PrefixFiles::Spill) => stored(true),
        }
    }
}
