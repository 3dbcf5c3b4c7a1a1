//! Pairs of Ed25519 key files.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use ruvllm_witness::{PrivateKey, PublicKey};

use crate::error::Result;

/// Key pair in two new files.
pub(crate) struct KeyPair {
    /// File of the public key.
    pub(crate) public_path: PathBuf,
    /// The public key.
    pub(crate) public_key: PublicKey,
}

impl KeyPair {
    /// Makes a key pair: the private key in `path`, the public key beside it in `path.pub`.
    ///
    /// # Errors
    /// A file that exists or cannot be written. Neither is left behind.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let mut name = OsString::from(path);
        name.push(".pub");
        let public_path = PathBuf::from(name);
        let key = PrivateKey::generate()?;
        let public_key = key.public_key();
        public_key.create(&public_path)?;
        if let Err(error) = key.create(path) {
            // A public key without its private key is of no use.
            let _ = fs::remove_file(&public_path);
            return Err(error.into());
        }
        Ok(Self { public_path, public_key })
    }

    /// The pair for people.
    pub(crate) fn text(&self, path: &Path) -> String {
        let (private, public) = (path.display(), self.public_path.display());
        format!("key {}\nprivate: {private}\npublic:  {public}\n", self.public_key.id())
    }
}
