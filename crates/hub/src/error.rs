//! Errors of the store and of the client.

use std::io;
use std::path::{Path, PathBuf};

use crate::names::visible;

/// Errors of downloads and of the model store.
///
/// After a failed download the bytes that arrived stay in the store, unless the variant says
/// otherwise; the same call continues with them. A failure never touches a model that is complete.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A text is not a reference to a model on a hub.
    #[error("`{text}` is not a model reference: {reason}; expected hf://ORG/REPO[/FILE][@REVISION]")]
    Reference {
        /// The text.
        text: String,
        /// Fault in the text.
        reason: &'static str,
    },
    /// An environment variable has an invalid value.
    #[error("{variable}: {reason}")]
    Setting {
        /// The variable.
        variable: &'static str,
        /// Fault in the value.
        reason: String,
    },
    /// No folder for the store: none of `RUVLLM_HOME`, `XDG_DATA_HOME` and `HOME` is set.
    #[error("no folder for models: none of RUVLLM_HOME, XDG_DATA_HOME and HOME is set; set RUVLLM_HOME")]
    NoHome,
    /// A download was asked for, and downloads are switched off.
    #[error("{reference} is not in the store and HF_HUB_OFFLINE forbids downloads; unset it and try again")]
    Offline {
        /// The reference.
        reference: String,
    },
    /// Authentication required or token refused (401).
    #[error("{url}: the server wants a valid access token; {hint}")]
    Unauthorized {
        /// The URL.
        url: String,
        /// Places that are searched for a token, or the origin of the refused one.
        hint: String,
    },
    /// Access refused (403); gated repositories answer so until their terms are accepted.
    #[error(
        "{url}: access refused{message}; accept the terms on the repository's page with the token's account"
    )]
    Forbidden {
        /// The URL.
        url: String,
        /// Message of the server, after a colon, or nothing.
        message: String,
    },
    /// The server has no such repository, revision or file (404).
    #[error("{url}: not found{message}; check the spelling (private repositories need a token in HF_TOKEN)")]
    NotFound {
        /// The URL.
        url: String,
        /// Message of the server, after a colon, or nothing.
        message: String,
    },
    /// Unexpected HTTP status.
    #[error("{url}: the server answers with status {status}{message}")]
    Status {
        /// The URL.
        url: String,
        /// HTTP status.
        status: u16,
        /// Message of the server, after a colon, or nothing.
        message: String,
    },
    /// Connection failed or broke.
    #[error("{url}: no connection")]
    Connection {
        /// The URL.
        url: String,
        /// Error of the HTTP library.
        #[source]
        source: io::Error,
    },
    /// TLS failed: certificate not trusted, or no common version.
    #[error(
        "{url}: no secure connection; where a proxy has certificates of its own, name them in SSL_CERT_FILE"
    )]
    Tls {
        /// The URL.
        url: String,
        /// Error of the TLS library.
        #[source]
        source: io::Error,
    },
    /// The body of an answer ended early, or its connection broke.
    #[error("{url}: the connection ended after {bytes} bytes")]
    Interrupted {
        /// The URL.
        url: String,
        /// Bytes of this answer that arrived.
        bytes: u64,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
    /// Transfer rate below the minimum.
    #[error("{url}: only {bytes} bytes in {seconds} s")]
    Slow {
        /// The URL.
        url: String,
        /// Bytes that arrived.
        bytes: u64,
        /// In this time.
        seconds: u64,
    },
    /// The server asks to wait longer than is sensible for a program.
    #[error("{url}: the server asks to wait {seconds} s before the next request; try again later")]
    WaitTooLong {
        /// The URL.
        url: String,
        /// Seconds of its Retry-After.
        seconds: u64,
    },
    /// Every attempt failed in a way that could have passed.
    #[error("gave up after {attempts} attempts; pulling again continues where this ended")]
    GaveUp {
        /// Attempts in a row without progress.
        attempts: u32,
        /// The last failure.
        #[source]
        source: Box<Error>,
    },
    /// The server's answer does not follow the protocol.
    #[error("{url}: unexpected answer: {reason}")]
    Answer {
        /// The URL.
        url: String,
        /// Fault in the answer.
        reason: String,
    },
    /// A list of files does not follow the protocol, or is longer than any repository's.
    #[error("the list of files is not understood: {reason}")]
    Listing {
        /// Fault in the list.
        reason: String,
    },
    /// A model consists of more files than any.
    #[error("{repo}: the model has {found} files; {limit} are pulled at most")]
    TooManyFiles {
        /// The repository.
        repo: String,
        /// The model's files.
        found: usize,
        /// The most files of a model.
        limit: usize,
    },
    /// The server names a file that could not be stored inside the store.
    #[error("`{name}` is not a safe file name: {reason}")]
    UnsafeName {
        /// The name.
        name: String,
        /// The rule that it breaks.
        reason: &'static str,
    },
    /// The repository does not have the file that was named.
    #[error("{repo} has no file `{file}`; {there_is}")]
    NoSuchFile {
        /// The repository.
        repo: String,
        /// The file.
        file: String,
        /// Names that come near.
        there_is: String,
    },
    /// More than one file could be meant.
    #[error("{repo} holds more than one model: name one as hf://{repo}/FILE; there is {choices}")]
    Ambiguous {
        /// The repository.
        repo: String,
        /// The first of the names.
        choices: String,
    },
    /// The repository holds nothing that is known as a model.
    #[error("{repo} holds no GGUF file and no folder of config.json with safetensors files; {there_is}")]
    NoModel {
        /// The repository.
        repo: String,
        /// Contents of the repository instead.
        there_is: String,
    },
    /// A part of a model in several files is not there.
    #[error("{repo} lacks `{file}`, one of the parts of the model")]
    MissingPart {
        /// The repository.
        repo: String,
        /// The part.
        file: String,
    },
    /// A whole file has other contents than the hub says. The file was deleted.
    #[error("`{file}` has the SHA-256 {found}, not {expected}; it was deleted, pull again")]
    Checksum {
        /// The file.
        file: String,
        /// SHA-256 stated by the hub, 64 hexadecimal digits.
        expected: String,
        /// SHA-256 of the file received.
        found: String,
    },
    /// The file was replaced on the server between two requests. What had arrived was deleted.
    #[error("`{file}` changed on the server while it was downloaded; pull again")]
    Changed {
        /// The file.
        file: String,
    },
    /// There is not enough room for what is to be downloaded.
    #[error("{}: {needed} bytes are needed and {available} are free; make room, or set RUVLLM_HOME to another disk", path.display())]
    DiskFull {
        /// The store.
        path: PathBuf,
        /// Bytes to download.
        needed: u64,
        /// Bytes that the file system has left for this user.
        available: u64,
    },
    /// Another process works on the same repository.
    #[error("another process is working on {repo}; wait for it to end")]
    Busy {
        /// The repository.
        repo: String,
    },
    /// The caller's progress function asked to stop.
    #[error("stopped")]
    Cancelled,
    /// A text cannot be the name of a model in the store.
    #[error(
        "`{name}` cannot be a model's name: use up to 100 letters, digits, `.`, `_` and `-`, a letter or digit first, no dot last, and no device of Windows (CON, NUL, ...)"
    )]
    Name {
        /// The text.
        name: String,
    },
    /// Another model has the name.
    #[error("the name {name} belongs to {source_text}; choose another name, or remove that model first")]
    NameTaken {
        /// The name.
        name: String,
        /// Reference that this model was pulled from.
        source_text: String,
    },
    /// The store has no model of that name.
    #[error("no model in the store is called {name}; {there_is}")]
    UnknownModel {
        /// The name.
        name: String,
        /// Names that come near.
        there_is: String,
    },
    /// The model's download did not come to its end.
    #[error("{name} is not complete; pull {source_text} again under the same name to continue")]
    Incomplete {
        /// The name.
        name: String,
        /// Reference to pull.
        source_text: String,
    },
    /// A manifest of the store is damaged. [`Store::remove`](crate::Store::remove) removes it.
    #[error("{} is damaged: {reason}; remove the model of this name and pull it again", path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// Fault in the manifest.
        reason: String,
    },
    /// A folder of the store is a link to another place, whose files are none of the store's.
    #[error("{} is a link; a store's folders must be folders, only the store itself may be a link", path.display())]
    Link {
        /// The link.
        path: PathBuf,
    },
    /// The system refused an operation on a file.
    #[error("cannot {action} {}", path.display())]
    File {
        /// Failed action, such as `read`.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
}

/// Result of the store and of the client.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Makes a function that wraps an error of the system in [`Error::File`].
pub(crate) fn file_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::File { action, path: path.to_owned(), source }
}

/// Most names that a message lists.
const LISTED: usize = 6;

/// The first of `names` as a list for a message: `a, b and 3 more`.
pub(crate) fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut names = names.map(shortened);
    let shown: Vec<String> = names.by_ref().take(LISTED).collect();
    match names.count() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// A text from elsewhere for a message: no line breaks, control characters or changes of direction,
/// 48 characters at most.
pub(crate) fn shortened(text: &str) -> String {
    const LONGEST: usize = 48;
    let mut short: String = text.chars().take(LONGEST).map(visible).collect();
    if text.chars().nth(LONGEST).is_some() {
        short.push_str("...");
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_in_messages_stay_short() {
        assert_eq!(listed(["a", "b"].into_iter()), "a, b");
        let many: Vec<String> = (0..100).map(|i| format!("{i}{}", "x".repeat(500))).collect();
        let text = listed(many.iter().map(String::as_str));
        assert!(text.len() < 400 && text.ends_with("... and 94 more"), "{text}");
        assert_eq!(shortened("a\nb\u{1b}[2J"), "a b [2J");
        assert_eq!(shortened("a\u{202e}b"), "a\u{fffd}b");
    }
}
