//! `SentencePiece` unigram model (T5, XLM-R): splits a text into the tokens with the largest sum of
//! scores. Characters without a token become byte tokens or the unknown token.
//!
//! Source: Kudo 2018 (arXiv 1804.10959). As in the `SentencePiece` library: normalization, white
//! space, the penalty of unknown characters, and float32 sums from the start of the text, whose
//! rounding decides between equal sums.

use super::{
    charsmap::CharacterMap,
    index::NONE,
    spm::{self, Fallback, SPACE_MARK},
    vocab::{TokenKind, Vocab},
};
use crate::error::{Error, Result};
use crate::token::TokenId;

/// Score penalty of an unknown character, below the worst token.
const UNKNOWN_PENALTY: f32 = 10.0;

/// Scores are clamped to this magnitude, so that sums over a text of 4 GiB stay finite. Models have
/// log probabilities.
const LARGEST_SCORE: f32 = 1e27;

/// Maximum length of a token in bytes; each position of a text is compared with tokens up to it.
/// Models have up to 16 characters.
pub(super) const LONGEST_TOKEN: usize = 1024;

/// Maximum bytes of a normalized text: offsets are 32-bit.
const LONGEST_NORMALIZED: usize = u32::MAX as usize;

/// Normalization of texts before segmentation.
#[derive(Debug, Clone)]
pub(crate) struct Normalization {
    pub(crate) map: Option<CharacterMap>,
    /// True if a space is prepended to a text, and to text after a special token.
    pub(crate) add_space_prefix: bool,
    /// True if runs of spaces become one and spaces at both ends are removed.
    pub(crate) remove_extra_spaces: bool,
}

/// Encoder of one vocabulary.
#[derive(Debug, Clone)]
pub(crate) struct Unigram {
    scores: Vec<f32>,
    /// Tokens used for segmentation, sorted by text.
    sorted: Vec<TokenId>,
    unknown_score: f32,
    fallback: Fallback,
    cuts_before_spaces: bool,
    normalization: Normalization,
}

/// Best segmentation up to a byte offset.
#[derive(Debug, Clone, Copy)]
struct Best {
    score: f32,
    /// Its last token, or [`NONE`] for an unknown character.
    token: TokenId,
    /// Start of that token in bytes.
    start: u32,
}

const UNREACHED: Best = Best { score: f32::NEG_INFINITY, token: NONE, start: 0 };

impl Unigram {
    /// Builds the encoder; `scores` has one number per token.
    ///
    /// # Errors
    /// [`Error::InvalidKey`] if a token text is longer than 1024 bytes; `tokens_key` names the
    /// texts.
    pub(crate) fn new(
        vocab: &Vocab,
        mut scores: Vec<f32>,
        unknown: Option<TokenId>,
        normalization: Normalization,
        tokens_key: &str,
    ) -> Result<Self> {
        // Larger and infinite scores would make sums that do not compare.
        scores.iter_mut().for_each(|score| *score = score.clamp(-LARGEST_SCORE, LARGEST_SCORE));
        // User-defined tokens are found before segmentation.
        let takes_part = |&id: &TokenId| matches!(vocab.kind(id), TokenKind::Normal | TokenKind::Unused);
        let mut sorted: Vec<TokenId> =
            vocab.ids().filter(takes_part).filter(|&id| !vocab.text(id).is_empty()).collect();
        if let Some(&id) = sorted.iter().find(|&&id| vocab.text(id).len() > LONGEST_TOKEN) {
            return Err(Error::InvalidKey {
                key: format!("{tokens_key}[{id}]"),
                found: format!("a text of {} bytes", vocab.text(id).len()),
                expected: format!("at most {LONGEST_TOKEN} bytes"),
            });
        }
        let cuts_before_spaces = spm::no_mark_inside(sorted.iter().map(|&id| vocab.text(id)));
        sorted.sort_by_key(|&id| (vocab.text(id), id));
        sorted.dedup_by_key(|id| vocab.text(*id));
        let worst = vocab
            .ids()
            .filter(|&id| vocab.kind(id) == TokenKind::Normal)
            .map(|id| scores[id as usize])
            .fold(f32::INFINITY, f32::min);
        let unknown_score = if worst.is_finite() { worst } else { 0.0 } - UNKNOWN_PENALTY;
        let fallback = Fallback { byte_tokens: spm::byte_tokens(vocab), unknown };
        Ok(Self { scores, sorted, unknown_score, fallback, cuts_before_spaces, normalization })
    }

    /// Appends the tokens of a text without special tokens. `after_token`: it starts the input or
    /// follows a special token.
    ///
    /// # Errors
    /// [`Error::Unencodable`] if a character has no token, its bytes have none, and there is no
    /// unknown token; [`Error::TextTooLong`] if normalization makes it longer than 4 GiB.
    pub(crate) fn encode(
        &self,
        vocab: &Vocab,
        text: &str,
        after_token: bool,
        out: &mut Vec<TokenId>,
    ) -> Result<()> {
        let normalized = self.normalization.apply(text, after_token)?;
        let mut best = Vec::new();
        let mut tokens = Vec::new();
        let mut unknown_open = false;
        let mut sum = 0.0;
        for part in spm::words(&normalized, self.cuts_before_spaces) {
            sum = self.cut(vocab, part, sum, &mut best, &mut tokens);
            for &(start, token) in tokens.iter().rev() {
                if token == NONE {
                    let rest = &part[start as usize..];
                    let len = rest.chars().next().map_or(0, char::len_utf8);
                    self.fallback.encode(&rest.as_bytes()[..len], &mut unknown_open, out)?;
                } else {
                    unknown_open = false;
                    out.push(token);
                }
            }
        }
        Ok(())
    }

    /// Finds the best segmentation of a text (Viterbi) after others with the score `sum`. `tokens`
    /// gets start and token of each segment, last to first. Returns the sum that includes them.
    /// `best` is a buffer.
    fn cut(
        &self,
        vocab: &Vocab,
        text: &str,
        sum: f32,
        best: &mut Vec<Best>,
        tokens: &mut Vec<(u32, TokenId)>,
    ) -> f32 {
        best.clear();
        best.resize(text.len() + 1, UNREACHED);
        best[0].score = sum;
        for (start, c) in text.char_indices() {
            let before = best[start].score;
            let mut reach = |len: usize, token: TokenId, sum: f64| {
                let end = &mut best[start + len];
                if sum > f64::from(end.score) {
                    *end = Best { score: sum as f32, token, start: start as u32 };
                }
            };
            let mut has_character = false;
            self.prefixes(vocab, &text.as_bytes()[start..], |len, token| {
                has_character |= len == c.len_utf8();
                // The library compares an unrounded sum with a rounded stored one: of two equally
                // good segmentations the later one can win.
                reach(len, token, f64::from(before) + f64::from(self.scores[token as usize]));
            });
            if !has_character {
                reach(c.len_utf8(), NONE, f64::from(before + self.unknown_score));
            }
        }
        tokens.clear();
        let mut end = text.len();
        while end > 0 {
            let Best { token, start, .. } = best[end];
            tokens.push((start, token));
            end = start as usize;
        }
        best[text.len()].score
    }

    /// Calls `found` with length and id of every token that `text` begins with, shortest first.
    fn prefixes(&self, vocab: &Vocab, text: &[u8], mut found: impl FnMut(usize, TokenId)) {
        let byte = |id: TokenId, at: usize| vocab.text(id).as_bytes().get(at).copied();
        let mut range = self.sorted.as_slice();
        for (at, &next) in text.iter().enumerate() {
            // All texts in the range agree in the first `at` bytes; texts that end here come first.
            let start = range.partition_point(|&id| byte(id, at) < Some(next));
            range = &range[start..];
            range = &range[..range.partition_point(|&id| byte(id, at) == Some(next))];
            match range.first() {
                Some(&id) if vocab.text(id).len() == at + 1 => found(at + 1, id),
                Some(_) => {}
                None => return,
            }
        }
    }
}

impl Normalization {
    /// Normalizes a text, with `▁` for spaces.
    ///
    /// # Errors
    /// [`Error::TextTooLong`] if it becomes longer than 4 GiB.
    fn apply(&self, text: &str, after_token: bool) -> Result<String> {
        let mut out = String::with_capacity(text.len() + text.len() / 2 + SPACE_MARK.len_utf8());
        let prefix = usize::from(after_token && self.add_space_prefix);
        let mut spaces = 0;
        let mut started = false;
        let mut push = |c: Option<char>| {
            if c == Some(' ') {
                spaces += 1;
            } else if out.len() < LONGEST_NORMALIZED {
                let before = if started { 0 } else { prefix };
                let between = match (self.remove_extra_spaces, c) {
                    (false, _) => spaces,
                    (true, Some(_)) => usize::from(started && spaces > 0),
                    (true, None) => 0,
                };
                if c.is_some() || between > 0 {
                    out.extend(std::iter::repeat_n(SPACE_MARK, before + between));
                }
                out.extend(c);
                spaces = 0;
                started = true;
            }
        };
        match &self.map {
            Some(map) => map.normalize(text, &mut |part| part.chars().for_each(|c| push(Some(c)))),
            None => text.chars().for_each(|c| push(Some(c))),
        }
        push(None);
        if self.remove_extra_spaces {
            // A `▁` at the end of the text itself is removed too.
            out.truncate(out.trim_end_matches(SPACE_MARK).len());
        }
        if out.len() >= LONGEST_NORMALIZED {
            return Err(Error::TextTooLong { bytes: out.len(), limit: LONGEST_NORMALIZED });
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(add_space_prefix: bool, remove_extra_spaces: bool, text: &str) -> String {
        Normalization { map: None, add_space_prefix, remove_extra_spaces }.apply(text, true).unwrap()
    }

    #[test]
    fn spaces_are_kept_or_joined_as_the_model_says() {
        for (text, kept, joined) in [
            ("", "", ""),
            ("a", "▁a", "▁a"),
            ("  a  b ", "▁▁▁a▁▁b▁", "▁a▁b"),
            ("   ", "▁▁▁▁", ""),
            ("a\n b", "▁a\n▁b", "▁a\n▁b"),
            ("▁a▁▁", "▁▁a▁▁", "▁▁a"),
        ] {
            assert_eq!(apply(true, false, text), kept, "{text:?}");
            assert_eq!(apply(true, true, text), joined, "{text:?}");
            assert_eq!(apply(false, false, text), kept.strip_prefix('▁').unwrap_or(""), "{text:?}");
            assert_eq!(apply(false, true, text), joined.strip_prefix('▁').unwrap_or(""), "{text:?}");
        }
    }

    #[test]
    fn later_parts_get_no_space_of_their_own() {
        let normalization = Normalization { map: None, add_space_prefix: true, remove_extra_spaces: false };
        assert_eq!(normalization.apply(" a", false).unwrap(), "▁a");
    }
}
