//! `ruvllm session`: conversations that `chat --session` has kept.

pub(crate) mod fork;
pub(crate) mod list;
pub(crate) mod rm;

use clap::Subcommand;

use crate::session_store::SessionId;

/// List, copy or remove sessions of `ruvllm chat --session`
#[derive(Debug, Subcommand)]
pub(crate) enum SessionCommand {
    #[command(visible_alias = "ls")]
    List(list::ListArgs),
    Fork(fork::ForkArgs),
    #[command(visible_alias = "remove")]
    Rm(rm::RmArgs),
}

/// Parses an id.
fn id(text: &str) -> Result<SessionId, String> {
    SessionId::parse(text)
}
