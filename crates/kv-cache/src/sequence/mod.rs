//! Block table of one sequence.
//!
//! Blocks in front are shared and never written; behind them comes the tail, storages of the hot
//! tier that only this sequence has and that steps write ([`Sequence::step`]). Storages of the tail
//! that are full become blocks.
//!
//! ```text
//! position   0 ............ 32 ........... 64 ........... 96 ...... 100
//! released   [ 1 block     ]
//! blocks                    [ warm        ][ hot         ]
//! tail                                                   [ hot, 4 of 32 ]
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `step.rs` | [`KvStep`]: new tokens, written layer by layer and committed |
//! | `read.rs` | [`KvReader`]: views outside of a step |
//! | `migrate.rs` | older blocks moved to lower-precision tiers |
//! | `room.rs` | room for a step, under memory pressure |
//! | `release.rs` | blocks released at the beginning and behind the attention sinks |
//! | `squat.rs` | queries that weigh errors of keys |
//! | `sample.rs` | attention by block, and the error that migrating would add |
//! | `share.rs` | forks, shared blocks, copy-on-write |
//! | `state.rs` | the state of layers that keep one instead of keys and values |
//! | `rewind.rs` | states before rejected drafts |
//! | `snapshot.rs` | [`StateSnapshot`]: states that outlive their sequence |
//! | `handles.rs` | handles of blocks and tables, allocated some blocks in advance |

mod handles;
mod migrate;
mod read;
mod release;
mod rewind;
mod room;
mod sample;
mod share;
mod snapshot;
mod squat;
mod state;
mod step;

use std::sync::Arc;

use crate::block::Block;
use crate::convert::LayerContext;
use crate::error::{Error, Result};
use crate::learned::KeyRopes;
use crate::storage::Storage;
use crate::store::KvStore;

use handles::Handles;
use migrate::MigrationScratch;

pub use migrate::Migration;
pub use read::KvReader;
pub use rewind::Replay;
pub use sample::{Probe, Sample, SampleScratch};
pub use snapshot::StateSnapshot;
use squat::LayerQueries;
use state::State;
pub use step::KvStep;

/// The keys and values of one sequence in all layers.
///
/// Dropping it releases the memory that is not shared.
pub struct Sequence {
    store: KvStore,
    len: usize,
    capacity: usize,
    /// Tokens at the end that stay hot.
    hot_tokens: usize,
    /// Blocks in front of the released ones: the attention sinks, once tokens were dropped behind
    /// them.
    sinks: usize,
    /// Released blocks behind those.
    released: usize,
    /// Whole blocks that are there, and a partial one after a fork or a cut.
    blocks: Vec<Block>,
    /// Hot storages behind those, written only here.
    tail: Vec<Arc<Storage>>,
    /// Decayed attention mass by block from position 0 on; missing blocks have none.
    mass: Vec<f32>,
    /// Recorded queries of each layer, if the policy asks for them. Forks share them until one
    /// records more.
    queries: Option<Arc<Vec<LayerQueries>>>,
    /// Of layers that keep one instead of keys and values.
    state: State,
    /// Storages of `blocks` that the present step reads; empty, but with its memory, outside of
    /// one.
    pinned: Vec<Arc<Storage>>,
    /// For new blocks.
    handles: Handles,
    /// For blocks that migrate.
    migration_scratch: MigrationScratch,
}

impl KvStore {
    /// An empty sequence of at most `capacity` tokens. It takes memory as it grows.
    pub fn sequence(&self, capacity: usize) -> Sequence {
        Sequence::new(self.clone(), capacity)
    }
}

impl Sequence {
    fn new(store: KvStore, capacity: usize) -> Self {
        let hot_tokens = store.policy().hot_tokens;
        let mut sequence = Self {
            store,
            len: 0,
            capacity,
            hot_tokens,
            sinks: 0,
            released: 0,
            blocks: Vec::new(),
            tail: Vec::new(),
            mass: Vec::new(),
            queries: None,
            state: State::default(),
            pinned: Vec::new(),
            handles: Handles::default(),
            migration_scratch: MigrationScratch::default(),
        };
        sequence.forget_queries();
        sequence
    }

    /// Number of tokens, which is the position of the next one.
    pub fn len(&self) -> usize {
        self.len
    }

    /// `true` without tokens.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Maximum number of tokens.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The store that it takes memory from.
    pub fn store(&self) -> &KvStore {
        &self.store
    }

    /// Sets the number of tokens at the end that stay hot, at least the policy's. Migrated blocks
    /// do not return.
    pub fn set_hot_tokens(&mut self, tokens: usize) {
        self.hot_tokens = tokens.max(self.store.policy().hot_tokens);
    }

    /// Allocated bytes of keys and values, scales and padding included, of recorded queries and of
    /// the state of layers that keep one. Shared blocks count in each of their sequences.
    pub fn bytes(&self) -> usize {
        let tail: usize = self.tail.iter().map(|storage| storage.bytes()).sum();
        tail + self.blocks.iter().map(Block::bytes).sum::<usize>() + self.query_bytes() + self.state.bytes()
    }

    /// Context of a layer's conversions in a block that begins at `position`.
    fn context<'a>(
        &'a self,
        layer: usize,
        key_ropes: Option<&'a KeyRopes>,
        position: usize,
    ) -> LayerContext<'a> {
        LayerContext { nuq: self.store.nuq(layer, key_ropes, position), corrections: self.corrections(layer) }
    }

    /// The present whole blocks, for other sequences.
    pub fn blocks(&self) -> &[Block] {
        let whole = self.len / self.store.block_tokens() - self.released;
        &self.blocks[..whole.min(self.blocks.len())]
    }

    /// Removes all tokens from position `len` on and releases their memory; without effect if there
    /// are none.
    ///
    /// # Errors
    /// Unless `len` is 0: [`Error::Released`] if tokens before `len` were released,
    /// [`Error::StateOfAll`] if layers keep a state and `len` is not the [`border`](Self::border).
    /// Nothing has changed then.
    pub fn truncate(&mut self, len: usize) -> Result<()> {
        if len == 0 {
            self.clear();
            return Ok(());
        }
        if len < self.len && len != self.border() {
            self.check_stateless(len)?;
        }
        self.check_released(len)?;
        if len < self.len {
            self.state.return_to_border();
        }
        self.cut(len);
        Ok(())
    }

    fn check_released(&self, len: usize) -> Result<()> {
        let released = self.released();
        if len < released { Err(Error::Released { len, released }) } else { Ok(()) }
    }

    /// Removes the tokens from position `len` on, none of which was released. The state stays.
    fn cut(&mut self, len: usize) {
        self.len = self.len.min(len);
        let needed = self.len.div_ceil(self.store.block_tokens()) - self.released;
        self.blocks.truncate(needed);
        self.tail.truncate(needed - self.blocks.len());
        // Of a block that is cut too: rejected drafts leave no trace.
        self.mass.truncate(self.len.div_ceil(self.store.block_tokens()));
    }

    /// Removes all tokens, released ones too, and releases their memory.
    pub fn clear(&mut self) {
        (self.len, self.sinks, self.released) = (0, 0, 0);
        self.blocks.clear();
        self.tail.clear();
        self.mass.clear();
        self.state.clear();
        self.forget_queries();
    }

    /// Blocks that hold tokens or stand released, without the tail.
    fn sealed(&self) -> usize {
        self.released + self.blocks.len()
    }

    /// Maximum number of blocks.
    fn most_blocks(&self) -> usize {
        self.capacity.div_ceil(self.store.block_tokens()).min(self.store.most_blocks())
    }
}

impl std::fmt::Debug for Sequence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sequence")
            .field("store", &self.store)
            .field("len", &self.len)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}
