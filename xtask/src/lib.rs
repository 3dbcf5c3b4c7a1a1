//! Commands of `cargo xtask`: checks, their tools, architecture decision records.
//!
//! A library for its integration tests and for `ruvllm-tools`; nothing shipped depends on it. It
//! depends on no crate of the project, so that checks start soon on a clean clone.

#![forbid(unsafe_code)]

pub mod adr;
mod ci;
mod cli;
mod clients;
mod core_pack;
mod cross_test;
mod dependencies;
mod deployment;
mod dynamo;
mod error;
mod example;
mod extent;
pub mod fixtures;
mod fuzz;
mod gpu;
mod gpu_bundle;
mod gpu_web;
mod grpc;
mod kernel_sandbox;
pub mod metadata;
mod object_store;
mod platforms;
pub mod process;
mod python;
mod rust_version;
mod sanitize;
mod second_opinion;
mod setup;
mod tally;
mod test_binaries;
pub mod tidy;
mod web;
mod workspace;

use std::process::ExitCode;

pub use cli::run;
pub use error::{Error, Result};
pub use workspace::{Workspace, today, unix_seconds};

/// Exit code for `result`; prints an error with its sources to stderr.
pub fn exit_code<E: std::error::Error>(result: std::result::Result<(), E>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    eprintln!("error: {error}");
    let mut cause = error.source();
    while let Some(inner) = cause {
        eprintln!("  because: {inner}");
        cause = inner.source();
    }
    ExitCode::FAILURE
}
