//! The table of one sequence: which block holds which tokens.
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
//! | `handles.rs` | handles of blocks, allocated in advance |

mod handles;
mod migrate;
mod read;
mod release;
mod room;
mod sample;
mod share;
mod squat;
mod step;

use std::sync::Arc;

use crate::block::Block;
use crate::convert::LayerContext;
use crate::error::{Error, Result};
use crate::learned::KeyRotations;
use crate::storage::Storage;
use crate::store::KvStore;

use handles::Handles;
use migrate::Workbench;

pub use migrate::Migration;
pub use read::KvReader;
pub use sample::{Probe, Sample, SampleScratch};
use squat::LayerQueries;
pub use step::KvStep;

/// The keys and values of one sequence in all layers.
///
/// Dropping it gives the memory back that nobody shares.
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
    /// Attention that blocks got lately, by block from position 0 on; what is missing got none.
    mass: Vec<f32>,
    /// What is known of the queries of each layer, if the policy asks for it. Forks share it until
    /// one of them learns more.
    queries: Option<Arc<Vec<LayerQueries>>>,
    /// Storages of `blocks` that the present step reads; empty, but with its memory, outside of
    /// one.
    pinned: Vec<Arc<Storage>>,
    /// For blocks to come.
    handles: Handles,
    /// For blocks that go down.
    workbench: Workbench,
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
            pinned: Vec::new(),
            handles: Handles::default(),
            workbench: Workbench::default(),
        };
        sequence.forget_queries();
        sequence
    }

    /// Number of tokens, which is the position of the next one.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no tokens.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Most tokens that it takes.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The store that it takes memory from.
    pub fn store(&self) -> &KvStore {
        &self.store
    }

    /// Moves the border of the hot tier: tokens at the end that stay hot, at least those of the
    /// policy. What went down stays down.
    pub fn set_hot_tokens(&mut self, tokens: usize) {
        self.hot_tokens = tokens.max(self.store.policy().hot_tokens);
    }

    /// Allocated bytes of keys and values, scales and padding included, and of what is known of
    /// queries. What is shared counts in each of its sequences.
    pub fn bytes(&self) -> usize {
        let tail: usize = self.tail.iter().map(|storage| storage.bytes()).sum();
        tail + self.blocks.iter().map(Block::bytes).sum::<usize>() + self.query_bytes()
    }

    /// What conversions of a layer need in a block that begins at `position`.
    fn context<'a>(
        &'a self,
        layer: usize,
        rotations: Option<&'a KeyRotations>,
        position: usize,
    ) -> LayerContext<'a> {
        LayerContext { nuq: self.store.nuq(layer, rotations, position), corrections: self.corrections(layer) }
    }

    /// The whole blocks that are there, to be shared with others.
    pub fn blocks(&self) -> &[Block] {
        let whole = self.len / self.store.block_tokens() - self.released;
        &self.blocks[..whole.min(self.blocks.len())]
    }

    /// Forgets all tokens from position `len` on and gives their memory back; without effect if
    /// there are none.
    ///
    /// # Errors
    /// [`Error::Released`] if tokens before `len` were released, unless none is to be kept; nothing
    /// has changed then.
    pub fn truncate(&mut self, len: usize) -> Result<()> {
        if len == 0 {
            self.clear();
            return Ok(());
        }
        if len < self.released() {
            return Err(Error::Released { len, released: self.released() });
        }
        self.len = self.len.min(len);
        let needed = self.len.div_ceil(self.store.block_tokens()) - self.released;
        self.blocks.truncate(needed);
        self.tail.truncate(needed - self.blocks.len());
        self.mass.truncate(self.len / self.store.block_tokens());
        Ok(())
    }

    /// Forgets all tokens, released ones too, and gives their memory back.
    pub fn clear(&mut self) {
        (self.len, self.sinks, self.released) = (0, 0, 0);
        self.blocks.clear();
        self.tail.clear();
        self.mass.clear();
        self.forget_queries();
    }

    /// Blocks that hold tokens or stand released, without the tail.
    fn sealed(&self) -> usize {
        self.released + self.blocks.len()
    }

    /// Most blocks that it may come to have.
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
