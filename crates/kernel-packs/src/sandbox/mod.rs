//! Sandbox in which the kernels of verified packs run, on wasmtime (ADR-0096).
//!
//! A [`Sandbox`] compiles the modules of a [`Pack`] and hands out [`Kernel`]s. Kernels have no
//! imports: they read and write their own memory, compute, and return. Time, memory, tables and
//! stack are limited. Every failure is an [`Error`], after which the next call works.
//!
//! The interface of kernels is in `docs/kernel-packs.md`.

pub(crate) mod cache;
mod code;
mod compiled;
mod engine;
mod fault;
mod guest;
mod health;
mod instance;
mod kernel;
mod layout;
mod limiter;
mod module;
mod names;
mod options;
mod pool;
mod template;
mod ticker;
mod trap;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::path::Path;

pub use cache::CacheCounts;
pub use code::ReturnCode;
pub use fault::Fault;
pub use guest::{Element, Guest};
pub use health::Counts;
pub use kernel::{Job, Kernel, Outcome};
pub use layout::{Area, Binding, Descriptor, Direction};
pub use options::{Allocation, SandboxOptions};
pub use trap::{Trap, TrapKind};

use self::cache::Cache;
use crate::error::{Error, Result};
use crate::pack::{Module, Pack};

/// Engine, compiled modules and the clock of budgets. Kernels may outlive it.
pub struct Sandbox {
    engine: wasmtime::Engine,
    cache: Option<Cache>,
    options: SandboxOptions,
}

impl Sandbox {
    /// Starts an engine and its clock.
    ///
    /// # Errors
    /// [`Error::Sandbox`] for settings that the machine does not allow; [`Error::Writable`],
    /// [`Error::NotRegular`] and [`Error::Io`] for the folder of compiled modules.
    pub fn new(options: SandboxOptions) -> Result<Self> {
        let failed = |why: String| Error::Sandbox { why };
        let engine = engine::new(&options).map_err(|error| failed(error.root_cause().to_string()))?;
        let cache = options.cache.as_deref().map(Cache::open).transpose()?;
        ticker::start(&engine).map_err(|error| failed(format!("the clock's thread: {error}")))?;
        Ok(Self { engine, cache, options })
    }

    /// Kind, version and features of the engine, for [`Host::engine`](crate::Host::engine).
    pub fn engine() -> crate::Engine {
        engine::description()
    }

    /// Compiles the module of a kernel and makes the first instance.
    ///
    /// # Errors
    /// [`Error::Kernel`] with the fault of module, start function or `kernel_init`;
    /// [`Error::NoPlatform`], [`Error::EngineTooOld`], [`Error::MissingFeature`]; the errors of the
    /// folder of compiled modules.
    pub fn load(&self, pack: &Pack, id: &str) -> Result<Kernel> {
        let module = pack.module(id).ok_or_else(|| Error::kernel(id, Fault::NoSuchKernel))?;
        engine::description().check(module.kernel)?;
        self.kernel(&module, &self.compiled(&module)?)
    }

    /// Compiles all kernels of a pack, modules that they share once.
    ///
    /// # Errors
    /// As [`load`](Self::load), of the first kernel that fails.
    pub fn load_all(&self, pack: &Pack) -> Result<Vec<Kernel>> {
        let mut compiled = BTreeMap::new();
        let kernel = |module: Module<'_>| {
            engine::description().check(module.kernel)?;
            let compiled = match compiled.entry(module.kernel.sha256) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => place.insert(self.compiled(&module)?),
            };
            self.kernel(&module, compiled)
        };
        pack.modules().map(kernel).collect()
    }

    /// Folder of compiled modules.
    pub fn cache_folder(&self) -> Option<&Path> {
        self.options.cache.as_deref()
    }

    /// Counters of the folder of compiled modules; all 0 without one.
    pub fn cache_counts(&self) -> CacheCounts {
        self.cache.as_ref().map_or_else(CacheCounts::default, Cache::counts)
    }

    /// False if outputs with NaN or infinity are refused.
    pub(crate) fn allows_non_finite(&self) -> bool {
        !self.options.refuse_non_finite
    }

    fn compiled(&self, module: &Module<'_>) -> Result<wasmtime::Module> {
        let (id, bytes) = (module.kernel.id.as_str(), module.bytes);
        match &self.cache {
            Some(cache) => cache.module(&self.engine, id, bytes),
            None => cache::compile(&self.engine, id, bytes),
        }
    }

    fn kernel(&self, module: &Module<'_>, compiled: &wasmtime::Module) -> Result<Kernel> {
        Kernel::new(module.kernel, compiled, &self.options)
    }
}

impl fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sandbox").field("options", &self.options).finish_non_exhaustive()
    }
}
