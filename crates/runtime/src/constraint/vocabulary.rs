//! The vocabulary of a tokenizer as the trie of token bytes that masks are computed over.

use std::sync::Arc;

use ruvllm_text::TokenId;
use ruvllm_text::tokenizer::{EncodeOptions, Tokenizer};
use toktrie::{INVALID_TOKEN, TokRxInfo, TokTrie, TokenizerEnv};

use super::error::ConstraintError;

/// Longest token in the trie: its nodes store a depth of 10 bits.
const TOKEN_BYTES: usize = 1000;
/// Most nodes of the trie: they store the size of a subtree in 22 bits.
const TRIE_NODES: usize = (1 << 22) - 1;
/// Begins the bytes of special tokens in the trie; no text in UTF-8 has this byte.
const SPECIAL: u8 = TokTrie::SPECIAL_TOKEN_MARKER;
/// Text before the bytes to encode, so that encoders that put a space before every text put it
/// there.
const GUARD: &str = "\u{2}";

/// A tokenizer's vocabulary, limited to the ids that are sampled.
pub(super) struct Vocabulary {
    tokenizer: Arc<Tokenizer>,
    trie: TokTrie,
}

impl Vocabulary {
    /// The first `ids` tokens.
    ///
    /// # Errors
    /// [`ConstraintError::Vocabulary`] for a vocabulary above the trie's size.
    pub(super) fn new(tokenizer: Arc<Tokenizer>, ids: usize) -> Result<Self, ConstraintError> {
        let words: Vec<Vec<u8>> = (0..ids as TokenId).map(|id| word(&tokenizer, id)).collect();
        let nodes = trie_nodes(&words);
        if nodes > TRIE_NODES {
            let reason = format!("its {ids} tokens take {nodes} nodes, and at most {TRIE_NODES} fit");
            return Err(ConstraintError::Vocabulary { reason });
        }
        let ends: Vec<TokenId> =
            tokenizer.end_of_generation().iter().copied().filter(|&id| (id as usize) < ids).collect();
        let mut trie = TokTrie::from(&TokRxInfo::new(ids as u32, INVALID_TOKEN), &words);
        if !ends.is_empty() {
            trie = trie.with_eos_tokens(&ends);
        }
        Ok(Self { tokenizer, trie })
    }

    /// The tokens of a text, as the tokenizer encodes it within a longer one; `None` if their bytes
    /// are not those of the text.
    fn encode(&self, text: &str) -> Option<Vec<TokenId>> {
        let plain = EncodeOptions { add_special: false, parse_special: false };
        let spells = |ids: &[TokenId], text: &str| self.trie.decode_raw(ids) == text.as_bytes();
        let ids = self.tokenizer.encode(text, plain).ok()?;
        if spells(&ids, text) {
            return Some(ids);
        }
        let guarded = self.tokenizer.encode(&format!("{GUARD}{text}"), plain).ok()?;
        (0..guarded.len()).map(|first| &guarded[first..]).find(|ids| spells(ids, text)).map(<[_]>::to_vec)
    }
}

/// Bytes of a token in the trie; none for tokens that are never sampled.
fn word(tokenizer: &Tokenizer, id: TokenId) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    if tokenizer.is_special(id) {
        return [&[SPECIAL], bytes.as_slice()].concat();
    }
    let usable = bytes.len() <= TOKEN_BYTES && bytes.first() != Some(&SPECIAL);
    if usable { bytes } else { Vec::new() }
}

/// Nodes of the trie of these words, the root included.
fn trie_nodes(words: &[Vec<u8>]) -> usize {
    let mut sorted: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    sorted.sort_unstable();
    let mut last: &[u8] = &[];
    1 + sorted
        .into_iter()
        .map(|word| {
            let shared = word.iter().zip(last).take_while(|(a, b)| a == b).count();
            last = word;
            word.len() - shared
        })
        .sum::<usize>()
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    /// Bytes that the tokenizer does not encode as themselves get the longest tokens from the left.
    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        let text = std::str::from_utf8(bytes).unwrap_or_else(|error| {
            // The beginning of a character can only follow whole ones.
            std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default()
        });
        let mut ids = self.encode(text).unwrap_or_else(|| self.trie.greedy_tokenize(text.as_bytes()));
        ids.extend(self.trie.greedy_tokenize(&bytes[text.len()..]));
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::constraint::tests::tokenizer;

    #[test]
    fn tokens_are_those_of_the_tokenizer() {
        let tokenizer = tokenizer();
        let vocabulary = Vocabulary::new(Arc::clone(&tokenizer), tokenizer.vocab_size()).unwrap();
        for text in ["", "{\"name\": \"Ann\"}", "naïve 猫\n\t  x", "a\u{2}b"] {
            let ids = vocabulary.tokenize_bytes(text.as_bytes());
            assert_eq!(vocabulary.trie.decode_raw(&ids), text.as_bytes(), "{text:?}");
        }
        let cut = &"猫".as_bytes()[..2];
        assert_eq!(vocabulary.trie.decode_raw(&vocabulary.tokenize_bytes(cut)), cut);
    }

    #[test]
    fn special_tokens_are_outside_of_text() {
        let tokenizer = tokenizer();
        let vocabulary = Vocabulary::new(Arc::clone(&tokenizer), tokenizer.vocab_size()).unwrap();
        let end = tokenizer.end_of_generation()[0];
        assert!(vocabulary.trie.is_special_token(end));
        assert_eq!(vocabulary.trie.eos_tokens(), tokenizer.end_of_generation());
        let name = tokenizer.id_to_token(end).unwrap();
        let ids = vocabulary.tokenize_bytes(name.as_bytes());
        assert!(!ids.contains(&end), "{ids:?}");
    }

    #[test]
    fn nodes_are_counted_once_per_shared_prefix() {
        let words: Vec<Vec<u8>> =
            ["", "ab", "abc", "ad", "b"].iter().map(|w| w.as_bytes().to_vec()).collect();
        assert_eq!(trie_nodes(&words), 6);
    }
}
