//! `ruvllm pack keygen`: a key pair for packs.

use std::path::{Path, PathBuf};

use clap::Args;
use ruvllm_kernel_packs::TrustedKey;
use serde::Serialize;

use crate::error::Result;
use crate::key_pair::KeyPair;
use crate::output;

const HELP: &str = "\
OUT is the private key (PKCS #8 in PEM, mode 0600), with which `ruvllm pack build --key` and `ruvllm pack sign` sign;
OUT.pub is the public key. Existing files are not replaced. openssl reads both. Keep the private key on a machine that
serves nobody.

The last line is an entry for the list `keys` of a file of trusted keys, for those who are to accept your packs.

JSON: {private_key, public_key, key_id, trusted_key: {id, name, public_key}}

Examples:
  ruvllm pack keygen acme.key --name \"Acme kernels\"";

/// Make a key pair that signs packs
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct KeygenArgs {
    /// File for the private key
    #[arg(value_name = "OUT")]
    output: PathBuf,

    /// Owner in the entry of trusted keys [default: the name of OUT]
    #[arg(long)]
    name: Option<String>,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    private_key: &'a Path,
    public_key: &'a Path,
    key_id: String,
    trusted_key: TrustedKey,
}

pub(crate) fn run(args: &KeygenArgs, json: bool) -> Result<()> {
    let pair = KeyPair::create(&args.output)?;
    let file_name = || args.output.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let name = args.name.clone().unwrap_or_else(file_name);
    let trusted_key = TrustedKey::new(&name, pair.public_key.clone());
    if json {
        let key_id = pair.public_key.id().to_string();
        let (private_key, public_key) = (args.output.as_path(), pair.public_path.as_path());
        return output::write_json(&Document { private_key, public_key, key_id, trusted_key });
    }
    let entry = output::json_line(&trusted_key)?;
    output::write_text(&format!("{}trusted: {}\n", pair.text(&args.output), entry.trim_end())).map(|_| ())
}
