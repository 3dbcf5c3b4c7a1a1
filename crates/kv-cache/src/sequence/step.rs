//! What a forward pass calls, in this order: `reserve`, then `write` and `view` for each layer, then `advance`.

use std::sync::Arc;

use ruvllm_kernels::Kernels;
use ruvllm_kernels::attention::KvBlock;

use super::Sequence;
use crate::error::{Error, Result};
use crate::storage::Storage;
use crate::store::{HOT, KvStore};

impl Sequence {
    /// Checks that `tokens` more fit the capacity, without allocating.
    ///
    /// # Errors
    /// [`Error::Full`] if they do not.
    pub fn check_room(&self, tokens: usize) -> Result<()> {
        if tokens > self.capacity - self.len {
            return Err(Error::Full { len: self.len, tokens, capacity: self.capacity });
        }
        Ok(())
    }

    /// Begins a step: makes room for `tokens` more and takes hold of what the step will read. A partial block that
    /// others share, or that was made smaller, is copied first.
    ///
    /// The first step takes room for the tables of all blocks up to the capacity, so that later ones take nothing from the
    /// system.
    ///
    /// # Errors
    /// [`Error::Full`]; [`Error::Memory`] and [`Error::BudgetReached`] without room. The sequence is as it was then.
    pub fn reserve(&mut self, kernels: &Kernels, tokens: usize) -> Result<()> {
        self.check_room(tokens)?;
        self.unpin();
        let present = self.tail.len();
        let needed = (self.len + tokens).div_ceil(self.store.block_tokens());
        let made = self.grow_tail(needed).and_then(|()| self.own_partial(kernels));
        if made.is_err() {
            self.tail.truncate(present);
        }
        made?;
        self.pin();
        Ok(())
    }

    fn grow_tail(&mut self, needed: usize) -> Result<()> {
        if self.sealed() + self.tail.len() < needed {
            let most = self.most_blocks();
            self.blocks.reserve(most.saturating_sub(self.blocks.len()));
            self.pinned.reserve(most);
            self.handles.prepare(&self.store, most.saturating_sub(self.sealed()));
        }
        while self.sealed() + self.tail.len() < needed {
            self.tail.push(self.handles.allocate(&self.store, HOT)?);
        }
        Ok(())
    }

    /// Stores the keys and values of `keys.len() / row` tokens of one layer behind the present ones, which
    /// [`reserve`](Self::reserve) made room for. They count once [`advance`](Self::advance) is called.
    ///
    /// # Shapes
    /// `keys`, `values`: `[tokens, n_kv_heads, head_dim]`, rotated to their positions, and with Walsh-Hadamard if the store
    /// is [`rotated`](KvStore::rotated).
    ///
    /// # Panics
    /// If there is no room for the tokens or the layer does not exist.
    pub fn write(&mut self, kernels: &Kernels, layer: usize, keys: &[f32], values: &[f32]) {
        assert_eq!(keys.len(), values.len(), "keys and values of as many tokens");
        let (row, block_tokens) = (self.store.shape().row(), self.store.block_tokens());
        let sealed = self.sealed();
        let n_tokens = keys.len() / row;
        let mut done = 0;
        while done < n_tokens {
            let position = self.len + done;
            let first = position % block_tokens;
            let end = (done + block_tokens - first).min(n_tokens);
            let storage = &mut self.tail[position / block_tokens - sealed];
            let storage = Arc::get_mut(storage).expect("nobody else has a storage of the tail");
            let rows = done * row..end * row;
            store_rows(kernels, &self.store, storage, layer, first, &keys[rows.clone()], &values[rows]);
            done = end;
        }
    }

    /// Appends views of the blocks of one layer to `blocks`, in the order of positions from 0 on: what a
    /// [`KvView`](ruvllm_kernels::attention::KvView) takes. Released blocks are stood in for by others.
    ///
    /// # Panics
    /// Outside of a step: between [`advance`](Self::advance) and [`reserve`](Self::reserve) nothing is held, unless
    /// [`pin`](Self::pin) was called.
    pub fn view<'a>(&'a self, layer: usize, blocks: &mut Vec<KvBlock<'a>>) {
        assert_eq!(self.pinned.len(), self.blocks.len(), "views outside of a step");
        blocks.reserve(self.most_blocks());
        let block_tokens = self.store.block_tokens();
        let view = |(at, storage): (usize, &'a Arc<Storage>)| {
            let position = (self.released + at) * block_tokens;
            storage.view(layer, self.store.nuq(layer, self.rotations.as_ref(), position))
        };
        let storages = || self.pinned.iter().chain(&self.tail).enumerate();
        if let Some(first) = storages().next() {
            blocks.extend(std::iter::repeat_n(view(first), self.released));
        }
        blocks.extend(storages().map(view));
    }

    /// Ends a step: counts `tokens` that were written in every layer.
    ///
    /// # Panics
    /// If there was no room made for them.
    pub fn advance(&mut self, tokens: usize) {
        let block_tokens = self.store.block_tokens();
        assert!(
            self.len + tokens <= (self.sealed() + self.tail.len()) * block_tokens,
            "more tokens than were written"
        );
        self.unpin();
        self.len += tokens;
        self.seal((self.len / block_tokens).saturating_sub(self.sealed()));
    }

    /// Makes blocks of the first `n` storages of the tail.
    pub(super) fn seal(&mut self, n: usize) {
        let Self { store, blocks, tail, handles, .. } = self;
        blocks.extend(tail.drain(..n).map(|storage| handles.block(store, storage)));
    }
}

/// Stores rows of keys and values in one layer of a hot storage.
fn store_rows(
    kernels: &Kernels,
    store: &KvStore,
    storage: &mut Storage,
    layer: usize,
    first: usize,
    keys: &[f32],
    values: &[f32],
) {
    let [key_plane, value_plane] = store.tier(HOT).planes_mut(storage.layer_mut(layer));
    kernels.store_kv(key_plane, first, keys);
    kernels.store_kv(value_plane, first, values);
}
