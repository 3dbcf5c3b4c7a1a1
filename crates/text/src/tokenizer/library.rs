//! Tokenizer of the `tokenizers` library, with its pipeline run part by part.
//!
//! Added tokens, normalizer, pre-tokenizer and model are called one by one, because special tokens
//! must be readable as text per call and for single parts of a text.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tokenizers::{
    AddedVocabulary, Model, NormalizedString, OffsetReferential, OffsetType, PreTokenizedString,
    PreTokenizerWrapper, normalizer::Range, pre_tokenizers::metaspace::PrependScheme,
};

use super::{
    special::TokenMatcher,
    steps::{Normalizers, PreTokenizers, Run},
    vocab::{TokenKind, Vocab},
};
use crate::error::{Error, Result};
use crate::token::TokenId;

/// Tokenizer of the library, and the parts of its pipeline.
#[derive(Debug)]
pub(crate) struct Library {
    inner: tokenizers::Tokenizer,
    /// Added tokens without the special ones, which are then read as text.
    plain_tokens: AddedVocabulary,
    normalizers: Option<Normalizers>,
    pre_tokenizers: Option<PreTokenizers>,
    /// Pre-tokenizer for later parts of a text, if it treats the first part differently.
    later_pre_tokenizers: Option<PreTokenizers>,
}

impl Library {
    /// # Errors
    /// A pattern that cannot be run within the limits.
    pub(super) fn new(inner: tokenizers::Tokenizer) -> tokenizers::Result<Self> {
        let mut plain_tokens = inner.get_added_vocabulary().clone();
        plain_tokens.set_encode_special_tokens(true);
        let normalizers = inner.get_normalizer().map(Normalizers::new).transpose()?;
        let pre_tokenizer = inner.get_pre_tokenizer();
        let later = pre_tokenizer.and_then(for_later_parts);
        let later_pre_tokenizers = later.as_ref().map(PreTokenizers::new).transpose()?;
        let pre_tokenizers = pre_tokenizer.map(PreTokenizers::new).transpose()?;
        Ok(Self { inner, plain_tokens, normalizers, pre_tokenizers, later_pre_tokenizers })
    }

    /// Appends the tokens of a text, in which special tokens may be written out. `is_first`:
    /// nothing precedes it.
    pub(super) fn encode(&self, text: &str, is_first: bool, out: &mut Vec<TokenId>) -> Result<()> {
        self.run(text, self.inner.get_added_vocabulary(), is_first, None, out)
    }

    /// Appends the tokens of a text in which special tokens are plain text.
    ///
    /// Models of some vocabularies contain the special tokens too and would find them in the text;
    /// such a text is split inside of them.
    pub(super) fn encode_plain(
        &self,
        vocab: &Vocab,
        specials: &TokenMatcher,
        text: &str,
        is_first: bool,
        out: &mut Vec<TokenId>,
    ) -> Result<()> {
        let start = out.len();
        self.run(text, &self.plain_tokens, is_first, None, out)?;
        if out[start..].iter().any(|&id| vocab.kind(id) == TokenKind::Control) {
            out.truncate(start);
            self.run(text, &self.plain_tokens, is_first, Some(specials), out)?;
        }
        Ok(())
    }

    /// Runs the pipeline. `cut_inside` are texts that no token may contain as a whole.
    fn run(
        &self,
        text: &str,
        added: &AddedVocabulary,
        is_first: bool,
        cut_inside: Option<&TokenMatcher>,
        out: &mut Vec<TokenId>,
    ) -> Result<()> {
        let pre_tokenizers = match &self.later_pre_tokenizers {
            Some(later) if !is_first => Some(later),
            _ => self.pre_tokenizers.as_ref(),
        };
        let parts = guarded(|| {
            let mut parts = self.normalized(added, text)?;
            if let Some(pre_tokenizers) = pre_tokenizers {
                pre_tokenizers.apply(&mut parts)?;
            }
            if let Some(texts) = cut_inside {
                parts.split(|_, part| Ok(cut_up(&part, texts)))?;
            }
            self.inner.get_model().tokenize_in_pretokenized(&mut parts, None)?;
            Ok(parts)
        })
        .map_err(|message| Error::Tokenization { message })?;
        for (_, _, tokens) in parts.get_splits(OffsetReferential::Normalized, OffsetType::None) {
            out.extend(tokens.iter().flatten().map(|token| token.id));
        }
        Ok(())
    }

    /// Splits a text at its added tokens and normalizes the rest.
    fn normalized(&self, added: &AddedVocabulary, text: &str) -> tokenizers::Result<PreTokenizedString> {
        let run = self.normalizers.as_ref().map(Run::new);
        let parts = added.extract_and_normalize(run.as_ref(), text);
        match run.and_then(Run::into_failure) {
            Some(failure) => Err(failure.into()),
            None => Ok(parts),
        }
    }

    /// Appends the special tokens written out in a text, with their byte ranges.
    pub(super) fn markers(
        &self,
        vocab: &Vocab,
        text: &str,
        found: &mut Vec<(std::ops::Range<usize>, TokenId)>,
    ) -> Result<()> {
        let parts = guarded(|| self.normalized(self.inner.get_added_vocabulary(), text))
            .map_err(|message| Error::Tokenization { message })?;
        for (_, (start, end), tokens) in parts.get_splits(OffsetReferential::Original, OffsetType::Byte) {
            let Some([token]) = tokens.as_deref() else { continue };
            if vocab.kind(token.id).is_special() && text.get(start..end).is_some() {
                found.push((start..end, token.id));
            }
        }
        Ok(())
    }

    /// Decodes with the library's decoder.
    pub(super) fn decode(&self, ids: &[TokenId]) -> Result<String> {
        guarded(|| self.inner.decode(ids, false)).map_err(|message| Error::Tokenization { message })
    }
}

/// Splits a part of a text after the first character of every match of `texts`.
fn cut_up(part: &NormalizedString, texts: &TokenMatcher) -> Vec<NormalizedString> {
    let text = part.get();
    let behind = |(at, c): (usize, char)| texts.is_at(text, at).then_some(at + c.len_utf8());
    let mut cuts: Vec<usize> = std::iter::once(0).chain(text.char_indices().filter_map(behind)).collect();
    cuts.push(text.len());
    cuts.windows(2).filter_map(|cut| part.slice(Range::Normalized(cut[0]..cut[1]))).collect()
}

/// Calls the library and catches panics. It panics on some definitions that pass its own checks,
/// which must not end a server.
pub(super) fn guarded<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(panic) => Err(panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|&message| message.to_owned()))
            .unwrap_or_else(|| "the tokenizers library stopped".to_owned())),
    }
}

/// Pre-tokenizer for later parts of a text. One that prepends a space to the first part only leaves
/// these unchanged.
fn for_later_parts(pre_tokenizer: &PreTokenizerWrapper) -> Option<PreTokenizerWrapper> {
    match pre_tokenizer {
        PreTokenizerWrapper::Metaspace(metaspace) if metaspace.prepend_scheme == PrependScheme::First => {
            let mut later = metaspace.clone();
            later.prepend_scheme = PrependScheme::Never;
            Some(later.into())
        }
        PreTokenizerWrapper::Sequence(sequence) => {
            let parts = sequence.as_ref();
            let later: Vec<_> =
                parts.iter().map(|part| for_later_parts(part).unwrap_or_else(|| part.clone())).collect();
            let changed = parts.iter().any(|part| for_later_parts(part).is_some());
            changed.then(|| tokenizers::pre_tokenizers::sequence::Sequence::new(later).into())
        }
        _ => None,
    }
}
