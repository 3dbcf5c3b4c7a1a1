//! `ruvllm pack sign`: a signature for a pack.

use std::path::{Path, PathBuf};

use clap::Args;
use ruvllm_kernel_packs::{Contents, Digest, KeyId, PrivateKey, SIGNATURE, Version};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::output;
use crate::result_file::{self, Readers};

const HELP: &str = "\
PACK is an archive, which is replaced as a whole, or a complete folder, which gets kernels.json.sig. The manifest must
name the key in `author.signing_key`, and the modules must have its hashes: the manifest alone is signed, and it is not
changed.

JSON: {output, name, version, key_id, manifest_sha256}

Examples:
  ruvllm pack sign norms-1.0.0.tar --key acme.key
  ruvllm pack sign norms --key acme.key --force";

/// Sign a pack that was built without a key
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct SignArgs {
    /// Archive or folder
    pack: PathBuf,

    /// Private key
    #[arg(long, value_name = "FILE")]
    key: PathBuf,

    /// Replace a signature
    #[arg(long)]
    force: bool,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    output: &'a Path,
    name: &'a str,
    version: &'a Version,
    key_id: KeyId,
    manifest_sha256: Digest,
}

pub(crate) fn run(args: &SignArgs, json: bool) -> Result<()> {
    let key = PrivateKey::load(&args.key)?;
    let mut contents = Contents::open(&args.pack)?;
    if contents.is_signed() && !args.force {
        return Err(Error::SignedPack { path: args.pack.clone() });
    }
    contents.sign(&key)?;
    let (path, bytes) = if args.pack.is_dir() {
        let signature = contents.files().find(|(path, _)| *path == SIGNATURE);
        (args.pack.join(SIGNATURE), signature.map(|(_, bytes)| bytes.to_vec()).unwrap_or_default())
    } else {
        (args.pack.clone(), contents.to_archive()?)
    };
    let failed = |source| Error::WriteFile { path: path.clone(), source };
    result_file::write(&path, &bytes, Readers::Umask).map_err(failed)?;
    let manifest = contents.manifest();
    let key_id = manifest.author.signing_key;
    if json {
        return output::write_json(&Document {
            output: &path,
            name: &manifest.name,
            version: &manifest.version,
            key_id,
            manifest_sha256: contents.manifest_sha256(),
        });
    }
    let text = format!("{}: {} signed by {key_id}\n", path.display(), manifest.title());
    output::write_text(&text).map(|_| ())
}
