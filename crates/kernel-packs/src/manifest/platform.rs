//! Engines that a kernel is made for.

use std::fmt;

use semver::Version;
use serde::{Deserialize, Serialize};

use crate::json::present;

/// Engines that a kernel is made for; at least one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Platforms {
    /// Needs of the kernel on wasmtime.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub wasmtime: Option<Wasmtime>,
    /// Needs of the kernel on wasmi.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub wasmi: Option<Wasmi>,
}

/// Needs of a kernel on wasmtime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Wasmtime {
    /// Earliest version, inclusive.
    pub min_version: Version,
    /// Features of WebAssembly beyond version 1 that the module uses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<WasmFeature>,
}

/// Needs of a kernel on wasmi.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Wasmi {
    /// Earliest version, inclusive.
    pub min_version: Version,
    /// True if the author offers compiled code elsewhere; packs have none.
    #[serde(default)]
    pub aot_available: bool,
}

/// Feature of WebAssembly that a host may lack or switch off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WasmFeature {
    /// Vectors of 128 bits.
    Simd128,
    /// Vector operations whose results depend on the CPU.
    RelaxedSimd,
    /// Copies and fills of memory.
    BulkMemory,
    /// Functions with several results.
    MultiValue,
    /// References to functions and to objects of the host.
    ReferenceTypes,
    /// Calls that replace their caller.
    TailCall,
    /// Several linear memories.
    MultiMemory,
}

impl WasmFeature {
    /// All features.
    pub const ALL: [Self; 7] = [
        Self::Simd128,
        Self::RelaxedSimd,
        Self::BulkMemory,
        Self::MultiValue,
        Self::ReferenceTypes,
        Self::TailCall,
        Self::MultiMemory,
    ];

    /// Name in manifests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Simd128 => "simd128",
            Self::RelaxedSimd => "relaxed_simd",
            Self::BulkMemory => "bulk_memory",
            Self::MultiValue => "multi_value",
            Self::ReferenceTypes => "reference_types",
            Self::TailCall => "tail_call",
            Self::MultiMemory => "multi_memory",
        }
    }
}

impl fmt::Display for WasmFeature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
