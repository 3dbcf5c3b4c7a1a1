//! Decoding: the rules that join the bytes of tokens to a text.
//!
//! Results follow the tokenizers library. Invalid UTF-8 becomes U+FFFD: one per maximal invalid
//! part in byte-level text, one per byte in a run of byte tokens that is not UTF-8 as a whole.

use super::vocab::{TokenKind, Vocab};
use crate::token::TokenId;

/// Replacement for bytes that form no character.
pub(super) const REPLACEMENT: char = char::REPLACEMENT_CHARACTER;

/// Decoding rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Joining {
    /// Tokens are bytes; the text is their concatenation.
    Bytes,
    /// Tokens are texts; runs of byte tokens between them are decoded as UTF-8.
    Pieces(Lead),
    /// Any other decoder of a `tokenizer.json`, run by the library.
    Library,
}

/// Treatment of the space that the encoder prepended to the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lead {
    /// It stays.
    Keep,
    /// One space at the beginning of the text is removed.
    StripSpace,
    /// All spaces of the first token are removed.
    StripFirstToken,
}

/// Decodes tokens at once; `ids` must be in the vocabulary.
pub(super) fn decode(vocab: &Vocab, joining: Joining, ids: impl Iterator<Item = TokenId>) -> String {
    let lead = match joining {
        Joining::Pieces(lead) => lead,
        Joining::Bytes | Joining::Library => {
            let bytes: Vec<u8> = ids.flat_map(|id| vocab.bytes(id)).copied().collect();
            return match String::from_utf8_lossy(&bytes) {
                std::borrow::Cow::Borrowed(_) => String::from_utf8(bytes).unwrap_or_default(),
                std::borrow::Cow::Owned(text) => text,
            };
        }
    };
    let mut text = String::new();
    let mut run = Vec::new();
    for (i, id) in ids.enumerate() {
        if let TokenKind::Byte(byte) = vocab.kind(id) {
            run.push(byte);
            continue;
        }
        push_run(&mut text, &mut run);
        push_piece(&mut text, vocab.bytes(id), i == 0, lead);
    }
    push_run(&mut text, &mut run);
    if lead == Lead::StripSpace && text.starts_with(' ') {
        text.remove(0);
    }
    text
}

fn push_run(text: &mut String, run: &mut Vec<u8>) {
    match std::str::from_utf8(run) {
        Ok(characters) => text.push_str(characters),
        Err(_) => text.extend(run.iter().map(|_| REPLACEMENT)),
    }
    run.clear();
}

pub(super) fn push_piece(text: &mut String, bytes: &[u8], is_first: bool, lead: Lead) {
    let piece = String::from_utf8_lossy(bytes);
    if is_first && lead == Lead::StripFirstToken {
        text.extend(piece.chars().filter(|&c| c != ' '));
    } else {
        text.push_str(&piece);
    }
}
