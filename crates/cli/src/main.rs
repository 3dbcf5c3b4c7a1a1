//! The `ruvllm` program: run, inspect and measure language models from the command line.
//!
//! This file only reads the arguments, runs one command and turns its result into an exit code: 0
//! success, 1 failure (one line on standard error), 2 usage error, 130 stopped by Ctrl-C. The
//! engine is the library `ruvllm`; nothing here computes.

#![deny(unsafe_code)]

mod adapter_store;
mod answer_filter;
mod args;
mod built_in;
mod cli;
mod command_line;
mod commands;
mod config;
mod console;
mod cpu_time;
mod default_model;
mod device;
mod error;
mod failure;
mod heap;
mod help;
mod input;
mod kernel_pack;
mod key_pair;
mod one_line;
mod output;
mod pack_text;
mod plan_text;
mod progress;
mod result_file;
mod session_store;
mod signal;
mod system;
mod tools;
mod units;
mod usage;
mod user_folders;
mod wrap;

use std::process::ExitCode;

use crate::failure::Failure;

fn main() -> ExitCode {
    signal::report_file_size_limit();
    let cli = match command_line::read() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let json = cli.json;
    match cli.run() {
        Ok(code) => code,
        Err(error) => Failure::from(&error).report(json, ""),
    }
}
