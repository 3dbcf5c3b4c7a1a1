//! Checks of a module before an instance of it is made.

use super::fault::Fault;
use super::interface::{Code, Export, MAX_TABLES};
use super::names::{BACKWARD, CLEANUP, HEAP_BASE, INFO, INIT, MEMORY};
use crate::error::excerpt;
use crate::manifest::{Kernel, ResourceLimits};

const ENTRY_TYPE: &str = "a function (i32, i32) -> i32";

/// Checks imports, limits and exports.
///
/// # Errors
/// [`Fault::Import`], [`Fault::Declared`], [`Fault::MissingExport`], [`Fault::ExportType`].
pub(super) fn check(code: &dyn Code, kernel: &Kernel, limits: &ResourceLimits) -> Result<(), Fault> {
    if let Some((module, name)) = code.import() {
        return Err(Fault::Import { module: excerpt(&module), name: excerpt(&name) });
    }
    check_limits(code, limits)?;
    let required = |name: &str, expected: Export, text: &'static str| match code.export(name) {
        None => Err(Fault::missing(name)),
        Some(found) if found != expected => Err(Fault::ExportType { name: name.to_owned(), expected: text }),
        Some(_) => Ok(()),
    };
    let optional = |name: &str, expected: Export, text: &'static str| match required(name, expected, text) {
        Err(Fault::MissingExport { .. }) => Ok(()),
        other => other,
    };
    required(MEMORY, Export::Memory, "a memory of 32-bit offsets")?;
    required(&kernel.entry_point, Export::Function(2, 1), ENTRY_TYPE)?;
    optional(HEAP_BASE, Export::Constant, "a constant global of i32")?;
    optional(INIT, Export::Function(0, 1), "a function () -> i32")?;
    optional(INFO, Export::Function(0, 1), "a function () -> i32")?;
    optional(BACKWARD, Export::Function(2, 1), ENTRY_TYPE)?;
    optional(CLEANUP, Export::Function(0, 0), "a function without parameters and results")
}

/// Checks what the module begins with against its limits.
fn check_limits(code: &dyn Code, limits: &ResourceLimits) -> Result<(), Fault> {
    let declared = code.declared();
    for (what, found, most) in [
        ("memories", declared.memories, 1),
        ("pages of memory", declared.pages, u64::from(limits.memory_pages)),
        ("tables", declared.tables, MAX_TABLES as u64),
        // Of one table; the limiter counts all when they are made.
        ("table elements", declared.elements, u64::from(limits.table_elements)),
    ] {
        if found > most {
            return Err(Fault::Declared { what, found, most });
        }
    }
    Ok(())
}
