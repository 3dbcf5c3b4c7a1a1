//! End-of-generation tokens. Models use several, files name one or two of them; the others are
//! known by their text.

use super::vocab::{TokenKind, Vocab};
use crate::token::TokenId;

/// Texts that are end markers in every vocabulary that has them.
const MARKERS: &[&str] = &[
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<|end_of_turn|>",
    "<|endofturn|>",
    "<|END_OF_TURN_TOKEN|>",
    "<turn|>",
    "<|tool_response>",
    "<|flush|>",
    "<|calls|>",
    "[e~[",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<｜end▁of▁sentence｜>",
];

/// Texts that are end markers, but in some vocabularies markup in plain text.
const MARKERS_UNLESS_TEXT: &[&str] = &["</s>", "<eos>"];

/// True if a token's text is a known end marker.
pub(super) fn is_known(text: &str, kind: TokenKind) -> bool {
    let takes_part = !matches!(kind, TokenKind::Absent | TokenKind::Byte(_));
    let is_text = matches!(kind, TokenKind::Normal | TokenKind::Unused);
    (takes_part && MARKERS.contains(&text)) || (takes_part && !is_text && MARKERS_UNLESS_TEXT.contains(&text))
}

/// All end-of-generation tokens, ascending: those that the file names and those known by text.
pub(super) fn collect(vocab: &Vocab, named: &[TokenId]) -> Vec<TokenId> {
    let mut ends = named.to_vec();
    for text in MARKERS.iter().chain(MARKERS_UNLESS_TEXT) {
        ends.extend(vocab.id(text).filter(|&id| is_known(text, vocab.kind(id))));
    }
    // The formats of gpt-oss and Solar end parts of an answer with <|end|>, after which the answer
    // continues.
    let ends_with = |text: &str| vocab.id(text).is_some_and(|id| ends.contains(&id));
    if [["<|return|>", "<|call|>"], ["<|flush|>", "<|calls|>"]]
        .iter()
        .any(|pair| pair.iter().all(|t| ends_with(t)))
    {
        ends.retain(|&id| vocab.text(id) != "<|end|>" || named.contains(&id));
    }
    ends.sort_unstable();
    ends.dedup();
    ends
}
