//! `ruvllm pack build`: an archive from a folder.

use std::path::{Path, PathBuf};

use clap::Args;
use ruvllm_kernel_packs::{Contents, Digest, KeyId, PrivateKey, Version};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::output;
use crate::result_file::{Destination, Readers};

const HELP: &str = "\
FOLDER has kernels.json and the modules that it lists; other files are left out. `sha256` and `bytes` of kernels that
are absent are filled in; ones that are there must be those of the files. With --key the pack is signed and
`author.signing_key` filled in. FOLDER is not changed. Two builds have the same bytes.

The form of kernels.json is docs/schema/kernel-pack.json, explained in docs/kernel-packs.md.

JSON: {output, name, version, kernel_count, bytes, manifest_sha256, signed, key_id}

Examples:
  ruvllm pack build norms norms-1.0.0.tar --key acme.key
  ruvllm pack build norms norms-1.0.0.tar";

/// Build the archive of a pack from a folder
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct BuildArgs {
    /// Folder with kernels.json and the modules
    folder: PathBuf,

    /// The archive to write (- = standard output)
    #[arg(value_name = "OUT")]
    output: PathBuf,

    /// Private key that signs the pack
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,

    /// Replace OUT if it exists
    #[arg(long)]
    force: bool,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    output: &'a Path,
    name: &'a str,
    version: &'a Version,
    kernel_count: usize,
    bytes: usize,
    manifest_sha256: Digest,
    signed: bool,
    key_id: KeyId,
}

pub(crate) fn run(args: &BuildArgs, json: bool) -> Result<()> {
    let is_stdout = args.output == Path::new("-");
    if json && is_stdout {
        return Err(Error::StdoutTwice);
    }
    let destination = Destination::find(&args.output, args.force)?;
    let key = args.key.as_deref().map(PrivateKey::load).transpose()?;
    let contents = Contents::build(&args.folder, key.as_ref())?;
    let archive = contents.to_archive()?;
    destination.write(&archive, Readers::Umask)?;
    let manifest = contents.manifest();
    if json {
        return output::write_json(&Document {
            output: &args.output,
            name: &manifest.name,
            version: &manifest.version,
            kernel_count: manifest.kernels.len(),
            bytes: archive.len(),
            manifest_sha256: contents.manifest_sha256(),
            signed: contents.is_signed(),
            key_id: manifest.author.signing_key,
        });
    }
    if is_stdout {
        return Ok(());
    }
    let kernels = output::counted(manifest.kernels.len(), "kernel");
    let signed = match contents.is_signed() {
        true => format!("signed by {}", manifest.author.signing_key),
        false => "not signed (ruvllm pack sign)".to_owned(),
    };
    let (path, size) = (args.output.display(), output::bytes(archive.len() as u64));
    output::write_text(&format!("{path}: {}, {kernels}, {size}, {signed}\n", manifest.title())).map(|_| ())
}
