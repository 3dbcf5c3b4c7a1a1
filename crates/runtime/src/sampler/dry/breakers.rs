//! Sequence breakers of DRY: texts that no repetition is counted across.

use std::fmt;
use std::sync::Arc;

use ruvllm_text::TokenId;
use ruvllm_text::tokenizer::Tokenizer;

use crate::error::{Error, Result};

/// Sequence breakers: texts that end a repetition, resolved for one tokenizer. Default: none.
///
/// A token in whose bytes a breaker ends is a boundary: matches do not reach back across it, and
/// DRY never penalizes a token that contains a breaker. A breaker may be spelled
/// over several tokens: the bytes of consecutive tokens are compared, so that its tokenization does
/// not matter. (llama.cpp compares token ids of one tokenization of the breaker's rest.)
///
/// Resolving reads the bytes of the whole vocabulary, milliseconds for 128,000 tokens; clones share
/// the result. The usual breakers are [`DryBreakers::USUAL`].
#[derive(Clone, Default)]
pub struct DryBreakers(Option<Arc<Resolved>>);

#[derive(PartialEq, Eq)]
struct Resolved {
    texts: Vec<String>,
    /// One bit per token id: a breaker lies within its bytes.
    within: Vec<u64>,
    /// Bytes that a breaker may reach back before the current token: its longest length minus 1.
    reach: usize,
    /// Bytes of all tokens, and their ends, `[vocab_size]`; empty if `reach` is 0.
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl DryBreakers {
    /// Breakers that llama.cpp and text-generation-webui use by default.
    pub const USUAL: [&'static str; 4] = ["\n", ":", "\"", "*"];

    /// Largest number of breakers.
    pub const MAX_TEXTS: usize = 64;

    /// Largest length of a breaker in bytes.
    pub const MAX_BYTES: usize = 128;

    /// Resolves texts for the tokens of a tokenizer.
    ///
    /// # Errors
    /// [`Error::DryBreaker`] if a text is empty or longer than [`MAX_BYTES`](Self::MAX_BYTES), or
    /// if there are more than [`MAX_TEXTS`](Self::MAX_TEXTS).
    pub fn new<T: Into<String>>(tokenizer: &Tokenizer, texts: impl IntoIterator<Item = T>) -> Result<Self> {
        Self::resolve(tokenizer.vocab_size(), |id| tokenizer.token_bytes(id).unwrap_or_default(), texts)
    }

    /// Resolves texts for tokens whose bytes are known by id.
    pub(in crate::sampler) fn resolve<T: Into<String>>(
        vocab_size: usize,
        token_bytes: impl Fn(TokenId) -> Vec<u8>,
        texts: impl IntoIterator<Item = T>,
    ) -> Result<Self> {
        let texts: Vec<String> = texts.into_iter().take(Self::MAX_TEXTS + 1).map(Into::into).collect();
        for (index, text) in texts.iter().enumerate() {
            if index >= Self::MAX_TEXTS || text.is_empty() || text.len() > Self::MAX_BYTES {
                return Err(Error::DryBreaker { index, bytes: text.len() });
            }
        }
        let Some(longest) = texts.iter().map(String::len).max() else { return Ok(Self(None)) };
        let mut resolved = Resolved {
            reach: longest - 1,
            within: vec![0; vocab_size.div_ceil(64)],
            bytes: Vec::new(),
            ends: Vec::new(),
            texts,
        };
        for id in 0..vocab_size as TokenId {
            let bytes = token_bytes(id);
            if resolved.texts.iter().any(|text| contains(&bytes, text.as_bytes())) {
                resolved.within[id as usize / 64] |= 1 << (id % 64);
            }
            if longest > 1 {
                resolved.bytes.extend_from_slice(&bytes);
                // A vocabulary is far below 4 GiB of text; beyond, tokens count as empty.
                resolved.ends.push(u32::try_from(resolved.bytes.len()).unwrap_or(u32::MAX));
            }
        }
        Ok(Self(Some(Arc::new(resolved))))
    }

    /// The texts.
    pub fn texts(&self) -> &[String] {
        self.0.as_deref().map_or(&[], |resolved| &resolved.texts)
    }

    /// True if a breaker lies within the token's bytes.
    pub(super) fn within(&self, token: TokenId) -> bool {
        self.0.as_deref().is_some_and(|resolved| {
            let word = resolved.within.get(token as usize / 64).copied().unwrap_or(0);
            word >> (token % 64) & 1 == 1
        })
    }

    /// True if a breaker ends in the bytes of `token`; `tail` holds the last bytes of the tokens
    /// before it, and is advanced.
    pub(super) fn push(&self, tail: &mut Vec<u8>, token: TokenId) -> bool {
        let Some(resolved) = self.0.as_deref() else { return false };
        let within = self.within(token);
        if resolved.reach == 0 {
            return within;
        }
        let before = tail.len();
        let bytes = resolved.token_bytes(token);
        // Only a token's first bytes can complete a breaker that began before it, and only its last
        // bytes can begin one: the bytes between are left out.
        tail.extend_from_slice(&bytes[..bytes.len().min(resolved.reach)]);
        let ends_here = within || resolved.texts.iter().any(|text| crosses(tail, before, text.as_bytes()));
        tail.truncate(before);
        let kept = bytes.len().min(resolved.reach);
        let excess = (tail.len() + kept).saturating_sub(resolved.reach);
        tail.drain(..excess);
        tail.extend_from_slice(&bytes[bytes.len() - kept..]);
        ends_here
    }

    /// Bytes that `tail` of [`push`](Self::push) holds at most.
    pub(super) fn tail_bytes(&self) -> usize {
        self.0.as_deref().map_or(0, |resolved| 2 * resolved.reach)
    }
}

impl Resolved {
    /// Bytes of a token; none for ids outside the vocabulary.
    fn token_bytes(&self, token: TokenId) -> &[u8] {
        let end = |index: usize| self.ends.get(index).map(|&end| end as usize);
        let start = (token as usize).checked_sub(1).map_or(Some(0), end);
        start.zip(end(token as usize)).and_then(|(start, end)| self.bytes.get(start..end)).unwrap_or_default()
    }
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}

/// True if `text` occurs in `bytes` from before index `boundary` to behind it.
fn crosses(bytes: &[u8], boundary: usize, text: &[u8]) -> bool {
    let first = (boundary + 1).saturating_sub(text.len());
    (first..boundary).any(|start| bytes.get(start..start + text.len()) == Some(text))
}

/// Compares the texts and the tokens that contain them.
impl PartialEq for DryBreakers {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

/// Prints the texts.
impl fmt::Debug for DryBreakers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DryBreakers").field(&self.texts()).finish()
    }
}
