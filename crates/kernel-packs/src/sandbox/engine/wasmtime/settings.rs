//! Settings of wasmtime.

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};

use ruvllm_witness::Digest;
use semver::Version;
use wasmtime::{
    Config, Engine, InstanceAllocationStrategy, OptLevel, PoolingAllocationConfig, RegallocAlgorithm,
    Strategy, WasmBacktraceDetails, WasmFeatures,
};

use crate::limits::{MAX_MEMORY_PAGES, MAX_TABLE_ELEMENTS};
use crate::manifest::WasmFeature;
use crate::sandbox::interface::PAGE;
use crate::sandbox::options::{Allocation, SandboxOptions};

/// Version of wasmtime that the crate is built with; a test compares it with `Cargo.lock`.
pub(super) const VERSION: Version = Version::new(48, 0, 8);

/// Features that are switched on, as manifests name them.
const OFFERED: [WasmFeature; 4] =
    [WasmFeature::Simd128, WasmFeature::BulkMemory, WasmFeature::MultiValue, WasmFeature::ReferenceTypes];

/// Engine as verification and platforms of manifests see it.
pub(in crate::sandbox::engine) fn description() -> crate::Engine {
    crate::Engine { kind: crate::EngineKind::Wasmtime, version: VERSION, features: BTreeSet::from(OFFERED) }
}

/// Engine with the settings of the sandbox.
///
/// # Errors
/// The error of wasmtime for a stack that is too large or a CPU without a compiler.
pub(super) fn new(options: &SandboxOptions) -> wasmtime::Result<Engine> {
    let mut config = Config::new();
    // An allow-list: features of later versions of wasmtime stay off.
    config
        .wasm_features(WasmFeatures::all(), false)
        .wasm_features(
            WasmFeatures::MUTABLE_GLOBAL
                | WasmFeatures::SATURATING_FLOAT_TO_INT
                | WasmFeatures::SIGN_EXTENSION
                | WasmFeatures::FLOATS
                | WasmFeatures::EXTENDED_CONST
                | WasmFeatures::SIMD
                | WasmFeatures::BULK_MEMORY
                | WasmFeatures::BULK_MEMORY_OPT
                | WasmFeatures::MULTI_VALUE
                | WasmFeatures::REFERENCE_TYPES
                | WasmFeatures::CALL_INDIRECT_OVERLONG,
            true,
        )
        .shared_memory(false)
        .strategy(Strategy::Cranelift)
        .cranelift_opt_level(OptLevel::Speed)
        .cranelift_regalloc_algorithm(RegallocAlgorithm::Backtracking)
        .cranelift_nan_canonicalization(true)
        .epoch_interruption(true)
        .consume_fuel(false)
        .max_wasm_stack(options.stack_bytes)
        // Settings of the environment change nothing, and traps stay cheap.
        .wasm_backtrace_details(WasmBacktraceDetails::Disable)
        .wasm_backtrace_max_frames(None)
        .generate_address_map(false)
        .debug_info(false)
        .memory_init_cow(true);
    if let Allocation::Pooling { instances } = options.allocation {
        config.allocation_strategy(InstanceAllocationStrategy::Pooling(pooling(instances)));
    }
    Engine::new(&config)
}

/// Settings of the pooling allocator: room for the largest limits that a manifest may have.
fn pooling(instances: u32) -> PoolingAllocationConfig {
    let mut pooling = PoolingAllocationConfig::new();
    pooling
        .total_core_instances(instances)
        .total_memories(instances)
        .total_tables(instances)
        .max_memories_per_module(1)
        .max_tables_per_module(1)
        .max_memory_size((u64::from(MAX_MEMORY_PAGES) * PAGE) as usize)
        .table_elements(MAX_TABLE_ELEMENTS as usize)
        .linear_memory_keep_resident(64 << 10)
        .table_keep_resident(4 << 10);
    pooling
}

/// Digest of everything that compiled code depends on beside the module: version and settings of
/// the engine, architecture, system and features of the CPU.
pub(super) fn digest(engine: &Engine) -> Digest {
    let mut bytes = Bytes(Vec::new());
    bytes.0.extend(format!("{VERSION} {} {}\n", std::env::consts::ARCH, std::env::consts::OS).bytes());
    engine.precompile_compatibility_hash().hash(&mut bytes);
    Digest::of(&bytes.0)
}

/// Everything that is hashed, as bytes.
struct Bytes(Vec<u8>);

impl Hasher for Bytes {
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
    }

    fn finish(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_that_of_the_lock_file() {
        let lock = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock")).unwrap();
        let entry = format!("name = \"wasmtime\"\nversion = \"{VERSION}\"\n");
        assert!(lock.contains(&entry), "Cargo.lock has another version than {VERSION}");
    }

    #[test]
    fn settings_change_the_digest() {
        let usual = digest(&new(&SandboxOptions::default()).unwrap());
        assert_eq!(usual, digest(&new(&SandboxOptions::default()).unwrap()));
        let mut others = [Config::new(), Config::new(), Config::new()];
        others[0].cranelift_nan_canonicalization(true).epoch_interruption(true);
        others[1].cranelift_opt_level(OptLevel::None);
        others[2].wasm_features(WasmFeatures::SIMD | WasmFeatures::RELAXED_SIMD, false);
        for config in others {
            assert_ne!(digest(&Engine::new(&config).unwrap()), usual);
        }
    }
}
