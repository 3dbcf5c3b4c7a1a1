//! `ruvllm pack`: signed packs of WebAssembly kernels.

pub(crate) mod bench;
pub(crate) mod build;
pub(crate) mod inspect;
pub(crate) mod install;
mod installed;
pub(crate) mod keygen;
pub(crate) mod list;
pub(crate) mod prune;
pub(crate) mod rollback;
pub(crate) mod sign;
mod trust;
pub(crate) mod verify;

#[cfg(feature = "kernel-packs")]
pub(crate) use self::trust::{trusted_keys, version};

use clap::Subcommand;
use ruvllm_hub::Store as Models;
use ruvllm_kernel_packs::Store;

use crate::error::Result;

/// Build, sign, verify and install packs of WebAssembly kernels
#[derive(Debug, Subcommand)]
pub(crate) enum PackCommand {
    Keygen(keygen::KeygenArgs),
    Build(build::BuildArgs),
    Sign(sign::SignArgs),
    Verify(verify::VerifyArgs),
    Inspect(inspect::InspectArgs),
    Install(install::InstallArgs),
    List(list::ListArgs),
    Rollback(rollback::RollbackArgs),
    Prune(prune::PruneArgs),
    Bench(bench::BenchArgs),
}

/// Runs a command of the group.
pub(crate) fn run(command: &PackCommand, json: bool) -> Result<()> {
    match command {
        PackCommand::Keygen(args) => keygen::run(args, json),
        PackCommand::Build(args) => build::run(args, json),
        PackCommand::Sign(args) => sign::run(args, json),
        PackCommand::Verify(args) => verify::run(args, json),
        PackCommand::Inspect(args) => inspect::run(args, json),
        PackCommand::Install(args) => install::run(args, json),
        PackCommand::List(args) => list::run(args, json),
        PackCommand::Rollback(args) => rollback::run(args, json),
        PackCommand::Prune(args) => prune::run(args, json),
        PackCommand::Bench(args) => bench::run(args, json),
    }
}

/// The store of this user: `packs` beside the folder of the models.
///
/// # Errors
/// As [`Models::from_env`].
pub(crate) fn store() -> Result<Store> {
    Ok(Store::new(Models::from_env()?.root().with_file_name("packs")))
}
