//! The `ruvllm` program: run, inspect and measure language models from the command line.
//!
//! This file only parses the arguments, runs one command and turns its result into an exit code: 0
//! success, 1 failure (one line on standard error), 2 usage error, 130 stopped by Ctrl-C. The
//! engine is the library `ruvllm`; nothing here computes.

#![deny(unsafe_code)]

mod args;
mod cli;
mod commands;
mod cpu_time;
mod default_model;
mod error;
mod input;
mod output;
mod plan_text;
mod progress;
mod result_file;
mod signal;
mod system;
mod units;
mod usage;
mod user_folders;
mod wrap;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

use crate::cli::Cli;

fn main() -> ExitCode {
    signal::report_file_size_limit();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage::report(&error),
    };
    match cli.run() {
        Ok(code) => code,
        Err(error) => {
            // When even standard error is closed, the exit code still tells.
            let _ = writeln!(io::stderr(), "error: {}", error.line());
            ExitCode::from(error.exit_code())
        }
    }
}
