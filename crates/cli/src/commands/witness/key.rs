//! `ruvllm witness key`: a key pair for checkpoints.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
use ruvllm_witness::PrivateKey;
use serde::Serialize;

use crate::error::Result;
use crate::output;

const HELP: &str = "\
OUT is the private key (PKCS #8 in PEM, mode 0600), with which a server signs; OUT.pub is the public key, with which
`ruvllm witness verify` verifies. Keep the public key where whoever may write the log cannot replace it. openssl reads
both. Existing files are not replaced.

JSON: {private_key, public_key, key_id}

Examples:
  ruvllm witness key /etc/ruvllm/witness.key";

/// Make a key pair for the checkpoints of a witness log
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct KeyArgs {
    /// File for the private key
    #[arg(value_name = "OUT")]
    output: PathBuf,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    private_key: &'a Path,
    public_key: &'a Path,
    key_id: String,
}

pub(crate) fn run(args: &KeyArgs, json: bool) -> Result<()> {
    let mut name = OsString::from(&args.output);
    name.push(".pub");
    let public_path = PathBuf::from(name);
    let key = PrivateKey::generate()?;
    key.public_key().create(&public_path)?;
    if let Err(error) = key.create(&args.output) {
        // A public key without its private key is of no use.
        let _ = std::fs::remove_file(&public_path);
        return Err(error.into());
    }
    let key_id = key.public_key().id().to_string();
    if json {
        let document = Document { private_key: &args.output, public_key: &public_path, key_id };
        return output::write_json(&document);
    }
    let (private, public) = (args.output.display(), public_path.display());
    output::write_text(&format!("key {key_id}\nprivate: {private}\npublic:  {public}\n")).map(|_| ())
}
