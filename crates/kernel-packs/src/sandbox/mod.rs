//! Sandbox in which the kernels of verified packs run, on wasmtime (ADR-0096) or wasmi (ADR-0101).
//!
//! A [`Sandbox`] compiles the modules of a [`Pack`] and hands out [`Kernel`]s. Kernels have no
//! imports: they read and write their own memory, compute, and return. Time, memory, tables and
//! stack are limited. Every failure is an [`Error`], after which the next call works.
//!
//! The interface of kernels is in `docs/kernel-packs.md`.

mod code;
mod engine;
mod fault;
mod guest;
mod health;
mod instance;
mod interface;
mod kernel;
mod layout;
mod limiter;
mod module;
mod names;
mod options;
mod pool;
mod template;
mod trap;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::path::Path;

pub use code::ReturnCode;
#[cfg(all(test, feature = "wasmtime"))]
pub(crate) use engine::wasmtime::cache;
pub use fault::Fault;
pub use guest::{Element, Guest};
pub(crate) use health::Counters;
pub use health::Counts;
pub use interface::CacheCounts;
pub use kernel::{Job, Kernel, Outcome};
pub use layout::{Area, Binding, Descriptor, Direction};
pub use options::{Allocation, SandboxOptions};
pub use trap::{Trap, TrapKind};

use self::interface::{Code, Engine};
use crate::error::{Error, Result};
use crate::host::EngineKind;
use crate::pack::{Module, Pack};

/// Engine with its settings, and compiled modules. Kernels may outlive it.
pub struct Sandbox {
    engine: Box<dyn Engine>,
    description: crate::Engine,
    options: SandboxOptions,
}

impl Sandbox {
    /// Starts an engine.
    ///
    /// # Errors
    /// [`Error::Sandbox`] for an engine that this program is built without and for settings that
    /// the machine does not allow; [`Error::Writable`], [`Error::NotRegular`] and [`Error::Io`] for
    /// the folder of compiled modules.
    pub fn new(options: SandboxOptions) -> Result<Self> {
        let description = engine::description(options.engine)?;
        Ok(Self { engine: engine::start(&options)?, description, options })
    }

    /// Kind, version and features of the engine of [`SandboxOptions::default`], for
    /// [`Host::engine`](crate::Host::engine).
    pub fn engine() -> crate::Engine {
        let kind = SandboxOptions::default().engine;
        let nothing = || crate::Engine { kind, version: crate::Version::new(0, 0, 0), features: [].into() };
        Self::engine_of(kind).unwrap_or_else(|_| nothing())
    }

    /// Kind, version and features of an engine.
    ///
    /// # Errors
    /// [`Error::Sandbox`] for one that this program is built without.
    pub fn engine_of(kind: EngineKind) -> Result<crate::Engine> {
        engine::description(kind)
    }

    /// Interpreter that looks at the time after so little fuel, and is resumed as often.
    #[cfg(all(test, feature = "wasmi"))]
    pub(crate) fn with_fuel_slices(slice: u64) -> Result<Self> {
        let options = SandboxOptions { engine: EngineKind::Wasmi, ..SandboxOptions::default() };
        let engine = Box::new(engine::wasmi::Wasmi::start(&options)?.with_slices(slice));
        Ok(Self { engine, description: engine::description(EngineKind::Wasmi)?, options })
    }

    /// Compiles the module of a kernel and makes the first instance.
    ///
    /// # Errors
    /// [`Error::Kernel`] with the fault of module, start function or `kernel_init`;
    /// [`Error::NoPlatform`], [`Error::EngineTooOld`], [`Error::MissingFeature`]; the errors of the
    /// folder of compiled modules.
    pub fn load(&self, pack: &Pack, id: &str) -> Result<Kernel> {
        let module = pack.module(id).ok_or_else(|| Error::kernel(id, Fault::NoSuchKernel))?;
        self.description.check(module.kernel)?;
        self.kernel(&module, &*self.compiled(&module)?)
    }

    /// Compiles all kernels of a pack, modules that they share once.
    ///
    /// # Errors
    /// As [`load`](Self::load), of the first kernel that fails.
    pub fn load_all(&self, pack: &Pack) -> Result<Vec<Kernel>> {
        let mut compiled = BTreeMap::new();
        let kernel = |module: Module<'_>| {
            self.description.check(module.kernel)?;
            let compiled = match compiled.entry(module.kernel.sha256) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => place.insert(self.compiled(&module)?),
            };
            self.kernel(&module, &**compiled)
        };
        pack.modules().map(kernel).collect()
    }

    /// Folder of compiled modules.
    pub fn cache_folder(&self) -> Option<&Path> {
        self.options.cache.as_deref()
    }

    /// Counters of the folder of compiled modules; all 0 without one.
    pub fn cache_counts(&self) -> CacheCounts {
        self.engine.cache_counts()
    }

    /// False if outputs with NaN or infinity are refused.
    pub(crate) fn allows_non_finite(&self) -> bool {
        !self.options.refuse_non_finite
    }

    fn compiled(&self, module: &Module<'_>) -> Result<Box<dyn Code>> {
        self.engine.compile(module.kernel.id.as_str(), module.bytes)
    }

    fn kernel(&self, module: &Module<'_>, compiled: &dyn Code) -> Result<Kernel> {
        Kernel::new(module.kernel, compiled, &self.options)
    }
}

impl fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sandbox").field("options", &self.options).finish_non_exhaustive()
    }
}
