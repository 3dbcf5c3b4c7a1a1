//! Errors of opening an object store.

use std::io;

/// An object store that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The URL is none of an object store.
    #[error("{url:?} is no URL of an object store ({reason}); expected s3://BUCKET/PREFIX")]
    Url {
        /// The URL given.
        url: String,
        /// Its fault.
        reason: &'static str,
    },
    /// The endpoint has no TLS, which has to be allowed.
    #[error("{variable} is {endpoint}, without TLS: set AWS_ALLOW_HTTP=true if the network to it is trusted")]
    PlainHttp {
        /// The environment variable.
        variable: &'static str,
        /// Its value.
        endpoint: String,
    },
    /// A setting of the environment that `object_store` refuses.
    #[error("settings of {url} in AWS_* variables: {reason}")]
    Settings {
        /// The URL of the store.
        url: String,
        /// The reason, in one line.
        reason: String,
    },
    /// The threads of the client cannot be started.
    #[error("cannot start the threads of the object store's client")]
    Threads(#[source] io::Error),
}
