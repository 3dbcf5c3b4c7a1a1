//! `ruvllm witness key`: a key pair for checkpoints.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use crate::error::Result;
use crate::key_pair::KeyPair;
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
    let pair = KeyPair::create(&args.output)?;
    if json {
        let key_id = pair.public_key.id().to_string();
        let document = Document { private_key: &args.output, public_key: &pair.public_path, key_id };
        return output::write_json(&document);
    }
    output::write_text(&pair.text(&args.output)).map(|_| ())
}
