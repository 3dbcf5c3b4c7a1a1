//! Errors of packs.

use std::io;
use std::path::{Path, PathBuf};

use ruvllm_witness::{Digest, KeyId, Timestamp};
use semver::Version;

/// Result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Errors of reading, building, verifying and installing a pack.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or folder could not be used.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// Failed action.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
    /// A link, device, pipe or folder where a file belongs, or the other way round.
    #[error("{} is a link or special file; packs have regular files and folders only", path.display())]
    NotRegular {
        /// Its path.
        path: PathBuf,
    },
    /// A number or size is above its limit. Nothing beyond the limit was read.
    #[error("{what}: {found} where {most} is the most; make the pack smaller or split it")]
    Limit {
        /// Item that is counted, with its place.
        what: String,
        /// Number found, or a lower bound of it.
        found: u64,
        /// Largest number.
        most: u64,
    },
    /// A path cannot be in a pack.
    #[error("the path {path:?} cannot be in a pack: {why}")]
    Path {
        /// Beginning of the path.
        path: String,
        /// Fault and remedy.
        why: &'static str,
    },
    /// A file that the manifest does not list.
    #[error("the pack has the file {path:?}, which its manifest does not list; remove it or list it")]
    UnlistedFile {
        /// Beginning of its path.
        path: String,
    },
    /// A listed file is absent.
    #[error("the pack has no {path:?}; build it again from a complete folder")]
    MissingFile {
        /// Its path.
        path: String,
    },
    /// An archive is cut short or is no archive.
    #[error("the archive cannot be read; get or build it again (Contents::build)")]
    Archive {
        /// Error of the reader.
        #[source]
        source: io::Error,
    },
    /// An archive has an entry that is no plain file: a link, device, folder or extension.
    #[error("the archive has {path:?} with the type {kind:?}; only plain files are allowed")]
    EntryType {
        /// Beginning of its path.
        path: String,
        /// Its type as the header states it.
        kind: char,
    },
    /// An archive has other bytes than its files need: data behind the end, other order, other
    /// fields in headers.
    #[error("the archive is not in the one form that packs have; build it again (Contents::build)")]
    NotCanonical,
    /// A document is not JSON of its form: also unknown, absent and repeated fields.
    #[error("{what} cannot be read")]
    Json {
        /// The document.
        what: String,
        /// Error of the JSON parser, with line and column.
        #[source]
        source: serde_json::Error,
    },
    /// A document of another version of its format.
    #[error("{what} has schema_version {found}; this program reads {known}: use a newer program")]
    SchemaVersion {
        /// The document.
        what: String,
        /// Its version.
        found: u32,
        /// The version that is read.
        known: u32,
    },
    /// A field of the manifest or of the trusted keys has a value that it cannot have.
    #[error("{place}: {why}")]
    Field {
        /// Place of the field, such as `kernels[0].inputs[1].shape`.
        place: String,
        /// Fault and remedy.
        why: String,
    },
    /// Two items with the same id, name or path.
    #[error("{place}: {id:?} is there twice; ids are unique")]
    Duplicate {
        /// Place of the second one.
        place: String,
        /// The id.
        id: String,
    },
    /// There are no trusted keys at all.
    #[error("no key is trusted; add the public key of the pack's author to the trusted keys")]
    NoTrustedKey,
    /// A pack of a key that is not trusted.
    #[error(
        "the pack is signed by the key {key}, which is not trusted; add it to the trusted keys if it should be"
    )]
    UnknownKey {
        /// Id of the key.
        key: KeyId,
    },
    /// A pack of a key that was revoked.
    #[error("the pack is signed by the key {key}, which was revoked: {reason}; get a pack of another key")]
    RevokedKey {
        /// Id of the key.
        key: KeyId,
        /// Reason in the trusted keys.
        reason: String,
    },
    /// A pack of a key that is not valid at this time.
    #[error(
        "the pack is signed by the key {key}, which is valid from {} until {} and not at {now}; get a pack of \
         a valid key", shown(*from), shown(*until)
    )]
    KeyNotValid {
        /// Id of the key.
        key: KeyId,
        /// Begin of its validity, inclusive.
        from: Option<Timestamp>,
        /// End of its validity, exclusive.
        until: Option<Timestamp>,
        /// Time of the verification.
        now: Timestamp,
    },
    /// A key that is not the one that the manifest names.
    #[error(
        "the manifest names the signing key {expected}, this is {found}; use the other key or change author.signing_key"
    )]
    OtherKey {
        /// Key of the manifest.
        expected: KeyId,
        /// The key at hand.
        found: KeyId,
    },
    /// A pack without a signature.
    #[error("the pack has no kernels.json.sig; sign it (Contents::sign)")]
    Unsigned,
    /// The signature is none of the manifest.
    #[error(
        "kernels.json.sig is no signature of kernels.json by the key {key}; one of them was changed: get the pack again"
    )]
    BadSignature {
        /// Id of the key.
        key: KeyId,
    },
    /// The pack needs a newer runtime.
    #[error("{pack} needs ruvllm {need} or later, this is {found}; update ruvllm or use an earlier pack")]
    RuntimeTooOld {
        /// Name and version of the pack.
        pack: String,
        /// Earliest version, inclusive.
        need: Version,
        /// Version of the host.
        found: Version,
    },
    /// The pack is for earlier runtimes.
    #[error("{pack} is for ruvllm before {below}, this is {found}; get a later pack")]
    RuntimeTooNew {
        /// Name and version of the pack.
        pack: String,
        /// Version that is too late, exclusive.
        below: Version,
        /// Version of the host.
        found: Version,
    },
    /// A kernel is not made for the engine at hand.
    #[error("the kernel {kernel} has no entry for {engine} in its platforms; use another engine or pack")]
    NoPlatform {
        /// Id of the kernel.
        kernel: String,
        /// Name of the engine.
        engine: &'static str,
    },
    /// A kernel needs a newer engine.
    #[error(
        "the kernel {kernel} needs {engine} {need} or later, this is {found}; update it or use an earlier pack"
    )]
    EngineTooOld {
        /// Id of the kernel.
        kernel: String,
        /// Name of the engine.
        engine: &'static str,
        /// Earliest version, inclusive.
        need: Version,
        /// Version of the engine.
        found: Version,
    },
    /// A kernel needs a feature of WebAssembly that the engine lacks or has switched off.
    #[error("the kernel {kernel} needs {feature}, which {engine} does not offer here; use another pack")]
    MissingFeature {
        /// Id of the kernel.
        kernel: String,
        /// Name of the feature.
        feature: &'static str,
        /// Name of the engine.
        engine: &'static str,
    },
    /// A pack that is older than one that was installed before.
    #[error(
        "{name} {found} is older than {floor}, which was installed before; Store::rollback goes back to the version before"
    )]
    Downgrade {
        /// Name of the pack.
        name: String,
        /// Its version.
        found: Version,
        /// Latest version that was installed.
        floor: Version,
    },
    /// A pack with the version of an installed one and another manifest.
    #[error("{name} {version} was installed with another manifest; a changed pack needs a new version")]
    SameVersion {
        /// Name of the pack.
        name: String,
        /// Its version.
        version: Version,
    },
    /// A kernel file has another length than the manifest says.
    #[error(
        "the kernel {kernel} has {found} bytes, its manifest says {expected}; get or build the pack again"
    )]
    Length {
        /// Id of the kernel.
        kernel: String,
        /// Bytes by the manifest.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// A kernel file has another SHA-256 than the manifest says.
    #[error(
        "the kernel {kernel} has the SHA-256 {found}, its manifest says {expected}; get or build the pack again"
    )]
    HashMismatch {
        /// Id of the kernel.
        kernel: String,
        /// Digest by the manifest.
        expected: Digest,
        /// Digest of the file.
        found: Digest,
    },
    /// A kernel that the allow-list lacks.
    #[error(
        "the kernel {kernel} with the SHA-256 {sha256} is not in allowed_kernels of the trusted keys; add it if it should be"
    )]
    NotAllowed {
        /// Id of the kernel.
        kernel: String,
        /// Its digest.
        sha256: Digest,
    },
    /// A kernel file is no core module of WebAssembly in its binary form.
    #[error(
        "the kernel {kernel} is no WebAssembly module (binary, version 1); compiled code is not accepted"
    )]
    NotWasm {
        /// Id of the kernel.
        kernel: String,
    },
    /// Another process changes the store.
    #[error("the store of packs {} is in use by another process; try again when it has ended", root.display())]
    Busy {
        /// Folder of the store.
        root: PathBuf,
    },
    /// A file or folder that others may change.
    #[error("{} can be changed by others (mode {mode:o}); restrict it: chmod go-w", path.display())]
    Writable {
        /// Its path.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// A pack that is not installed.
    #[error("no pack {name:?} is installed; Store::list has those that are")]
    NotInstalled {
        /// Beginning of the name.
        name: String,
    },
    /// A pack without a previous version.
    #[error("{name} has no previous version to go back to; install another one")]
    NoPrevious {
        /// Name of the pack.
        name: String,
    },
    /// An installed pack has another manifest than the one that was installed.
    #[error("{name} {version} in the store is not the pack that was installed; install it again")]
    Replaced {
        /// Name of the pack.
        name: String,
        /// Its version.
        version: Version,
    },
    /// A fault of an installed pack.
    #[error("cannot use the installed pack {name}")]
    Installed {
        /// Name of the pack.
        name: String,
        /// The fault.
        #[source]
        source: Box<Error>,
    },
    /// A file or folder of another user.
    #[cfg(feature = "sandbox")]
    #[error("{} belongs to another user; use a folder of this user's own", path.display())]
    OtherOwner {
        /// Its path.
        path: PathBuf,
    },
    /// The sandbox cannot run on this machine or with these settings.
    #[cfg(feature = "sandbox")]
    #[error("kernels cannot run here: {why}; use the native ones or change SandboxOptions")]
    Sandbox {
        /// Message of the engine or system.
        why: String,
    },
    /// A kernel could not be loaded, or a call of it failed.
    #[cfg(feature = "sandbox")]
    #[error("the kernel {kernel} failed: {fault}")]
    Kernel {
        /// Id of the kernel.
        kernel: String,
        /// The failure.
        fault: Box<crate::sandbox::Fault>,
    },
    /// A kernel that trapped too often in a row is not called.
    #[cfg(feature = "sandbox")]
    #[error(
        "the kernel {kernel} is in quarantine after {traps} traps in a row; release it or use another pack"
    )]
    Quarantined {
        /// Id of the kernel.
        kernel: String,
        /// Traps in a row.
        traps: u32,
    },
    /// A kernel that does not compute the golden vectors of its category.
    #[cfg(feature = "sandbox")]
    #[error("the kernel {kernel} failed its health check: {why}; use another version of the pack")]
    Unhealthy {
        /// Id of the kernel.
        kernel: String,
        /// First fault.
        why: Box<crate::manager::Unhealthy>,
    },
    /// A pack of another name than the manager's.
    #[cfg(feature = "sandbox")]
    #[error("the manager is for the pack {expected}, this is {found}; use a manager for each")]
    OtherPack {
        /// Name of the manager's pack.
        expected: String,
        /// Name of the pack.
        found: String,
    },
    /// A manager that was made without a store.
    #[cfg(feature = "sandbox")]
    #[error("the manager of {name} has no store to load from; make it with Manager::with_origin")]
    NoOrigin {
        /// Name of the pack.
        name: String,
    },
}

#[cfg(feature = "sandbox")]
impl Error {
    /// Failure of a kernel.
    pub(crate) fn kernel(kernel: &str, fault: crate::sandbox::Fault) -> Self {
        Self::Kernel { kernel: excerpt(kernel), fault: Box::new(fault) }
    }

    /// Failure of a kernel, if it is one.
    pub fn fault(&self) -> Option<&crate::sandbox::Fault> {
        match self {
            Self::Kernel { fault, .. } => Some(fault),
            _ => None,
        }
    }
}

/// A bound of a validity.
fn shown(time: Option<Timestamp>) -> String {
    time.map_or_else(|| "any time".to_owned(), |time| time.to_string())
}

/// Adds action and path to an error of the system.
pub(crate) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { action, path, source }
}

/// A field with a fault.
pub(crate) fn field(place: impl Into<String>, why: impl Into<String>) -> Error {
    Error::Field { place: place.into(), why: why.into() }
}

/// Checks a number against its limit.
///
/// # Errors
/// [`Error::Limit`].
pub(crate) fn within(what: impl Into<String>, found: u64, most: u64) -> Result<()> {
    if found > most { Err(Error::Limit { what: what.into(), found, most }) } else { Ok(()) }
}

/// At most 80 characters of a text.
pub(crate) fn excerpt(text: &str) -> String {
    text.chars().take(80).collect()
}
