//! Blocks whose memory is released: before a sliding window, or behind the attention sinks.
//!
//! ```text
//! window   [ released            ][ blocks ][ tail ]     views repeat a block in the released place
//! sinks    [ sinks ][ released   ][ blocks ][ tail ]     views leave the released place out
//! ```
//!
//! Keys keep the rotation (RoPE) of their positions. Attention reads the tokens that are left in
//! their order, and counts positions without the dropped ones (`StreamingLLM`, arXiv 2309.17453).

use super::Sequence;

impl Sequence {
    /// Position of the first token behind the released ones; 0 if none was released.
    pub fn released(&self) -> usize {
        (self.sinks + self.released) * self.store.block_tokens()
    }

    /// Tokens that were dropped behind the attention sinks. Attention does not count them.
    pub fn dropped_tokens(&self) -> usize {
        if self.sinks == 0 { 0 } else { self.released * self.store.block_tokens() }
    }

    /// Releases whole blocks before `position`. Attention must not read there any more: views
    /// repeat another block.
    pub fn release_before(&mut self, position: usize) {
        let whole = position.min(self.len) / self.store.block_tokens();
        if whole > self.sinks + self.released {
            let n = (whole - self.released).min(self.blocks.len());
            self.blocks.drain(..n);
            self.released += n;
            self.sinks = 0;
        }
    }

    /// Drops the oldest block behind the attention sinks: those of the policy, and at least one
    /// block. `false` if only sinks and the last block are left.
    pub(super) fn drop_oldest(&mut self) -> bool {
        let is_windowed = self.released > 0 && self.sinks == 0;
        let sinks = self.store.policy().sink_tokens.div_ceil(self.store.block_tokens()).max(1);
        let n_blocks = self.blocks.len() + self.tail.len();
        if is_windowed || n_blocks <= sinks + 1 || self.blocks.len() <= sinks {
            return false;
        }
        drop(self.blocks.remove(sinks));
        (self.sinks, self.released) = (sinks, self.released + 1);
        true
    }

    /// Index, from position 0 on, of a block of the table.
    pub(super) fn index(&self, at: usize) -> usize {
        if at < self.sinks { at } else { at + self.released }
    }
}
