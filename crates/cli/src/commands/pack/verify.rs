//! `ruvllm pack verify`: key, signature, versions and hashes of a pack.

use std::path::{Path, PathBuf};

use clap::Args;
use ruvllm_kernel_packs::{Contents, Digest, KeyId, Version};
use serde::Serialize;

use super::store;
use super::trust::TrustArgs;
use crate::error::Result;
use crate::output;

const HELP: &str = "\
Checks in this order: sizes and form, the key (known, not revoked, valid now), the signature, the version of ruvllm,
and length, SHA-256 and header of each module. The first fault is the error, with exit code 1. Versions that are
installed are not compared; `ruvllm pack install` does that.

A file of trusted keys: {\"schema_version\": 1, \"keys\": [{\"id\", \"name\", \"public_key\"}]}, with the entry that
`ruvllm pack keygen` printed. docs/kernel-packs.md has rotation, revocation and the allow-list.

JSON: {pack, name, version, key_id, signer, manifest_sha256, kernels: [{id, category, path, bytes, sha256}]}

Examples:
  ruvllm pack verify norms-1.0.0.tar
  ruvllm pack verify norms --trusted-keys keys.json --json";

/// Verify a pack with the trusted keys
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct VerifyArgs {
    /// Archive or folder
    pack: PathBuf,

    #[command(flatten)]
    trust: TrustArgs,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    pack: &'a Path,
    name: &'a str,
    version: &'a Version,
    key_id: KeyId,
    signer: &'a str,
    manifest_sha256: Digest,
    kernels: Vec<KernelDocument<'a>>,
}

#[derive(Serialize)]
struct KernelDocument<'a> {
    id: &'a str,
    category: &'static str,
    path: &'a str,
    bytes: u64,
    sha256: Digest,
}

pub(crate) fn run(args: &VerifyArgs, json: bool) -> Result<()> {
    let trust = args.trust.load(&store()?)?;
    let pack = Contents::open(&args.pack)?.verify(trust.policy())?;
    let manifest = pack.manifest();
    if json {
        let kernels = pack.modules().map(|module| {
            let kernel = module.kernel;
            KernelDocument {
                id: &kernel.id,
                category: kernel.category.name(),
                path: &kernel.path,
                bytes: kernel.bytes,
                sha256: kernel.sha256,
            }
        });
        return output::write_json(&Document {
            pack: &args.pack,
            name: &manifest.name,
            version: &manifest.version,
            key_id: pack.key_id(),
            signer: pack.signer(),
            manifest_sha256: pack.release().manifest_sha256,
            kernels: kernels.collect(),
        });
    }
    let kernels = output::counted(manifest.kernels.len(), "kernel");
    let (signer, key) = (pack.signer(), pack.key_id());
    let text = format!("valid: {}, {kernels}, signed by {signer} ({key})\n", manifest.title());
    output::write_text(&text).map(|_| ())
}
