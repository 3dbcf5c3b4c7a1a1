//! A tokenizer of the `tokenizers` library and the parts of its pipeline.
//!
//! The library's pipeline is called part by part (added tokens, normalizer, pre-tokenizer, model),
//! because reading special tokens as text must be possible per call and for single parts of a text.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tokenizers::{
    AddedVocabulary, Model, NormalizedString, OffsetReferential, OffsetType, PreTokenizer,
    PreTokenizerWrapper, normalizer::Range, pre_tokenizers::metaspace::PrependScheme,
};

use super::{
    special::{Fragment, Occurrence, TokenMatcher},
    vocab::{TokenKind, Vocab},
};
use crate::error::{Error, Result};
use crate::token::TokenId;

/// A tokenizer of the library, with what is needed to run its parts.
#[derive(Debug)]
pub(crate) struct Library {
    inner: tokenizers::Tokenizer,
    /// The added tokens without the special ones, which are then read as text.
    plain_tokens: AddedVocabulary,
    /// The pre-tokenizer for parts of a text other than the first, when it treats those otherwise.
    inner_pre_tokenizer: Option<PreTokenizerWrapper>,
}

impl Library {
    pub(super) fn new(inner: tokenizers::Tokenizer) -> Self {
        let mut plain_tokens = inner.get_added_vocabulary().clone();
        plain_tokens.set_encode_special_tokens(true);
        let inner_pre_tokenizer = inner.get_pre_tokenizer().and_then(for_later_parts);
        Self { inner, plain_tokens, inner_pre_tokenizer }
    }

    /// Appends the tokens of a text, in which special tokens may be written out. `is_first` says
    /// that nothing comes before it.
    pub(super) fn encode(&self, text: &str, is_first: bool, out: &mut Vec<TokenId>) -> Result<()> {
        self.run(text, self.inner.get_added_vocabulary(), is_first, None, out)
    }

    /// Appends the tokens of a text in which special tokens are plain text.
    ///
    /// The models of some vocabularies hold the special tokens too and would find them in the text
    /// by themselves; such a text is cut inside of these.
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

    /// The pipeline. `cut_inside` are texts that no token may hold as a whole.
    fn run(
        &self,
        text: &str,
        added: &AddedVocabulary,
        is_first: bool,
        cut_inside: Option<&TokenMatcher>,
        out: &mut Vec<TokenId>,
    ) -> Result<()> {
        let pre_tokenizer = match &self.inner_pre_tokenizer {
            Some(inner) if !is_first => Some(inner),
            _ => self.inner.get_pre_tokenizer(),
        };
        let parts = guarded(|| {
            let mut parts = added.extract_and_normalize(self.inner.get_normalizer(), text);
            if let Some(pre_tokenizer) = pre_tokenizer {
                pre_tokenizer.pre_tokenize(&mut parts)?;
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

    /// Cuts a text at the special tokens written out in it.
    pub(super) fn special_fragments<'t>(&self, vocab: &Vocab, text: &'t str) -> Result<Vec<Fragment<'t>>> {
        let parts = guarded(|| {
            Ok(self.inner.get_added_vocabulary().extract_and_normalize(self.inner.get_normalizer(), text))
        })
        .map_err(|message| Error::Tokenization { message })?;
        let mut fragments = Vec::new();
        let mut text_start = 0;
        for (_, (start, end), tokens) in parts.get_splits(OffsetReferential::Original, OffsetType::Byte) {
            let Some([token]) = tokens.as_deref() else { continue };
            if vocab.kind(token.id).is_special() {
                let before = text.get(text_start..start).unwrap_or_default();
                if !before.is_empty() {
                    fragments.push(Fragment::Text(before));
                }
                fragments.push(Fragment::Token(token.id));
                text_start = end;
            }
        }
        let rest = text.get(text_start..).unwrap_or_default();
        if !rest.is_empty() {
            fragments.push(Fragment::Text(rest));
        }
        Ok(fragments)
    }

    /// Decodes by the library's decoder.
    pub(super) fn decode(&self, ids: &[TokenId]) -> Result<String> {
        guarded(|| self.inner.decode(ids, false)).map_err(|message| Error::Tokenization { message })
    }
}

/// Cuts a part of a text behind the first character of every text that `texts` finds in it.
fn cut_up(part: &NormalizedString, texts: &TokenMatcher) -> Vec<NormalizedString> {
    let text = part.get();
    let behind =
        |(at, c): (usize, char)| (texts.at(text, at) == Occurrence::Whole).then_some(at + c.len_utf8());
    let mut cuts: Vec<usize> = std::iter::once(0).chain(text.char_indices().filter_map(behind)).collect();
    cuts.push(text.len());
    cuts.windows(2).filter_map(|cut| part.slice(Range::Normalized(cut[0]..cut[1]))).collect()
}

/// Runs a call of the library. It panics on some definitions that pass its own checks, which must
/// not end a server.
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

/// The pre-tokenizer for parts of a text behind the first: one that prepends a space to the first
/// part only does nothing to these.
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
