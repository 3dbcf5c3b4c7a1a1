//! Reasons that a transfer of a prefix is refused.

use ruvllm_kv_cache::prefix::Fault;

/// Errors of transfers. The prompt can be computed instead; blocks received before the error stay.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The engine exchanges no prefixes.
    #[error(
        "this engine exchanges no prefixes: switch the prefix cache and \
         EngineOptions::prefix_transfers on"
    )]
    Off,
    /// The model has layers that keep a state, which blocks do not hold.
    #[error("layers of this model keep a state, which is not exchanged: prefixes stay in memory")]
    State,
    /// The blocks are of another model.
    #[error("the sender has another model: fingerprint {found}, here {expected}; use the same file")]
    Model {
        /// Fingerprint of this engine's model, in hexadecimal digits.
        expected: String,
        /// Fingerprint of the sender's.
        found: String,
    },
    /// The blocks are of another KV policy.
    #[error("the sender keeps keys and values as {found:?}, here {expected:?}; use the same KV policy")]
    KvFormat {
        /// Policy of this engine.
        expected: String,
        /// Policy of the sender.
        found: String,
    },
    /// The blocks have another length.
    #[error("the sender has blocks of {found} tokens, here {expected}; use the same version")]
    BlockTokens {
        /// Tokens of a block of this engine.
        expected: usize,
        /// Tokens of a block of the sender.
        found: usize,
    },
    /// One side has a prefix key and the other has none.
    #[error(
        "{}; give both sides the same prefix key",
        if *is_tagged { "the sender has a prefix key and this engine none" }
        else { "this engine has a prefix key and the sender none" }
    )]
    Key {
        /// True if the sender has a key.
        is_tagged: bool,
    },
    /// Entries came before an offer, or a second offer came.
    #[error("expected one offer before the entries; send each part of an export once and in order")]
    Order,
    /// The blocks before the first one sent are not here, any more or at all.
    #[error("the blocks begin at block {first} and {known} blocks before it are known; ask for more")]
    Gap {
        /// Index of the first block sent.
        first: usize,
        /// Blocks known from the first token on.
        known: usize,
    },
    /// More was sent than the prompt has or the offer says.
    #[error("the sender goes on after block {blocks}, the last one expected")]
    Surplus {
        /// Number of the last block expected.
        blocks: usize,
    },
    /// The stream ended too early.
    #[error("{received} of {offered} blocks arrived")]
    Incomplete {
        /// Blocks that arrived whole.
        received: usize,
        /// Blocks of the offer.
        offered: usize,
    },
    /// An entry is not what it has to be.
    #[error("refused block {block}: {fault}")]
    Entry {
        /// Index of the block in the prompt.
        block: usize,
        /// Its fault.
        fault: EntryFault,
    },
    /// The KV budget has no room for a block, after prefixes not in use were evicted.
    #[error("no room for block {block}: raise the KV budget or let running requests end")]
    Memory {
        /// Index of the block in the prompt.
        block: usize,
        /// Error of the cache.
        #[source]
        source: ruvllm_kv_cache::Error,
    },
}

/// Fault of an entry.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EntryFault {
    /// Not an entry of this version, without a valid tag, or with another checksum.
    #[error("{0}")]
    Format(Fault),
    /// Computed with another model, KV policy or RoPE scaling, or sent with another prefix key.
    #[error("it is of another model, KV policy, RoPE scaling or prefix key")]
    Origin,
    /// Of another place in the prompt, or behind other blocks.
    #[error("it does not follow the block before it")]
    Place,
    /// Of another prompt.
    #[error("it has other tokens than the prompt")]
    Tokens,
    /// Keys and values of a size that no tier of the KV policy has.
    #[error("its keys and values have {bytes} bytes, and no tier of the KV policy has blocks of that size")]
    Size {
        /// Bytes that its header states.
        bytes: u64,
    },
}
