//! Engines of this build, and the choice of one.

#[cfg(feature = "wasmi")]
pub(super) mod wasmi;
#[cfg(feature = "wasmtime")]
pub(super) mod wasmtime;

use super::interface::Engine;
use super::options::SandboxOptions;
#[cfg(not(all(feature = "wasmtime", feature = "wasmi")))]
use crate::error::Error;
use crate::error::Result;
use crate::host::EngineKind;

/// Kind, version and features of an engine.
///
/// # Errors
/// [`Error::Sandbox`] for one that this program is built without.
pub(super) fn description(kind: EngineKind) -> Result<crate::Engine> {
    match kind {
        #[cfg(feature = "wasmtime")]
        EngineKind::Wasmtime => Ok(wasmtime::description()),
        #[cfg(feature = "wasmi")]
        EngineKind::Wasmi => Ok(wasmi::description()),
        #[cfg(not(all(feature = "wasmtime", feature = "wasmi")))]
        absent => Err(without(absent)),
    }
}

/// Starts the engine of the options.
///
/// # Errors
/// [`Error::Sandbox`] for settings that engine or machine do not allow, and for an engine that this
/// program is built without; the errors of the folder of compiled modules.
pub(super) fn start(options: &SandboxOptions) -> Result<Box<dyn Engine>> {
    match options.engine {
        #[cfg(feature = "wasmtime")]
        EngineKind::Wasmtime => Ok(Box::new(wasmtime::Wasmtime::start(options)?)),
        #[cfg(feature = "wasmi")]
        EngineKind::Wasmi => Ok(Box::new(wasmi::Wasmi::start(options)?)),
        #[cfg(not(all(feature = "wasmtime", feature = "wasmi")))]
        absent => Err(without(absent)),
    }
}

/// Error of an engine that this program is built without.
#[cfg(not(all(feature = "wasmtime", feature = "wasmi")))]
fn without(kind: EngineKind) -> Error {
    Error::Sandbox { why: format!("this program is built without {}", kind.name()) }
}
