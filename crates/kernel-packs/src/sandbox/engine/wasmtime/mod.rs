//! Wasmtime, a compiler (ADR-0096).

pub(crate) mod cache;
mod compiled;
mod machine;
mod settings;
mod ticker;
mod trap;

pub(super) use self::settings::description;
use wasmtime::{ExternType, FuncType, Module, Mutability, ValType};

use self::cache::Cache;
use self::machine::Maker;
use crate::error::{Error, Result};
use crate::manifest::{Kernel, ResourceLimits};
use crate::sandbox::fault::Fault;
use crate::sandbox::interface::{CacheCounts, Code, Declared, Engine, Export, Factory};
use crate::sandbox::options::SandboxOptions;

/// Engine, clock of budgets and folder of compiled modules.
pub(super) struct Wasmtime {
    engine: wasmtime::Engine,
    cache: Option<Cache>,
}

impl Wasmtime {
    /// Starts an engine and its clock.
    ///
    /// # Errors
    /// [`Error::Sandbox`]; the errors of the folder of compiled modules.
    pub(super) fn start(options: &SandboxOptions) -> Result<Self> {
        let failed = |why: String| Error::Sandbox { why };
        let engine = settings::new(options).map_err(|error| failed(error.root_cause().to_string()))?;
        let cache = options.cache.as_deref().map(Cache::open).transpose()?;
        ticker::start(&engine).map_err(|error| failed(format!("the clock's thread: {error}")))?;
        Ok(Self { engine, cache })
    }
}

impl Engine for Wasmtime {
    fn compile(&self, kernel: &str, wasm: &[u8]) -> Result<Box<dyn Code>> {
        Ok(Box::new(match &self.cache {
            Some(cache) => cache.module(&self.engine, kernel, wasm)?,
            None => cache::compile(&self.engine, kernel, wasm)?,
        }))
    }

    fn cache_counts(&self) -> CacheCounts {
        self.cache.as_ref().map_or_else(CacheCounts::default, Cache::counts)
    }
}

impl Code for Module {
    fn import(&self) -> Option<(String, String)> {
        let import = self.imports().next()?;
        Some((import.module().to_owned(), import.name().to_owned()))
    }

    fn declared(&self) -> Declared {
        let needs = self.resources_required();
        Declared {
            memories: needs.num_memories.into(),
            pages: needs.max_initial_memory_size.unwrap_or(0),
            tables: needs.num_tables.into(),
            elements: needs.max_initial_table_size.unwrap_or(0),
        }
    }

    fn export(&self, name: &str) -> Option<Export> {
        Some(match self.get_export(name)? {
            ExternType::Memory(memory) if !memory.is_shared() && !memory.is_64() => Export::Memory,
            ExternType::Func(function) if is_of_i32(&function) => {
                Export::Function(function.params().len(), function.results().len())
            }
            ExternType::Global(global)
                if matches!(global.content(), ValType::I32) && global.mutability() == Mutability::Const =>
            {
                Export::Constant
            }
            _ => Export::Other,
        })
    }

    fn factory(&self, kernel: &Kernel, limits: ResourceLimits) -> Result<Box<dyn Factory>, Fault> {
        Ok(Box::new(Maker::new(self, kernel, limits)?))
    }
}

/// True for a function whose parameters and results are of the type i32.
fn is_of_i32(function: &FuncType) -> bool {
    function.params().chain(function.results()).all(|value| matches!(value, ValType::I32))
}
