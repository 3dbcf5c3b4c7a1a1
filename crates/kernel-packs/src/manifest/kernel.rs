//! One kernel of a manifest.

use ruvllm_witness::Digest;
use serde::{Deserialize, Serialize};

use super::category::Category;
use super::fallback::Fallback;
use super::parameter::Parameter;
use super::platform::Platforms;
use super::tensor::Tensor;
use crate::json::present;

/// Kernel of a pack: an export of a WebAssembly module.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Kernel {
    /// Id, unique in the pack.
    pub id: String,
    /// Name, for people.
    pub name: String,
    /// Operation that the kernel computes.
    pub category: Category,
    /// Path of the module in the pack. Several kernels may share a module.
    pub path: String,
    /// SHA-256 of the module. Drafts may lack it.
    #[serde(default = "no_digest")]
    pub sha256: Digest,
    /// Bytes of the module. Drafts may lack it.
    #[serde(default)]
    pub bytes: u64,
    /// Export that computes the operation.
    #[serde(default = "default_entry_point")]
    pub entry_point: String,
    /// Inputs, in the order in which they are passed.
    pub inputs: Vec<Tensor>,
    /// Outputs, in the order in which they are passed.
    pub outputs: Vec<Tensor>,
    /// Parameters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parameters: Vec<Parameter>,
    /// Resources that a call may use.
    #[serde(default)]
    pub limits: ResourceLimits,
    /// Engines that the kernel is made for.
    pub platforms: Platforms,
    /// Measurements of the author.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub benchmarks: Vec<Benchmark>,
    /// Replacement after a failed call; absent for that of the category.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub fallback: Option<Fallback>,
}

/// Resources that an instance and a call may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ResourceLimits {
    /// Linear memory in pages of 64 KiB.
    pub memory_pages: u32,
    /// Time of a call in ticks of 10 ms.
    pub epoch_ticks: u32,
    /// Elements of all tables.
    pub table_elements: u32,
}

/// 16 MiB, 10 s, 1,024 elements.
impl Default for ResourceLimits {
    fn default() -> Self {
        Self { memory_pages: 256, epoch_ticks: 1_000, table_elements: 1_024 }
    }
}

/// Measurement that the author states.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Benchmark {
    /// Sizes of the measured call.
    pub name: String,
    /// Processor and engine.
    pub machine: String,
    /// Median time of a call in microseconds.
    pub median_us: f64,
}

fn no_digest() -> Digest {
    Digest::ZERO
}

fn default_entry_point() -> String {
    "kernel_forward".to_owned()
}
