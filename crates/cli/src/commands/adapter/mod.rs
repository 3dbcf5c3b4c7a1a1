//! `ruvllm adapter`: LoRA adapters as files and in the store.

pub(crate) mod add;
pub(crate) mod extract;
mod into_base;
pub(crate) mod list;
pub(crate) mod merge;
mod result;
pub(crate) mod rm;
pub(crate) mod show;
mod stored;
pub(crate) mod verify;

use clap::Subcommand;

/// Store, merge and extract LoRA adapters
#[derive(Debug, Subcommand)]
pub(crate) enum AdapterCommand {
    Add(add::AddArgs),
    List(list::ListArgs),
    Show(show::ShowArgs),
    Rm(rm::RmArgs),
    Verify(verify::VerifyArgs),
    Merge(Box<merge::MergeArgs>),
    Extract(extract::ExtractArgs),
}
