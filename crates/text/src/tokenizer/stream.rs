//! Streaming detokenization: whole characters from tokens that arrive one at a time.

use super::{
    decode::{Joining, Lead, REPLACEMENT, push_piece},
    pipeline::Tokenizer,
    vocab::TokenKind,
};
use crate::error::Result;
use crate::token::TokenId;

impl Tokenizer {
    /// Decodes tokens one at a time, see [`TokenStream`].
    #[must_use]
    pub fn stream(&self) -> TokenStream<'_> {
        TokenStream::new(self)
    }
}

/// Streaming detokenizer: takes one token at a time, returns whole characters only.
///
/// Created by [`Tokenizer::stream`]. The chunks and the text of [`finish`](Self::finish) join to
/// the text of [`Tokenizer::decode`] for all tokens, except in runs of byte tokens that are not
/// UTF-8 as a whole: there the stream has already returned the valid characters. Constant time per
/// token.
#[derive(Debug)]
pub struct TokenStream<'a> {
    tokenizer: &'a Tokenizer,
    skip_special: bool,
    /// True if no text was returned yet and none came before.
    at_start: bool,
    /// True until the first token.
    first_token: bool,
    /// Bytes that do not form a character yet.
    pending: Vec<u8>,
    /// Text of the last [`push`](Self::push).
    chunk: String,
    window: Window,
}

/// Last tokens, for decoders that need context.
#[derive(Debug, Default)]
struct Window {
    ids: Vec<TokenId>,
    /// Tokens at the front of `ids` whose text was returned.
    shown: usize,
}

/// Maximum number of tokens that a stream over a library decoder holds back.
const LONGEST_HOLD: usize = 16;

impl<'a> TokenStream<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer) -> Self {
        Self {
            tokenizer,
            skip_special: false,
            at_start: true,
            first_token: true,
            pending: Vec::new(),
            chunk: String::new(),
            window: Window::default(),
        }
    }

    /// Leaves special tokens out of the text, as [`Tokenizer::decode`] with `skip_special`.
    #[must_use]
    pub fn skip_special(mut self) -> Self {
        self.skip_special = true;
        self
    }

    /// Treats the tokens as the continuation of a text, so that a space at their start is kept.
    #[must_use]
    pub fn continuing(mut self) -> Self {
        self.at_start = false;
        self.first_token = false;
        self
    }

    /// Takes a token and returns the characters that it completes: none, one or several.
    ///
    /// # Errors
    /// [`Error::UnknownTokenId`](crate::Error::UnknownTokenId) if the id is not in the vocabulary;
    /// the stream stays usable.
    pub fn push(&mut self, id: TokenId) -> Result<&str> {
        self.chunk.clear();
        let kind = self.tokenizer.vocab().known_kind(id)?;
        if self.skip_special && kind.is_special() {
            return Ok("");
        }
        match self.tokenizer.joining() {
            Joining::Bytes => {
                self.pending.extend_from_slice(self.tokenizer.vocab().bytes(id));
                self.show_characters(false);
            }
            Joining::Pieces(lead) => self.push_piece(id, kind, lead),
            Joining::Library => self.push_to_window(id)?,
        }
        self.first_token = false;
        Ok(&self.chunk)
    }

    /// Ends the stream; bytes of an incomplete character become U+FFFD.
    #[must_use]
    pub fn finish(mut self) -> String {
        self.chunk.clear();
        match self.tokenizer.joining() {
            Joining::Bytes => {
                self.chunk.push_str(&String::from_utf8_lossy(&self.pending));
            }
            Joining::Pieces(_) => self.show_incomplete(),
            Joining::Library => {
                // The ids were decoded before, so this cannot fail.
                let _ = self.show_window(true);
            }
        }
        self.chunk
    }

    fn push_piece(&mut self, id: TokenId, kind: TokenKind, lead: Lead) {
        if let TokenKind::Byte(byte) = kind {
            self.pending.push(byte);
            self.show_characters(true);
        } else {
            self.show_incomplete();
            push_piece(&mut self.chunk, self.tokenizer.vocab().bytes(id), self.first_token, lead);
        }
        if self.at_start && !self.chunk.is_empty() {
            self.at_start = false;
            if lead == Lead::StripSpace && self.chunk.starts_with(' ') {
                self.chunk.remove(0);
            }
        }
    }

    /// Moves complete characters of `pending` to the chunk; invalid bytes become U+FFFD.
    fn show_characters(&mut self, one_per_byte: bool) {
        let mut at = 0;
        loop {
            match std::str::from_utf8(&self.pending[at..]) {
                Ok(rest) => {
                    self.chunk.push_str(rest);
                    self.pending.clear();
                    return;
                }
                Err(error) => {
                    let valid = at + error.valid_up_to();
                    self.chunk.push_str(std::str::from_utf8(&self.pending[at..valid]).unwrap_or_default());
                    let Some(invalid) = error.error_len() else {
                        self.pending.drain(..valid);
                        return;
                    };
                    let shown = if one_per_byte { invalid } else { 1 };
                    self.chunk.extend(std::iter::repeat_n(REPLACEMENT, shown));
                    at = valid + invalid;
                }
            }
        }
    }

    fn show_incomplete(&mut self) {
        self.chunk.extend(self.pending.drain(..).map(|_| REPLACEMENT));
    }

    fn push_to_window(&mut self, id: TokenId) -> Result<()> {
        self.window.ids.push(id);
        let held = self.window.ids.len() - self.window.shown;
        self.show_window(held > LONGEST_HOLD)
    }

    /// Appends the text that the new tokens add, unless it ends in an incomplete character.
    fn show_window(&mut self, even_incomplete: bool) -> Result<()> {
        let Window { ids, shown } = &mut self.window;
        let before = self.tokenizer.decode(&ids[..*shown], false)?;
        let now = self.tokenizer.decode(ids, false)?;
        let added = now.strip_prefix(before.as_str()).unwrap_or_default();
        if added.is_empty() || (!even_incomplete && added.ends_with(REPLACEMENT)) {
            return Ok(());
        }
        self.chunk.push_str(added);
        ids.drain(..*shown);
        *shown = ids.len();
        Ok(())
    }
}
