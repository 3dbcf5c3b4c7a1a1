//! `ruvllm pack rollback`: the version before.

use clap::Args;

use super::installed::{self, PackDocument};
use super::store;
use super::trust::TrustArgs;
use crate::error::Result;
use crate::output;

const HELP: &str = "\
The previous version is verified and becomes the current one; a second rollback undoes the first. The floor stays, so
that earlier versions cannot be installed again. A previous version that does not verify, because its files are damaged
or its key was revoked, does not become the current one.

JSON: {name, version, previous, older, floor, installed}

Examples:
  ruvllm pack rollback norms";

/// Go back to the previous version of a pack
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct RollbackArgs {
    /// Name of the pack
    name: String,

    #[command(flatten)]
    trust: TrustArgs,
}

pub(crate) fn run(args: &RollbackArgs, json: bool) -> Result<()> {
    let store = store()?;
    let trust = args.trust.load(&store)?;
    let pack = store.rollback(&args.name, trust.policy())?;
    if json {
        return output::write_json(&PackDocument::from(&pack));
    }
    output::write_text(&installed::text(&pack)).map(|_| ())
}
