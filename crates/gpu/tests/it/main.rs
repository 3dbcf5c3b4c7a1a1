//! Tests of the public functions; device tests run on any adapter, software adapters included.
//!
//! Without an adapter they print a line and pass, unless `RUVLLM_GPU_REQUIRED` is set.

mod bits;
mod cache;
mod cpu;
mod device;
mod generated;
mod host_memory;
mod kv;
mod metal;
mod shapes;
mod states;
mod tuning;

use std::io::Write;

use ruvllm_gpu::{Error, Gpu, Selection};

/// The best adapter with a budget, or `None` (with a line on standard error) where there is none.
fn gpu_with(budget: u64) -> Option<Gpu> {
    match Gpu::open(&Selection::with_software(), budget) {
        Ok(gpu) => Some(gpu),
        Err(error @ Error::NoAdapter { .. }) if std::env::var_os("RUVLLM_GPU_REQUIRED").is_none() => {
            let name = std::thread::current().name().unwrap_or_default().to_owned();
            // Past the capture of test output: a skipped test is to be seen.
            let _ = writeln!(std::io::stderr(), "SKIPPED {name}: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn gpu() -> Option<Gpu> {
    gpu_with(256 << 20)
}
