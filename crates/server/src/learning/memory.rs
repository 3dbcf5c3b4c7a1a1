//! Bank of lessons of a model in memory (ADR-0092). Prompts of a tenant get its own items alone.

use std::fs::DirBuilder;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use ruvllm::Engine;
use ruvllm::crates::sona::Error as SonaError;
use ruvllm::crates::sona::bank::{Bank, BankConfig};

use crate::config::MEMORY_SIMILARITY;
use crate::hex::hex;

/// Bank of a model, opened by the first request of a tenant that has memory.
pub(crate) struct ModelMemory {
    /// Folder of the banks of all models.
    banks: PathBuf,
    bank: Mutex<Option<Arc<Bank>>>,
}

impl ModelMemory {
    /// Memory in the folder of what models learn.
    pub(crate) fn new(learning: &Path) -> Self {
        Self { banks: learning.join("banks"), bank: Mutex::default() }
    }

    /// The bank, begun now if there is none. Its folder is named by the digest of the weights,
    /// since embeddings of other weights say nothing about its items.
    ///
    /// # Errors
    /// [`ruvllm::Error::Learning`] for a bank that cannot be used; errors of the weights' digest.
    pub(super) fn open(&self, engine: &Engine) -> Result<Arc<Bank>, ruvllm::Error> {
        let mut bank = self.bank.lock();
        if let Some(bank) = &*bank {
            return Ok(Arc::clone(bank));
        }
        let folder = self.folder(engine)?;
        let failed = |source| ruvllm::Error::Learning { source };
        let made = make_private(&folder);
        made.map_err(|error| failed(SonaError::File { path: folder.clone(), error }))?;
        let config =
            BankConfig { min_similarity: MEMORY_SIMILARITY, ..BankConfig::new(engine.config().model_dim) };
        let opened = Arc::new(Bank::open(&folder, config).map_err(failed)?);
        Ok(Arc::clone(bank.insert(opened)))
    }

    fn folder(&self, engine: &Engine) -> Result<PathBuf, ruvllm::Error> {
        Ok(self.banks.join(hex(&engine.fingerprint()?)))
    }

    /// Removes all items and counts of a tenant; returns the number of items.
    ///
    /// # Errors
    /// As [`open`](Self::open); nothing is begun where there is no bank.
    pub(crate) fn forget(&self, engine: &Engine, tenant: &str) -> Result<usize, ruvllm::Error> {
        if !self.folder(engine)?.is_dir() {
            return Ok(0);
        }
        let forgotten = self.open(engine)?.forget_tenant(tenant);
        forgotten.map_err(|source| ruvllm::Error::Learning { source })
    }
}

/// Makes a folder that its owner alone can read.
fn make_private(folder: &Path) -> std::io::Result<()> {
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(folder)
}
