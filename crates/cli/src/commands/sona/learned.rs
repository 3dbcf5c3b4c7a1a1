//! The learning store of the user, and the adapter of a command in it.

use std::sync::Arc;

use clap::Args;
use ruvllm::crates::sona::LearningStore;
use ruvllm::crates::sona::store::StoreOptions;
use ruvllm::{Engine, LearningOptions, OnlineAdapter, Tenant};
use ruvllm_adapters::{LoraFile, Part};
use ruvllm_hub::Store;

use crate::adapter_store;
use crate::args::CpuArgs;
use crate::commands::load;
pub(super) use crate::commands::text_embedder::learning;
use crate::error::{Error, Result};
use crate::user_folders;

/// Source of learned adapters in the store of adapters.
const SOURCE: &str = "ruvllm sona";

/// Removes all adapters of this kind from the store of adapters.
pub(super) fn unpublish_all() -> Result<()> {
    let store = adapter_store::store()?;
    let (stored, _) = store.list()?;
    for learned in stored.iter().filter(|stored| stored.file.source() == SOURCE) {
        store.remove(&learned.name)?;
    }
    Ok(())
}

/// A learned adapter and its model.
#[derive(Debug, Args)]
pub(super) struct LearnedArgs {
    /// Name of the adapter: letters, digits, '.', '_' and '-', at most 64
    pub(super) name: String,

    #[command(flatten)]
    cpu: CpuArgs,
}

/// A model with its learned adapter.
pub(super) struct Learned {
    pub(super) engine: Engine,
    pub(super) adapter: Arc<OnlineAdapter>,
    name: String,
}

impl LearnedArgs {
    /// Loads the model and goes on with the adapter, or begins it.
    pub(super) fn open(&self) -> Result<Learned> {
        self.open_with(LearningOptions::default())
    }

    /// As [`open`](Self::open), with options.
    pub(super) fn open_with(&self, options: LearningOptions) -> Result<Learned> {
        // A name that the store of adapters refuses would be taught in vain.
        let adapters = adapter_store::store()?;
        if let Ok(stored) = adapters.get(&self.name)
            && stored.file.source() != SOURCE
        {
            return Err(ruvllm_adapters::Error::NameTaken { name: self.name.clone() }.into());
        }
        let folder = Store::from_env()?.root().with_file_name("learning");
        let path = folder.join("learning.redb");
        user_folders::make_private(&folder)
            .map_err(|source| Error::WriteFile { path: folder.clone(), source })?;
        // A snapshot holds the ordinary positions: 10 MB with the built-in model.
        let of_store = StoreOptions { snapshots: 2, ..StoreOptions::default() };
        let store = LearningStore::open(path, of_store).map_err(learning)?;
        let engine = load::engine(&self.cpu.model, self.cpu.options())?;
        let adapter = engine.online_adapter(&Tenant::root(), &self.name, &store, options)?;
        Ok(Learned { engine, adapter, name: self.name.clone() })
    }
}

impl Learned {
    /// Writes the current state to the store of adapters, where `--adapter` finds it.
    pub(super) fn publish(&self) -> Result<()> {
        let current = self.adapter.current();
        let file = LoraFile::of_adapter(&current, &self.name)?;
        let part = Part { file: &file, scale: 1.0 };
        adapter_store::store()?.add(&self.name, current.base(), &[part], SOURCE, true)?;
        Ok(())
    }
}

/// A digest as hexadecimal digits.
pub(super) fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
