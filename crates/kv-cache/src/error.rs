//! The error type of this crate: one variant per condition, with the numbers that explain it.

use crate::calibration::fault::CalibrationFault;
use crate::prefix::PrefixError;
use crate::shape::KvShape;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Errors of the KV cache.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model's heads do not fit the format.
    #[error(transparent)]
    Kernels(#[from] ruvllm_kernels::Error),

    /// The page pool has no room, or cannot serve blocks of this size.
    #[error(
        "no memory for a block of keys and values of {block_bytes} bytes a layer, in pages of {page_bytes} bytes"
    )]
    Memory {
        /// Bytes of a block in one layer.
        block_bytes: usize,
        /// Bytes of a page of the pool.
        page_bytes: usize,
        /// Error of the pool.
        #[source]
        source: ruvllm_memory::Error,
    },

    /// The budget is used up: the last pages are reserved for migration to lower tiers.
    #[error(
        "the key/value budget is used up: {free_pages} of {total_pages} pages of {page_bytes} bytes are free and {kept_pages} are kept for \
         making present blocks smaller; raise the budget, shorten the context or end a sequence"
    )]
    BudgetReached {
        /// Pages that are free.
        free_pages: usize,
        /// Pages of the pool.
        total_pages: usize,
        /// Bytes of a page.
        page_bytes: usize,
        /// Pages that new tokens do not get.
        kept_pages: usize,
    },

    /// A quota is used up: its last pages are reserved for migration to lower tiers.
    #[error(
        "tenant {tenant:?} has used up its quota of keys and values: {free_pages} of {total_pages} pages of {page_bytes} bytes are free and \
         {kept_pages} are kept for making present blocks smaller; raise the quota, shorten the context or end a sequence of the tenant"
    )]
    QuotaReached {
        /// The tenant whose quota it is: the one of the sequence or an ancestor.
        tenant: String,
        /// Pages that are free within the quota.
        free_pages: usize,
        /// Pages of the quota.
        total_pages: usize,
        /// Bytes of a page.
        page_bytes: usize,
        /// Pages that new tokens do not get.
        kept_pages: usize,
    },

    /// A tenant of another pool.
    #[error("cannot keep keys and values for tenant {tenant:?}")]
    ForeignTenant {
        /// Path of the tenant.
        tenant: String,
        /// Error of the pool.
        #[source]
        source: ruvllm_memory::Error,
    },

    /// Unknown policy.
    #[error("unknown key/value policy {text:?}: use {formats}, two of them as in q8+q4 or k4v2, or tiered")]
    UnknownPolicy {
        /// The text as it was given.
        text: String,
        /// Names of the formats.
        formats: String,
    },

    /// A policy has no option of this name.
    #[error("key/value policy option {option:?} is not one of {expected}")]
    PolicyOption {
        /// `name=value` as it was given.
        option: String,
        /// Known options.
        expected: String,
    },

    /// An option of a policy does not take this value.
    #[error("key/value policy option {option:?} takes no such value: use {expected}")]
    PolicyValue {
        /// `name=value` as it was given.
        option: String,
        /// The option with its values.
        expected: String,
    },

    /// Parts of a policy contradict each other.
    #[error("key/value policy {policy}: {reason}")]
    PolicyConflict {
        /// The policy.
        policy: String,
        /// The conflict and a remedy.
        reason: String,
    },

    /// A format of the policy needs a calibration of the model.
    #[error("key/value policy {policy} needs a calibration of the model: make one, or use kivi4")]
    NoCalibration {
        /// The policy.
        policy: String,
    },

    /// Bytes that are no calibration, or codebooks of another model.
    #[error("unusable calibration of keys and values")]
    Calibration(#[source] CalibrationFault),

    /// A calibration is of a model with other heads or layers.
    #[error("the calibration is for {found}, the model has {expected}")]
    CalibrationShape {
        /// Shape of the calibration.
        found: Box<KvShape>,
        /// Shape of the model.
        expected: Box<KvShape>,
    },

    /// Blocks of this many tokens cannot hold the formats of the policy.
    #[error("blocks of {block_tokens} tokens: use a multiple of {multiple}")]
    BlockTokens {
        /// Tokens of a block.
        block_tokens: usize,
        /// Required divisor.
        multiple: usize,
    },

    /// The sequence is at its end.
    #[error("the cache holds {len} of {capacity} tokens, {tokens} more do not fit")]
    Full {
        /// Tokens in the sequence.
        len: usize,
        /// New tokens.
        tokens: usize,
        /// Most tokens of the sequence.
        capacity: usize,
    },

    /// Truncation to tokens that were already released.
    #[error("cannot go back to {len} tokens: those before position {released} were released")]
    Released {
        /// Tokens to be kept.
        len: usize,
        /// First position that is still there.
        released: usize,
    },

    /// The state of layers that keep one cannot be that of another number of tokens.
    #[error(
        "cannot go to {len} tokens without computing them: the state of some layers holds {tokens} tokens, and \
         earlier only that of {border} is kept"
    )]
    StateOfAll {
        /// Tokens wanted.
        len: usize,
        /// Tokens of the sequence.
        tokens: usize,
        /// Tokens before the last block border whose state is kept; 0 without one.
        border: usize,
    },

    /// A snapshot that does not fit the sequence.
    #[error(
        "a snapshot of {found_values} values behind {found_tokens} tokens does not fit a state of {values} values \
         behind {tokens} tokens"
    )]
    OtherState {
        /// Tokens of the snapshot.
        found_tokens: usize,
        /// Values of the snapshot.
        found_values: usize,
        /// Tokens that it has to stand for.
        tokens: usize,
        /// Values of the sequence's state.
        values: usize,
    },

    /// A snapshot of a sequence without a state.
    #[error("no layer of the model keeps a state: blocks hold all that there is")]
    Stateless,

    /// No memory of the page pool for a snapshot.
    #[error("no room for a snapshot of a state of {bytes} bytes; raise the key/value budget")]
    SnapshotMemory {
        /// Bytes of the snapshot.
        bytes: usize,
        /// Error of the pool.
        #[source]
        source: ruvllm_memory::Error,
    },

    /// No memory for the state of layers that keep one.
    #[error("no memory for {bytes} bytes of the state of a sequence")]
    StateMemory {
        /// Bytes of one state.
        bytes: usize,
    },

    /// Blocks can follow whole blocks only.
    #[error("blocks cannot follow {len} tokens, which do not fill blocks of {block_tokens}")]
    NotAtBlock {
        /// Tokens in the sequence.
        len: usize,
        /// Tokens of a block.
        block_tokens: usize,
    },

    /// A block of another store: it may differ in shape, formats and budget.
    #[error("the block belongs to another store")]
    ForeignBlock,

    /// Invalid state of a controller.
    #[error("not a state of the quality controller; start a new one")]
    ControllerState,

    /// The prefix store on disk failed.
    #[error(transparent)]
    Prefix(#[from] PrefixError),

    /// No tier of the store has the formats of a stored block.
    #[error("the policy {policy} stores nothing in {formats}")]
    AbsentTier {
        /// Formats of the block.
        formats: String,
        /// The policy of the store.
        policy: String,
    },
}

impl Error {
    /// Path of the tenant whose quota was short, empty for the pool itself; `None` if memory was
    /// not what was missing.
    pub fn short_tenant(&self) -> Option<&str> {
        match self {
            Self::QuotaReached { tenant, .. } => Some(tenant),
            Self::BudgetReached { .. } => Some(""),
            Self::Memory { source, .. } => source.short_tenant(),
            _ => None,
        }
    }

    /// `true` if a larger pool would help.
    pub fn is_memory_short(&self) -> bool {
        matches!(self, Self::Memory { .. } | Self::BudgetReached { .. })
    }
}
