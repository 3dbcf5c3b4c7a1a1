//! A bank on disk, its embedding model, and the requests that were given items.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use ruvllm::crates::sona::bank::{Bank, BankConfig, Receipt};
use ruvllm::crates::sona::model::Embed as _;
use ruvllm_hub::Store;
use serde::{Deserialize, Serialize};

use crate::args::CpuArgs;
use crate::commands::text_embedder::{TextEmbedder, learning};
use crate::default_model::ModelChoice;
use crate::error::{Error, Result};
use crate::{result_file, user_folders};

/// Tenant of the items in a bank's own database.
pub(super) const TENANT: &str = "root";

/// Smallest cosine similarity of a request and an item's task. With the built-in model 95 % of
/// pairs of unrelated texts are below 0.68 (docs/routing.md).
const MIN_SIMILARITY: f32 = 0.7;

/// Version of the manifest.
const VERSION: u32 = 1;

/// The bank of a command that needs no embedding.
#[derive(Debug, Args)]
pub(crate) struct BankName {
    /// Name of the bank: letters, digits, '.', '_' and '-', at most 64
    #[arg(value_name = "NAME")]
    pub(super) bank: String,
}

/// The bank of a command that embeds texts.
#[derive(Debug, Args)]
pub(crate) struct BankArgs {
    #[command(flatten)]
    pub(super) name: BankName,

    #[command(flatten)]
    pub(super) cpu: CpuArgs,
}

/// Facts that a bank is bound to, in `bank.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    version: u32,
    /// Name of the embedding model, for people.
    pub(super) model: String,
    /// Fingerprint of the embedding model, in hexadecimal.
    pub(super) fingerprint: String,
    /// Values of an embedding.
    pub(super) dim: usize,
}

/// A request that items were found for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Given {
    pub(super) receipt: Receipt,
    /// Seconds since 1970.
    pub(super) time: u64,
}

/// An open bank.
pub(super) struct OpenBank {
    pub(super) bank: Bank,
    pub(super) manifest: Manifest,
    folder: PathBuf,
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

impl BankName {
    fn folder(&self) -> Result<PathBuf> {
        let is_letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let name = &self.bank;
        if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.chars().all(is_letter) {
            let reason = "the name of a bank has 1 to 64 letters, digits, '.', '_' and '-', no '.' first";
            return Err(Error::Input { origin: name.clone(), reason: reason.to_owned() });
        }
        Ok(Store::from_env()?.root().with_file_name("learning").join("banks").join(name))
    }

    /// Opens the bank.
    ///
    /// # Errors
    /// A bank that does not exist, is open elsewhere, or is damaged.
    pub(super) fn open(&self, config: impl FnOnce(BankConfig) -> BankConfig) -> Result<OpenBank> {
        let folder = self.folder()?;
        let path = folder.join("bank.json");
        if !path.exists() {
            let reason = "there is no bank of this name; `ruvllm sona bank add` begins one".to_owned();
            return Err(Error::Input { origin: self.bank.clone(), reason });
        }
        let text = crate::input::file_text(&path)?;
        let damaged = |reason: String| Error::Input { origin: path.display().to_string(), reason };
        let manifest: Manifest = serde_json::from_str(&text).map_err(|error| damaged(error.to_string()))?;
        if manifest.version != VERSION {
            return Err(damaged(format!("version {}; this program reads {VERSION}", manifest.version)));
        }
        let defaults = BankConfig { min_similarity: MIN_SIMILARITY, ..BankConfig::new(manifest.dim) };
        let bank = Bank::open(&folder, config(defaults)).map_err(learning)?;
        Ok(OpenBank { bank, manifest, folder })
    }
}

impl BankArgs {
    /// Opens the bank with its embedding model, or begins it if `may_begin`.
    ///
    /// # Errors
    /// Errors of [`BankName::open`] and of loading; another model than that of the bank.
    pub(super) fn open(
        &self,
        may_begin: bool,
        config: impl FnOnce(BankConfig) -> BankConfig,
    ) -> Result<(OpenBank, TextEmbedder)> {
        let folder = self.name.folder()?;
        let exists = folder.join("bank.json").exists();
        if !exists && !may_begin {
            // The error of an absent bank, before the model is loaded.
            self.name.open(|config| config)?;
        }
        let embedder = TextEmbedder::load(&self.cpu)?;
        let choice = ModelChoice::new(self.cpu.model.model.as_deref());
        let digits = choice.source().fingerprint(None)?;
        let fingerprint: String = digits.iter().map(|byte| format!("{byte:02x}")).collect();
        if !exists {
            let dim = embedder.embed("dimension").map_err(learning)?.len();
            let manifest =
                Manifest { version: VERSION, model: choice.name(), fingerprint: fingerprint.clone(), dim };
            let failed = |source| Error::WriteFile { path: folder.clone(), source };
            user_folders::make_private(&folder).map_err(failed)?;
            let text = serde_json::to_vec_pretty(&manifest).map_err(|error| failed(error.into()))?;
            result_file::write(&folder.join("bank.json"), &text, result_file::Readers::Owner)
                .map_err(failed)?;
        }
        let open = self.name.open(config)?;
        if open.manifest.fingerprint != fingerprint {
            let reason = format!(
                "its items are embedded by {}, not by {}; name that model with --model",
                open.manifest.model,
                choice.name()
            );
            return Err(Error::Input { origin: self.name.bank.clone(), reason });
        }
        Ok((open, embedder))
    }
}

impl OpenBank {
    fn requests_path(&self) -> PathBuf {
        self.folder.join("requests.jsonl")
    }

    /// Notes a request, so that its outcome can be recorded later.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub(super) fn note(&self, receipt: &Receipt) -> Result<()> {
        let path = self.requests_path();
        let line = serde_json::to_string(&Given { receipt: receipt.clone(), time: now() });
        let write = || -> std::io::Result<()> {
            let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
            file.write_all(format!("{}\n", line?).as_bytes())
        };
        write().map_err(|source| Error::WriteFile { path: path.clone(), source })
    }

    /// Requests that were noted, the latest last. A line that was cut by a crash is left out.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub(super) fn noted(&self) -> Result<Vec<Given>> {
        let path = self.requests_path();
        match fs::read_to_string(&path) {
            Ok(text) => Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(source) => Err(Error::ReadFile { path, source }),
        }
    }
}
