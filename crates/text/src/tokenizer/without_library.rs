//! Encoders that the tokenizers library runs, in a build without it: types without values, so that
//! the code around them is the same.

use super::{special::TokenMatcher, vocab::Vocab};
use crate::error::{Error, Result};
use crate::token::TokenId;

/// Encoder of a `tokenizer.json`.
#[derive(Debug)]
pub(crate) enum Library {}

impl Library {
    pub(super) fn encode(&self, _: &str, _: bool, _: &mut [TokenId]) -> Result<()> {
        match *self {}
    }

    pub(super) fn encode_plain(
        &self,
        _: &Vocab,
        _: &TokenMatcher,
        _: &str,
        _: bool,
        _: &mut [TokenId],
    ) -> Result<()> {
        match *self {}
    }

    pub(super) fn markers<T>(&self, _: &Vocab, _: &str, _: &mut [T]) -> Result<()> {
        match *self {}
    }

    pub(super) fn decode(&self, _: &[TokenId]) -> Result<String> {
        match *self {}
    }
}

/// Encoder of a BERT vocabulary.
#[derive(Debug)]
pub(crate) enum WordPiece {}

impl WordPiece {
    /// Refuses the vocabulary.
    ///
    /// # Errors
    /// [`Error::UnsupportedTokenizer`] that names the feature.
    pub(crate) fn new(_: &Vocab, _: TokenId, _: bool, _: bool) -> Result<Self> {
        Err(Error::UnsupportedTokenizer {
            found: "bert".to_owned(),
            supported: "gemma4, gpt2, llama, t5; bert with the feature tokenizer-json".to_owned(),
        })
    }

    pub(crate) fn encode(&self, _: &Vocab, _: &str, _: &mut [TokenId]) -> Result<()> {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use gguf_rs_lite::{Array, Metadata, Value};

    use crate::Error;
    use crate::tokenizer::Tokenizer;

    #[test]
    fn a_bert_vocabulary_is_refused_with_the_name_of_the_feature() {
        let tokens = ["[UNK]", "[CLS]", "[SEP]", "\u{2581}a"].map(str::to_owned).to_vec();
        let metadata: Metadata = [
            ("tokenizer.ggml.model", Value::String("bert".to_owned())),
            ("tokenizer.ggml.tokens", Value::Array(Array::String(tokens))),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect();
        let error = Tokenizer::from_gguf(&metadata).err();
        assert!(
            matches!(&error, Some(Error::UnsupportedTokenizer { supported, .. }) if supported.contains("tokenizer-json")),
            "{error:?}"
        );
    }
}
