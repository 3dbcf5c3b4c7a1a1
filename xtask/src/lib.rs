//! What `cargo xtask` does: checks, benches, architecture decision records and synthetic models.
//!
//! It is a library only so that its own integration tests can call it; nothing else in the workspace
//! depends on it. `cargo xtask --help` lists the commands.

#![forbid(unsafe_code)]

pub mod adr;
pub mod bench;
mod ci;
mod cli;
mod cross_test;
mod error;
mod example;
mod family_goldens;
pub mod fixtures;
pub mod gen_model;
pub mod metadata;
mod process;
mod sanitize;
mod second_opinion;
mod setup;
mod tally;
mod template_goldens;
mod test_binaries;
mod tokenizer_goldens;
mod workspace;

pub use cli::run;
pub use error::{Error, Result};
pub use workspace::Workspace;
