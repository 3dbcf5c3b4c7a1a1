//! `ruvllm witness`: the log of requests that a server keeps.

pub(crate) mod export;
pub(crate) mod key;
mod selection;
pub(crate) mod show;
pub(crate) mod verify;

use clap::Subcommand;

/// Verify, show or export the witness log of a server
#[derive(Debug, Subcommand)]
pub(crate) enum WitnessCommand {
    Verify(verify::VerifyArgs),
    Show(show::ShowArgs),
    Export(export::ExportArgs),
    Key(key::KeyArgs),
}
