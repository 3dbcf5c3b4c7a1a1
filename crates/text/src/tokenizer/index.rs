//! Hash tables of the tokenizers: token texts to ids, and a fast hasher for pairs of ids.
//!
//! The index stores ids only; the texts are in the vocabulary's one buffer.

use std::hash::{BuildHasher, Hasher, RandomState};

use crate::token::TokenId;

/// Free slot and, elsewhere in this module tree, "no token".
pub(crate) const NONE: TokenId = TokenId::MAX;

const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

fn mix(value: u64) -> u64 {
    let product = u128::from(value) * u128::from(MULTIPLIER);
    (product as u64) ^ ((product >> 64) as u64)
}

/// Hashes bytes, 8 at a time, with a seed.
fn hash_bytes(seed: u64, bytes: &[u8]) -> u64 {
    let mut hash = seed ^ mix(bytes.len() as u64 ^ MULTIPLIER);
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        hash = mix(hash ^ u64::from_le_bytes(word.try_into().unwrap_or_default()));
    }
    let mut tail = [0; 8];
    tail[..words.remainder().len()].copy_from_slice(words.remainder());
    mix(mix(hash ^ u64::from_le_bytes(tail)) ^ seed)
}

/// Random number per table, so that no file can be built to cause collisions.
fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Hash table of byte strings to ids, with open addressing. The strings are in the owner's buffer.
#[derive(Debug, Clone)]
pub(crate) struct TextIndex {
    slots: Vec<TokenId>,
    seed: u64,
}

impl TextIndex {
    /// Indexes `ids`; of equal texts the first id is found. `text_of` returns the text of an id.
    pub(crate) fn build<'t>(
        ids: impl ExactSizeIterator<Item = TokenId>,
        text_of: impl Fn(TokenId) -> &'t [u8],
    ) -> Self {
        // At most half full, so that probe sequences stay short.
        let slots = vec![NONE; (ids.len() * 2).next_power_of_two().max(16)];
        let mut index = Self { slots, seed: random_seed() };
        for id in ids {
            let text = text_of(id);
            let slot = index.slot_of(text, &text_of);
            if index.slots[slot] == NONE {
                index.slots[slot] = id;
            }
        }
        index
    }

    /// Looks up the id of a text.
    pub(crate) fn get<'t>(&self, text: &[u8], text_of: impl Fn(TokenId) -> &'t [u8]) -> Option<TokenId> {
        let id = self.slots[self.slot_of(text, &text_of)];
        (id != NONE).then_some(id)
    }

    /// The slot that holds `text`, or the free slot where it belongs.
    fn slot_of<'t>(&self, text: &[u8], text_of: &impl Fn(TokenId) -> &'t [u8]) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = hash_bytes(self.seed, text) as usize & mask;
        while self.slots[slot] != NONE && text_of(self.slots[slot]) != text {
            slot = (slot + 1) & mask;
        }
        slot
    }
}

/// Hasher for keys of one `u64`, several times faster than the default for merge tables.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PairHasher(u64);

impl Hasher for PairHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = hash_bytes(self.0, bytes);
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = mix(mix(value ^ self.0) ^ MULTIPLIER);
    }
}

/// Builds [`PairHasher`]s with one random seed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PairHasherBuilder(u64);

impl Default for PairHasherBuilder {
    fn default() -> Self {
        Self(random_seed())
    }
}

impl BuildHasher for PairHasherBuilder {
    type Hasher = PairHasher;

    fn build_hasher(&self) -> PairHasher {
        PairHasher(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_put_in_and_nothing_else() {
        let texts: Vec<String> = (0..5000).map(|i| format!("token number {i}")).collect();
        let text_of = |id: TokenId| texts[id as usize].as_bytes();
        let index = TextIndex::build(0..5000u32, text_of);
        for (i, text) in texts.iter().enumerate() {
            assert_eq!(index.get(text.as_bytes(), text_of), Some(i as TokenId));
        }
        assert_eq!(index.get(b"token number", text_of), None);
        assert_eq!(index.get(b"", text_of), None);
    }

    #[test]
    fn the_first_of_equal_texts_wins() {
        let text_of = |_: TokenId| b"same".as_slice();
        assert_eq!(TextIndex::build([7, 3].into_iter(), text_of).get(b"same", text_of), Some(7));
    }
}
