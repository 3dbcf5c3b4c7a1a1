//! Errors of learning.

#[cfg(feature = "store")]
use std::io;
#[cfg(feature = "store")]
use std::path::PathBuf;

/// Result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Errors of learning, its stores and its inputs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting is outside its range.
    #[error("{name} is {value}; it must be {range}")]
    Setting {
        /// Name of the setting, as the caller writes it.
        name: &'static str,
        /// Its value.
        value: String,
        /// Allowed values.
        range: &'static str,
    },
    /// Two arrays that belong together have different lengths.
    #[error("{what} has {got} values, need {expected}")]
    Dimension {
        /// The array.
        what: &'static str,
        /// Values needed.
        expected: usize,
        /// Values given.
        got: usize,
    },
    /// An input is NaN or infinite.
    #[error("{what} holds a value that is not finite")]
    NotFinite {
        /// The input.
        what: &'static str,
    },
    /// A rating is NaN or outside [-1, 1].
    #[error("rating is {value}; it must be in [-1, 1]")]
    Rating {
        /// Value given.
        value: f32,
    },
    /// A field of a trajectory, of feedback, of an event or of a snapshot is not valid.
    #[error("{field}: {reason}")]
    Record {
        /// Name of the field.
        field: &'static str,
        /// The fault.
        reason: String,
    },
    /// Feedback for a request that the store does not hold.
    #[error("no trajectory of request {request:?}: unknown, not yet stored, or removed by retention")]
    UnknownRequest {
        /// Id of the request.
        request: String,
    },
    /// Feedback for a request of another tenant.
    ///
    /// Servers report it as [`UnknownRequest`](Self::UnknownRequest): it tells that the id exists.
    #[error("request {request:?} belongs to another tenant")]
    ForeignRequest {
        /// Id of the request.
        request: String,
    },
    /// The store holds a trajectory of this request already.
    #[error("request {request:?} of tenant {tenant:?} is stored already")]
    DuplicateRequest {
        /// Owner of the request.
        tenant: String,
        /// Id of the request.
        request: String,
    },
    /// A line of an import is not valid; nothing was imported.
    #[error("line {line}: {reason}; nothing was imported")]
    ImportLine {
        /// Number of the line, from 1.
        line: u64,
        /// The fault.
        reason: String,
    },
    /// An export could not be written, or an import not be read.
    #[cfg(feature = "store")]
    #[error("cannot {action} trajectories")]
    Exchange {
        /// Failed action.
        action: &'static str,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
    /// The feedback log of a tenant is full.
    #[error(
        "the feedback log of tenant {tenant:?} is full: {bytes} bytes of {limit}; save a clean snapshot and trim \
         the log, or raise StoreOptions::event_bytes"
    )]
    EventLogFull {
        /// Owner of the log.
        tenant: String,
        /// Bytes in use.
        bytes: u64,
        /// Their limit.
        limit: u64,
    },
    /// No snapshot has this version.
    #[error("no snapshot {version} of adapter {adapter:?} of tenant {tenant:?}")]
    UnknownSnapshot {
        /// Owner of the adapter.
        tenant: String,
        /// The adapter.
        adapter: String,
        /// Version asked for.
        version: u64,
    },
    /// The bytes of a snapshot do not have the digest that was saved with them.
    #[error("snapshot {version} of adapter {adapter:?} is damaged; roll back to another version")]
    SnapshotDamaged {
        /// The adapter.
        adapter: String,
        /// Its version.
        version: u64,
    },
    /// The memory budget has no room.
    #[error("memory budget has no room for {bytes} bytes of {what}; raise the budget or lower StoreOptions")]
    MemoryBudget {
        /// Use of the memory.
        what: &'static str,
        /// Bytes needed.
        bytes: usize,
    },
    /// The file of the store could not be used.
    #[cfg(feature = "store")]
    #[error("cannot {action} the learning store {}", path.display())]
    StoreIo {
        /// Failed action.
        action: &'static str,
        /// File of the store.
        path: PathBuf,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
    /// The file of the store cannot grow. The last committed state is kept.
    #[cfg(feature = "store")]
    #[error(
        "no space left for the learning store {}; free space or lower StoreOptions::trajectory_bytes; what was \
         committed is kept", path.display()
    )]
    StoreFull {
        /// File of the store.
        path: PathBuf,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
    /// Another process has the store open.
    #[cfg(feature = "store")]
    #[error("the learning store {} is open in another process", path.display())]
    StoreInUse {
        /// File of the store.
        path: PathBuf,
    },
    /// The file is damaged, or no store.
    #[cfg(feature = "store")]
    #[error(
        "the learning store {} is damaged ({reason}); restore a copy, export what a read-only open can still \
         read, or move the file away to begin an empty store", path.display()
    )]
    StoreDamaged {
        /// File of the store.
        path: PathBuf,
        /// The damage.
        reason: String,
    },
    /// The store was not closed, so that a read-only open cannot read it.
    #[cfg(feature = "store")]
    #[error("the learning store {} was not closed; open it for writing once to repair it", path.display())]
    StoreNeedsRepair {
        /// File of the store.
        path: PathBuf,
    },
    /// The file has a format of another version of this crate.
    #[cfg(feature = "store")]
    #[error(
        "the learning store {} has format {found}, this program reads format {supported}; export it with the \
         program that wrote it, then import it", path.display()
    )]
    StoreFormat {
        /// File of the store.
        path: PathBuf,
        /// Its format.
        found: u64,
        /// Format of this crate.
        supported: u64,
    },
    /// The recorder is closed, or its thread has ended.
    #[error("the recorder is closed")]
    RecorderClosed,
    /// Records in memory could not be stored.
    #[error("{records} records could not be stored")]
    Unwritten {
        /// Records in memory that are not in the store.
        records: u64,
        /// Error of the latest attempt.
        #[source]
        source: Box<Error>,
    },
    /// A token id is beyond the vocabulary.
    #[error("token {token} is beyond the vocabulary of {vocab_size}")]
    Token {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocab_size: usize,
    },
    /// Bytes are no snapshot of a learner.
    #[error("cannot read the snapshot of a learner: {reason}")]
    Snapshot {
        /// The fault.
        reason: &'static str,
    },
    /// A vector of zeros has no direction.
    #[error("{what} is zero in every value; it has no direction to compare")]
    ZeroVector {
        /// The vector.
        what: &'static str,
    },
    /// A file cannot be read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: std::path::PathBuf,
        /// Error of the system.
        #[source]
        error: std::io::Error,
    },
    /// Choice of the CPU's instruction set failed.
    #[cfg(feature = "bank")]
    #[error(transparent)]
    Kernels(ruvllm_kernels::Error),
    /// The bank's database failed: it is damaged, locked by another process, or its disk is full.
    #[cfg(feature = "bank")]
    #[error("memory bank: {0}")]
    Database(#[from] Box<redb::Error>),
    /// A record of the bank does not have the form that this version writes.
    #[cfg(feature = "bank")]
    #[error("memory bank: {what} is damaged: {reason}; restore the file or delete this entry")]
    BankRecord {
        /// The record.
        what: String,
        /// The first deviation.
        reason: String,
    },
    /// A memory item's text is not allowed in prompts.
    #[cfg(feature = "bank")]
    #[error("{field} of a memory item {reason}")]
    ItemText {
        /// `title`, `description` or `body`.
        field: &'static str,
        /// The rule that it breaks.
        reason: String,
    },
    /// No such item of this tenant.
    #[cfg(feature = "bank")]
    #[error("tenant {tenant:?} has no memory item {id}")]
    NoItem {
        /// The tenant that was asked for.
        tenant: String,
        /// The item's id.
        id: u64,
    },
    /// A judge or an extraction failed to run; it is no verdict.
    #[cfg(feature = "bank")]
    #[error("judge: {0}")]
    Judge(String),
    /// An input without which there is no result is absent, or 0 everywhere.
    #[error("empty {what}")]
    Empty {
        /// The input.
        what: &'static str,
    },
    /// A group of a parameter layout is not usable.
    #[error("parameter group \"{name}\": {reason}")]
    ParameterGroup {
        /// Name of the group.
        name: String,
        /// Reason.
        reason: &'static str,
    },
    /// Two layouts that belong together differ.
    #[error("parameters are [{got}], need [{expected}]")]
    Layout {
        /// Layout needed.
        expected: String,
        /// Layout given.
        got: String,
    },
    /// The system started no thread.
    #[error("cannot start the thread of the background loop")]
    Thread(#[source] std::io::Error),
    /// A number that was passed in is outside its range.
    #[error("{what} is {value}; it must be {range}")]
    Input {
        /// The number.
        what: &'static str,
        /// Its value.
        value: f64,
        /// Allowed values.
        range: &'static str,
    },
    /// No arm of a router is permitted for a request.
    #[error("no arm of the router is permitted for this request; permit at least one")]
    NoArm,
    /// A saved state has another version.
    #[error("{what} has version {found}, this program reads version {supported}; delete it to learn anew")]
    Version {
        /// The state.
        what: &'static str,
        /// Its version.
        found: u32,
        /// The version that is read.
        supported: u32,
    },
    /// A saved state belongs to something else.
    #[error("{what} is that of another {of}; delete it to learn anew")]
    Foreign {
        /// The state.
        what: &'static str,
        /// The property that differs.
        of: &'static str,
    },
    /// A saved state was changed or cut.
    #[error("{what} is damaged; restore a copy or delete it to learn anew")]
    Damaged {
        /// The state.
        what: &'static str,
    },
    /// A data set cannot be used.
    #[error("data set: {reason}")]
    DataSet {
        /// Fault and its place.
        reason: String,
    },
    /// An embedding or language model failed.
    #[error("the model failed")]
    Model {
        /// Error of the model.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Memories do not fit the budget of their tenant or of the store.
    #[error(
        "memory of tenant {tenant:?} is full: {need} bytes, {room} allowed; forget some or raise the limit"
    )]
    MemoryFull {
        /// The tenant.
        tenant: String,
        /// Bytes that it would have.
        need: usize,
        /// Bytes that it may have.
        room: usize,
    },
    /// A store could not be opened, read or written.
    #[error("cannot {action}")]
    Store {
        /// Failed action.
        action: &'static str,
        /// Error of the store.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A stream could not be read or written.
    #[error("cannot {action}")]
    Io {
        /// Failed action.
        action: &'static str,
        /// Error of the system.
        #[source]
        source: std::io::Error,
    },
    /// A line of a file is not what it should be.
    #[error("line {line}: {reason}")]
    Line {
        /// Number of the line, from 1.
        line: usize,
        /// The fault.
        reason: String,
    },
}
