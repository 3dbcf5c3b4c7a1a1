//! Flags and settings of verification.

use std::io::ErrorKind;
use std::path::PathBuf;

use clap::Args;
use ruvllm_kernel_packs::{Error as PackError, Host, Policy, Store, Timestamp, TrustedKeys, Version};

use crate::error::Result;

/// Name of the file of trusted keys in the store.
const FILE: &str = "trusted-keys.json";

/// Keys whose packs are accepted.
#[derive(Debug, Args)]
pub(super) struct TrustArgs {
    /// File of trusted keys [default: trusted-keys.json in the store]
    #[arg(long, value_name = "FILE")]
    trusted_keys: Option<PathBuf>,
}

/// Trusted keys and this program as their host.
pub(super) struct Trust {
    keys: TrustedKeys,
    host: Host,
}

impl TrustArgs {
    /// Reads the keys. A default file that is absent has none.
    ///
    /// # Errors
    /// A file that cannot be read or that others may change.
    pub(super) fn load(&self, store: &Store) -> Result<Trust> {
        let keys = match &self.trusted_keys {
            Some(path) => TrustedKeys::load(path),
            None => trusted_keys(store),
        };
        Ok(Trust { keys: keys?, host: Host::new(version()) })
    }
}

impl Trust {
    /// The same for a host with an engine, whose version and features packs are compared with.
    #[cfg(feature = "kernel-packs")]
    pub(super) fn with_engine(mut self, engine: ruvllm_kernel_packs::Engine) -> Self {
        self.host.engine = Some(engine);
        self
    }

    /// Policy for packs at this time.
    pub(super) fn policy(&self) -> Policy<'_> {
        Policy { keys: &self.keys, host: &self.host, now: Some(Timestamp::now()) }
    }
}

/// Trusted keys of the store; none if their file is absent.
///
/// # Errors
/// A file that cannot be read or that others may change.
pub(crate) fn trusted_keys(store: &Store) -> Result<TrustedKeys, PackError> {
    match TrustedKeys::load(&store.root().join(FILE)) {
        Err(PackError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
            TrustedKeys::new(Vec::new(), None)
        }
        loaded => loaded,
    }
}

/// Version of the program.
pub(crate) fn version() -> Version {
    Version::parse(env!("CARGO_PKG_VERSION")).expect("cargo accepts no other versions")
}
