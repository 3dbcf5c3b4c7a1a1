//! `--device` and `doctor --gpu` on any adapter, software adapters included.
//!
//! Without an adapter the tests that need one print a line and pass, unless `RUVLLM_GPU_REQUIRED`
//! is set.

mod adapters;
mod cache;
mod compute;
mod device;
#[allow(dead_code)]
#[path = "../it/program.rs"]
mod program;
mod report;
#[allow(dead_code)]
#[path = "../it/schema.rs"]
mod schema;
mod serve;

use std::io::Write;

use serde_json::Value;

use crate::program::{Run, command, finish, run};

/// The report on the adapters.
fn report() -> Value {
    run(&["doctor", "--gpu", "--json"]).json()
}

/// The adapters of a report.
fn adapters(report: &Value) -> &[Value] {
    report["adapters"].as_array().expect("a list")
}

/// `gpu:N` of an adapter, preferably a software one; `None`, with a line on standard error, if
/// there is none.
fn gpu() -> Option<String> {
    let report = report();
    let all = adapters(&report);
    let Some(adapter) = all.iter().find(|adapter| adapter["kind"] == "software").or(all.first()) else {
        assert!(std::env::var_os("RUVLLM_GPU_REQUIRED").is_none(), "no adapter: {report}");
        // Written past the capture of test output, so that a skipped test is visible.
        let _ = writeln!(std::io::stderr(), "SKIPPED: no adapter");
        return None;
    };
    Some(format!("gpu:{}", adapter["index"]))
}

/// Runs the program without a Vulkan driver.
fn run_without_driver(arguments: &[&str]) -> Run {
    let mut command = command(arguments);
    command.env("VK_DRIVER_FILES", "/dev/null").env("VK_ICD_FILENAMES", "/dev/null");
    finish(arguments, command.output().expect("the program runs"))
}
