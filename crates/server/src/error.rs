//! Reasons why a server does not start.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use thiserror::Error;

use crate::api_error::with_sources;
use crate::auth::KeysError;
use crate::config::ConfigError;

/// Reason why a server does not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration is not valid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The keys file is not valid.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// The address can be reached from other machines, and every caller would be served.
    #[error(
        "{address} can be reached from other machines, and there are no API keys; make one with `ruvllm key new \
         NAME` and set keys.file (--api-keys), or set listen.allow_public (--allow-public) to serve everybody"
    )]
    Public {
        /// The address.
        address: SocketAddr,
    },
    /// The address cannot be listened at.
    #[error("cannot listen at {address}: {source}; choose another with {setting}")]
    Bind {
        /// Host and port, or path of the socket.
        address: String,
        /// Key and flag that set it.
        setting: &'static str,
        /// Error of the system.
        source: io::Error,
    },
    /// Certificate or private key cannot be used.
    #[error("TLS: {}: {reason}", path.display())]
    Tls {
        /// The file.
        path: PathBuf,
        /// The fault.
        reason: String,
    },
    /// A model that is kept from the start on cannot be loaded.
    #[error("cannot load the model {name}: {source}")]
    Model {
        /// Name in requests.
        name: String,
        /// Error of the engine.
        source: Box<ruvllm::Error>,
    },
    /// A model or adapter of the configuration cannot be used.
    #[error("models: {0}")]
    Models(String),
    /// The witness log cannot be opened, or its last entries cannot be written.
    #[error("witness log: {0}")]
    Witness(#[from] ruvllm_witness::Error),
    /// Threads or signal handlers are refused by the system.
    #[error("cannot start the server: {0}")]
    System(#[source] io::Error),
}

impl Error {
    /// A model or adapter that cannot be used, for this reason.
    pub fn models(source: impl std::error::Error) -> Self {
        Self::Models(with_sources(&source))
    }
}
