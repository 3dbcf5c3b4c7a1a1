//! Wasmi, an interpreter for small devices (ADR-0101).

mod machine;
mod trap;
mod watch;

use std::collections::BTreeSet;

use semver::Version;
use wasmi::{CompilationMode, Config, CustomFuelCosts, ExternType, Module, Mutability, ValType};
use wasmparser::types::TypesRef;
use wasmparser::{Validator, WasmFeatures};

use self::machine::{Maker, SLICE};
use crate::error::{Error, Result};
use crate::manifest::{Kernel, ResourceLimits, WasmFeature};
use crate::sandbox::fault::Fault;
use crate::sandbox::interface::{Code, Declared, Engine, Export, Factory};
use crate::sandbox::options::SandboxOptions;

/// Version of wasmi that the crate is built with; a test compares it with `Cargo.lock`.
const VERSION: Version = Version::new(2, 0, 0);

/// Features that are switched on, as manifests name them.
const OFFERED: [WasmFeature; 4] =
    [WasmFeature::Simd128, WasmFeature::BulkMemory, WasmFeature::MultiValue, WasmFeature::ReferenceTypes];

/// An allow-list: modules are validated with these features and no other, since wasmi itself has a
/// switch for each feature and would have those of later versions on.
const ALLOWED: WasmFeatures = WasmFeatures::MUTABLE_GLOBAL
    .union(WasmFeatures::SATURATING_FLOAT_TO_INT)
    .union(WasmFeatures::SIGN_EXTENSION)
    .union(WasmFeatures::FLOATS)
    .union(WasmFeatures::EXTENDED_CONST)
    .union(WasmFeatures::SIMD)
    .union(WasmFeatures::BULK_MEMORY)
    .union(WasmFeatures::MULTI_VALUE)
    .union(WasmFeatures::REFERENCE_TYPES);

/// Fuel beside one per instruction. Translation at the first call has none: its time is bounded by
/// the size of the module, as that of its validation is.
const COSTS: CustomFuelCosts =
    CustomFuelCosts { bytes_copied_per_fuel: 64, fuel_per_bytes_translated: 0, fuel_per_bytes_validated: 0 };
/// Least bytes of stack: what an empty one begins with.
const LEAST_STACK: usize = 1 << 10;
/// Bytes of a call on the stack of calls, rounded up.
const FRAME: usize = 64;

/// Engine as verification and platforms of manifests see it.
pub(super) fn description() -> crate::Engine {
    crate::Engine { kind: crate::EngineKind::Wasmi, version: VERSION, features: BTreeSet::from(OFFERED) }
}

/// Interpreter with the settings of the sandbox.
pub(in crate::sandbox) struct Wasmi {
    engine: wasmi::Engine,
    /// Fuel between two looks at the time.
    slice: u64,
}

impl Wasmi {
    /// Makes an engine. It has no thread: budgets are counted in fuel and checked against the time.
    ///
    /// # Errors
    /// [`Error::Sandbox`] for a stack that is too small.
    pub(in crate::sandbox) fn start(options: &SandboxOptions) -> Result<Self> {
        if options.stack_bytes < LEAST_STACK {
            let why = format!("a stack of {} bytes is below {LEAST_STACK}", options.stack_bytes);
            return Err(Error::Sandbox { why });
        }
        // A quarter for calls within calls, the rest for their values.
        let calls = options.stack_bytes / 4;
        let mut config = Config::default();
        config
            .wasm_tail_call(false)
            .wasm_multi_memory(false)
            .wasm_relaxed_simd(false)
            .wasm_custom_page_sizes(false)
            .wasm_wide_arithmetic(false)
            // A module has functions of kernels that a device may never call.
            .compilation_mode(CompilationMode::LazyTranslation)
            .fuel_cost(COSTS)
            .ignore_custom_sections(true)
            .consume_fuel(true)
            .set_max_recursion_depth(calls / FRAME)
            .set_min_stack_height(LEAST_STACK / 2)
            .set_max_stack_height(options.stack_bytes - calls)
            .set_max_cached_stacks(options.idle_instances);
        Ok(Self { engine: wasmi::Engine::new(&config), slice: SLICE })
    }

    /// The same with slices of another size.
    #[cfg(test)]
    pub(in crate::sandbox) fn with_slices(self, slice: u64) -> Self {
        Self { slice, ..self }
    }
}

impl Engine for Wasmi {
    fn compile(&self, kernel: &str, wasm: &[u8]) -> Result<Box<dyn Code>> {
        let malformed = |why: String| Error::kernel(kernel, Fault::Malformed { why });
        let types = Validator::new_with_features(ALLOWED).validate_all(wasm);
        let declared = declared(types.map_err(|error| malformed(error.to_string()))?.as_ref());
        let module = Module::new(&self.engine, wasm).map_err(|error| malformed(error.to_string()))?;
        Ok(Box::new(Translated { module, declared, slice: self.slice }))
    }
}

/// Memories and tables of a valid module.
fn declared(types: TypesRef<'_>) -> Declared {
    let pages = (0..types.memory_count()).map(|index| types.memory_at(index).initial);
    let elements = (0..types.table_count()).map(|index| types.table_at(index).initial);
    Declared {
        memories: types.memory_count().into(),
        pages: pages.max().unwrap_or(0),
        tables: types.table_count().into(),
        elements: elements.max().unwrap_or(0),
    }
}

/// Module in the form that the interpreter runs.
struct Translated {
    module: Module,
    declared: Declared,
    slice: u64,
}

impl Code for Translated {
    fn import(&self) -> Option<(String, String)> {
        let import = self.module.imports().next()?;
        Some((import.module().to_owned(), import.name().to_owned()))
    }

    fn declared(&self) -> Declared {
        self.declared
    }

    fn export(&self, name: &str) -> Option<Export> {
        let is_i32 = |value: &ValType| *value == ValType::I32;
        Some(match self.module.get_export(name)? {
            ExternType::Memory(memory) if !memory.is_64() => Export::Memory,
            ExternType::Func(function) if function.params().iter().chain(function.results()).all(is_i32) => {
                Export::Function(function.params().len(), function.results().len())
            }
            ExternType::Global(global)
                if is_i32(&global.content()) && global.mutability() == Mutability::Const =>
            {
                Export::Constant
            }
            _ => Export::Other,
        })
    }

    fn factory(&self, kernel: &Kernel, limits: ResourceLimits) -> Result<Box<dyn Factory>, Fault> {
        Ok(Box::new(Maker::new(self.module.clone(), kernel, limits, self.slice)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_that_of_the_lock_file() {
        let lock = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock")).unwrap();
        let entry = format!("name = \"wasmi\"\nversion = \"{VERSION}\"\n");
        assert!(lock.contains(&entry), "Cargo.lock has another version than {VERSION}");
    }

    #[test]
    fn stacks_that_are_too_small_are_an_error() {
        for stack_bytes in [0, 1023] {
            let options = SandboxOptions { stack_bytes, ..SandboxOptions::embedded() };
            assert!(matches!(Wasmi::start(&options), Err(Error::Sandbox { .. })));
        }
    }
}
