//! Failures of modules and calls.

use super::code::ReturnCode;
use super::names::{INIT, REQUESTS};
use super::trap::Trap;

/// Failure of a module that is loaded, or of a call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The pack has no kernel with this id.
    #[error("the pack has no such kernel; `ruvllm pack inspect` lists its kernels")]
    NoSuchKernel,
    /// The module is not valid, or uses features that are switched off.
    #[error("its module cannot be compiled: {why}; use another pack")]
    Malformed {
        /// Message of the compiler.
        why: String,
    },
    /// The module imports something.
    #[error("its module imports {module:?} {name:?}; kernels have no imports")]
    Import {
        /// Beginning of the name of the imported module.
        module: String,
        /// Beginning of the name of the item.
        name: String,
    },
    /// An export is absent.
    #[error("its module has no export {name:?}")]
    MissingExport {
        /// Name of the export.
        name: String,
    },
    /// An export has another type.
    #[error("its export {name:?} is not {expected}")]
    ExportType {
        /// Name of the export.
        name: String,
        /// Type that the interface asks for.
        expected: &'static str,
    },
    /// The module begins with more memory or table elements than its limits allow.
    #[error("its module begins with {found} {what}, its limits allow {most}")]
    Declared {
        /// Item that is counted.
        what: &'static str,
        /// Number in the module.
        found: u64,
        /// Number in the manifest.
        most: u64,
    },
    /// The call was stopped in the kernel.
    #[error("{0}")]
    Trap(Trap),
    /// An export returned a code other than 0.
    #[error("{export} returned {code}")]
    Code {
        /// Name of the export.
        export: String,
        /// The code.
        code: ReturnCode,
    },
    /// An area is not within the memory of the instance.
    #[error("{what}: {bytes} bytes at {offset} are not within a memory of {memory} bytes")]
    Area {
        /// Name of the area.
        what: &'static str,
        /// Its offset.
        offset: u64,
        /// Its size in bytes.
        bytes: u64,
        /// Size of the memory in bytes.
        memory: u64,
    },
    /// The requests do not fit into the memory that the kernel may have.
    #[error("the requests need {need} bytes of memory, limits.memory_pages allows {most}; use fewer rows")]
    Room {
        /// Bytes of memory with the requests.
        need: u64,
        /// Bytes that the manifest allows.
        most: u64,
    },
    /// A size, parameter or tensor of a request does not fit the manifest.
    #[error("{what}: {why}")]
    Argument {
        /// Name of the item.
        what: String,
        /// Mismatch, with both sizes.
        why: String,
    },
    /// An output has an infinity or NaN, and the sandbox was told to refuse these.
    #[error("the output {tensor} has the value {value} at {index}")]
    NotFinite {
        /// Name of the output.
        tensor: String,
        /// Index of the value.
        index: usize,
        /// Text of the value.
        value: String,
    },
    /// The instance could not be made for lack of memory or address space.
    #[error("no instance could be made: {why}; close kernels or lower the number of ready instances")]
    NoInstance {
        /// Message of the engine.
        why: String,
    },
}

impl Fault {
    /// Fault of an absent export.
    pub(super) fn missing(name: &str) -> Self {
        Self::MissingExport { name: name.to_owned() }
    }

    /// Fault of an argument.
    pub(super) fn argument(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Argument { what: what.into(), why: why.into() }
    }

    /// True for faults of the kernel: its instance is dropped, and they count for quarantine.
    pub(super) fn is_defect(&self) -> bool {
        match self {
            Self::Trap(_) | Self::NotFinite { .. } => true,
            Self::Area { what, .. } => *what != REQUESTS,
            Self::Code { export, code } => code.is_defect() || export == INIT,
            _ => false,
        }
    }
}
