//! `ruvllm pack install`: a verified pack into the store.

use std::path::PathBuf;

use clap::Args;
use ruvllm_kernel_packs::Contents;

use super::installed::{self, PackDocument};
use super::store;
use super::trust::TrustArgs;
use crate::error::Result;
use crate::output;

const HELP: &str = "\
Verifies the pack as `ruvllm pack verify` does, and installs it under its name. A version that is older than the latest
that was ever installed under the name (the floor) is refused, and so is another pack with the same version. The
version before stays for `ruvllm pack rollback`. The same version again repairs its files. A kill at any moment leaves
the old version or the new one.

The store is the folder `packs` beside that of the models: in RUVLLM_HOME, or in ruvllm of XDG_DATA_HOME.

JSON: {name, version, previous, older, floor, installed}

Examples:
  ruvllm pack install norms-1.1.0.tar
  ruvllm pack install norms-1.1.0.tar --trusted-keys keys.json";

/// Verify a pack and install it
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct InstallArgs {
    /// Archive or folder
    pack: PathBuf,

    #[command(flatten)]
    trust: TrustArgs,
}

pub(crate) fn run(args: &InstallArgs, json: bool) -> Result<()> {
    let store = store()?;
    let trust = args.trust.load(&store)?;
    let pack = store.install(Contents::open(&args.pack)?, trust.policy())?;
    if json {
        return output::write_json(&PackDocument::from(&pack));
    }
    output::write_text(&installed::text(&pack)).map(|_| ())
}
