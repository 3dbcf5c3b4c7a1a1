//! Checks of a compiled module before an instance of it is made.

use wasmtime::{ExternType, FuncType, Module, ModuleExport, Mutability, ValType};

use super::fault::Fault;
use super::names::{BACKWARD, CLEANUP, HEAP_BASE, INFO, INIT, MEMORY};
use crate::error::excerpt;
use crate::manifest::Kernel;

/// Most tables of a module.
pub(super) const MAX_TABLES: usize = 8;

/// Exports of a module that has the interface of kernels.
pub(super) struct Exports {
    pub(super) memory: ModuleExport,
    pub(super) forward: ModuleExport,
    pub(super) heap_base: Option<ModuleExport>,
    pub(super) init: Option<ModuleExport>,
    pub(super) info: Option<ModuleExport>,
    pub(super) backward: Option<ModuleExport>,
    pub(super) cleanup: Option<ModuleExport>,
}

impl Exports {
    /// Checks imports, limits and exports.
    ///
    /// # Errors
    /// [`Fault::Import`], [`Fault::Declared`], [`Fault::MissingExport`], [`Fault::ExportType`].
    pub(super) fn of(module: &Module, kernel: &Kernel) -> Result<Self, Fault> {
        if let Some(import) = module.imports().next() {
            return Err(Fault::Import { module: excerpt(import.module()), name: excerpt(import.name()) });
        }
        check_limits(module, kernel)?;
        let memory = module.get_export(MEMORY);
        if !matches!(memory, Some(ExternType::Memory(memory)) if !memory.is_shared() && !memory.is_64()) {
            return Err(wrong(module, MEMORY, "a memory of 32-bit offsets"));
        }
        let index = |name: &str| {
            let index = module.get_export_index(name);
            index.ok_or_else(|| Fault::MissingExport { name: name.to_owned() })
        };
        let entry = &kernel.entry_point;
        if !is_function(module, entry, 2, 1) {
            return Err(wrong(module, entry, ENTRY_TYPE));
        }
        Ok(Self {
            memory: index(MEMORY)?,
            forward: index(entry)?,
            heap_base: heap_base(module)?,
            init: optional(module, INIT, 0, 1, "a function () -> i32")?,
            info: optional(module, INFO, 0, 1, "a function () -> i32")?,
            backward: optional(module, BACKWARD, 2, 1, ENTRY_TYPE)?,
            cleanup: optional(module, CLEANUP, 0, 0, "a function without parameters and results")?,
        })
    }
}

const ENTRY_TYPE: &str = "a function (i32, i32) -> i32";

/// Checks what the module begins with against its limits.
fn check_limits(module: &Module, kernel: &Kernel) -> Result<(), Fault> {
    let needs = module.resources_required();
    let limits = &kernel.limits;
    let tables = u64::from(needs.num_tables);
    let elements = tables.saturating_mul(needs.max_initial_table_size.unwrap_or(0));
    for (what, found, most) in [
        ("memories", u64::from(needs.num_memories), 1),
        ("pages of memory", needs.max_initial_memory_size.unwrap_or(0), u64::from(limits.memory_pages)),
        ("tables", tables, MAX_TABLES as u64),
        // Of one table; the limiter counts all when they are made.
        (
            "table elements",
            elements.min(needs.max_initial_table_size.unwrap_or(0)),
            limits.table_elements.into(),
        ),
    ] {
        if found > most {
            return Err(Fault::Declared { what, found, most });
        }
    }
    Ok(())
}

/// Index of the global with the heap's base, if it is exported.
fn heap_base(module: &Module) -> Result<Option<ModuleExport>, Fault> {
    match module.get_export(HEAP_BASE) {
        None => Ok(None),
        Some(ExternType::Global(global))
            if matches!(global.content(), ValType::I32) && global.mutability() == Mutability::Const =>
        {
            Ok(module.get_export_index(HEAP_BASE))
        }
        Some(_) => Err(wrong(module, HEAP_BASE, "a constant global of i32")),
    }
}

/// Index of a function that a module may lack.
fn optional(
    module: &Module,
    name: &str,
    parameters: usize,
    results: usize,
    expected: &'static str,
) -> Result<Option<ModuleExport>, Fault> {
    match module.get_export_index(name) {
        Some(_) if !is_function(module, name, parameters, results) => Err(wrong(module, name, expected)),
        index => Ok(index),
    }
}

/// True for a function whose parameters and results are of the type i32.
fn is_function(module: &Module, name: &str, parameters: usize, results: usize) -> bool {
    let is_i32 = |value: ValType| matches!(value, ValType::I32);
    let fits = |function: &FuncType| {
        function.params().len() == parameters
            && function.results().len() == results
            && function.params().all(is_i32)
            && function.results().all(is_i32)
    };
    matches!(module.get_export(name), Some(ExternType::Func(function)) if fits(&function))
}

/// Fault of an export that is absent or of another type.
fn wrong(module: &Module, name: &str, expected: &'static str) -> Fault {
    let name = name.to_owned();
    match module.get_export(&name) {
        None => Fault::MissingExport { name },
        Some(_) => Fault::ExportType { name, expected },
    }
}
