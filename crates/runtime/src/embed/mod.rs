//! Embeddings of texts, from the hidden states of a decoder
//! ([`Engine::embed`](crate::Engine::embed)) or of an encoder. [`Embedder`] loads either.

mod decoder;
mod encoder;
mod passes;
mod pool;
mod rerank;

use std::time::Duration;

use ruvllm_models::{EmbeddingDefaults, LoadProgress, Pooling, is_encoder};
use ruvllm_text::TokenId;
use ruvllm_text::tokenizer::Tokenizer;

use self::encoder::EncoderEngine;
pub use self::rerank::{RankedDocument, Ranking, RerankError, RerankRequest};
use crate::engine::{Engine, Start};
use crate::error::{Error, Result};
use crate::options::{EngineOptions, ModelSource};
use crate::setters::setters;

/// Embedding request: texts and options.
///
/// Options that are `None` take the values of the model's files: `pooling_type` of a GGUF file, the
/// files of sentence-transformers in a folder.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct EmbeddingRequest {
    /// Texts. Special tokens written in them are parsed.
    pub texts: Vec<String>,
    /// Further texts as token ids, used as they are: no special tokens are added.
    pub tokens: Vec<Vec<TokenId>>,
    /// Pooling of the hidden states; mean if the files name none.
    pub pooling: Option<Pooling>,
    /// Normalization to unit length (L2); on if the files do not say.
    pub normalize: Option<bool>,
    /// Maximum number of tokens per text, special tokens included; longer texts are truncated
    /// ([`Embedding::truncated`]). At most the model's context length, which is also the last
    /// default.
    pub max_tokens: Option<usize>,
}

impl EmbeddingRequest {
    /// A request with the defaults of the model's files.
    pub fn new(texts: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { texts: texts.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// A request of texts as token ids, with the defaults of the model's files.
    pub fn of_tokens(tokens: impl Into<Vec<Vec<TokenId>>>) -> Self {
        Self { tokens: tokens.into(), ..Self::default() }
    }

    /// Texts and lists of ids.
    fn inputs(&self) -> Vec<Input<'_>> {
        let texts = self.texts.iter().map(|text| Input::Text(text));
        texts.chain(self.tokens.iter().map(|tokens| Input::Tokens(tokens))).collect()
    }
}

/// One text of a request.
#[derive(Debug, Clone, Copy)]
enum Input<'r> {
    Text(&'r str),
    Tokens(&'r [TokenId]),
}

setters! {
    EmbeddingRequest {
        some with_pooling(pooling: Pooling);
        some with_normalize(normalize: bool);
        some with_max_tokens(max_tokens: usize);
    }
}

/// Embeddings of a request.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Embeddings {
    /// One per text, in order; those of [`EmbeddingRequest::tokens`] follow.
    pub embeddings: Vec<Embedding>,
    /// Dimension of the vectors.
    pub dim: usize,
    /// Pooling used.
    pub pooling: Pooling,
    /// True if the vectors have unit length (L2).
    pub normalized: bool,
}

/// Embedding of a text.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Embedding {
    /// Values, `[dim]`. All zeros if all states are zero.
    pub vector: Vec<f32>,
    /// Tokens used, special tokens included.
    pub tokens: usize,
    /// True if the text was cut to `max_tokens` tokens.
    pub truncated: bool,
}

/// An embedding model: a decoder or an encoder.
///
/// # Examples
/// ```no_run
/// use ruvllm::{Embedder, EmbeddingRequest};
///
/// let embedder = Embedder::open("all-MiniLM-L6-v2")?;
/// let embeddings = embedder.embed(&EmbeddingRequest::new(["a cat", "a dog"]))?;
/// assert_eq!(embeddings.embeddings.len(), 2);
/// # Ok::<(), ruvllm::Error>(())
/// ```
#[derive(Debug)]
pub struct Embedder(AnyModel);

#[derive(Debug)]
enum AnyModel {
    Decoder(Box<Engine>),
    Encoder(Box<EncoderEngine>),
}

impl Embedder {
    /// Loads a model file or folder with default options.
    ///
    /// # Errors
    /// As [`Engine::load`].
    pub fn open(source: impl Into<ModelSource>) -> Result<Self> {
        Self::load(&source.into(), &EngineOptions::default(), &mut |_| ())
    }

    /// Loads a model file or folder; `progress` gets the loading progress of the weights. Options
    /// of KV cache, context and prefixes have no effect on encoders.
    ///
    /// # Errors
    /// As [`Engine::load`].
    pub fn load(
        source: &ModelSource,
        options: &EngineOptions,
        progress: &mut dyn FnMut(LoadProgress<'_>),
    ) -> Result<Self> {
        let start = Start::new(options)?;
        let checkpoint = source.open(options.file_memory())?;
        Ok(Self(if is_encoder(checkpoint.metadata()) {
            AnyModel::Encoder(Box::new(EncoderEngine::load(&*checkpoint, source, options, start, progress)?))
        } else {
            AnyModel::Decoder(Box::new(Engine::of_checkpoint(
                &*checkpoint,
                source,
                options,
                start,
                progress,
            )?))
        }))
    }

    /// Computes the embeddings of texts.
    ///
    /// The vector of a text depends, bit for bit, only on the text and the options, not on other
    /// texts, threads or instruction set.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for a `max_tokens` without room for text besides special tokens,
    /// [`Error::EmptyText`] for a text without tokens, [`Error::PoolingOfDecoder`],
    /// [`Error::Rerank`] for a reranker,
    /// [`Error::EncodeText`], [`Error::TokenOutOfRange`]; [`Error::Cache`], [`Error::Forward`] and
    /// [`Error::ForwardTexts`] from the run.
    pub fn embed(&self, request: &EmbeddingRequest) -> Result<Embeddings> {
        match &self.0 {
            AnyModel::Decoder(engine) => engine.embed(request),
            AnyModel::Encoder(engine) => engine.embed(request),
        }
    }

    /// Tokenizer of the model.
    pub fn tokenizer(&self) -> &Tokenizer {
        match &self.0 {
            AnyModel::Decoder(engine) => engine.tokenizer(),
            AnyModel::Encoder(engine) => engine.tokenizer(),
        }
    }

    /// The engine of a decoder; `None` for an encoder.
    pub fn engine(&self) -> Option<&Engine> {
        match &self.0 {
            AnyModel::Decoder(engine) => Some(engine),
            AnyModel::Encoder(_) => None,
        }
    }

    /// Duration of [`load`](Self::load).
    pub fn load_time(&self) -> Duration {
        match &self.0 {
            AnyModel::Decoder(engine) => engine.load_time(),
            AnyModel::Encoder(engine) => engine.load_time(),
        }
    }
}

/// Resolved options of a request.
#[derive(Debug, Clone, Copy)]
struct Settings {
    pooling: Pooling,
    normalize: bool,
    max_tokens: usize,
}

impl Settings {
    /// Resolves the options of `request`. `context`: context length of the model.
    fn new(
        request: &EmbeddingRequest,
        defaults: &EmbeddingDefaults,
        tokenizer: &Tokenizer,
        context: usize,
    ) -> Result<Self> {
        let max_tokens = request.max_tokens.or(defaults.max_tokens).unwrap_or(context).min(context);
        if max_tokens <= tokenizer.tokens_around() {
            let expected = "more than the tokens that the model puts around every text";
            return Err(Error::InvalidOption { name: "max_tokens", value: max_tokens, expected });
        }
        Ok(Self {
            pooling: request.pooling.or(defaults.pooling).unwrap_or(Pooling::Mean),
            normalize: request.normalize.or(defaults.normalize).unwrap_or(true),
            max_tokens,
        })
    }
}

/// A tokenized text.
struct Encoded {
    tokens: Vec<TokenId>,
    truncated: bool,
}

/// Tokenizes the text with this index, truncated to `max_tokens`. `vocab_size`: rows of the
/// model's embedding.
fn encode(
    tokenizer: &Tokenizer,
    vocab_size: usize,
    index: usize,
    input: Input<'_>,
    max_tokens: usize,
) -> Result<Encoded> {
    let (tokens, truncated) = match input {
        Input::Text(text) => {
            let encoded = tokenizer.encode_at_most(text, max_tokens);
            encoded.map_err(|source| Error::EncodeText { index, source })?
        }
        Input::Tokens(tokens) => {
            if let Some(position) = tokens.iter().position(|&token| token as usize >= vocab_size) {
                return Err(Error::TokenOutOfRange { token: tokens[position], position, vocab_size });
            }
            (tokens[..tokens.len().min(max_tokens)].to_vec(), tokens.len() > max_tokens)
        }
    };
    if tokens.is_empty() { Err(Error::EmptyText { index }) } else { Ok(Encoded { tokens, truncated }) }
}

/// Maximum number of texts per pass of a decoder. Each takes at least one KV block.
const MAX_TEXTS: usize = 16;

/// Splits texts, in order, into groups for one pass of a decoder. A group has up to `max_tokens`
/// tokens and [`MAX_TEXTS`] texts, or one longer text.
fn groups<T>(texts: &[T], tokens_of: impl Fn(&T) -> usize, max_tokens: usize) -> Vec<&[T]> {
    let mut groups = Vec::new();
    let mut rest = texts;
    while !rest.is_empty() {
        let mut tokens = 0;
        let fits = |text: &&T| {
            tokens += tokens_of(text);
            tokens <= max_tokens
        };
        let (group, later) = rest.split_at(rest.iter().take(MAX_TEXTS).take_while(fits).count().max(1));
        groups.push(group);
        rest = later;
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_whole_and_in_order() {
        let split = |texts: &[usize]| -> Vec<Vec<usize>> {
            groups(texts, |&tokens| tokens, 10).into_iter().map(<[usize]>::to_vec).collect()
        };
        assert_eq!(split(&[3, 3, 3, 20, 1, 9, 1]), [&[3, 3, 3][..], &[20], &[1, 9], &[1]]);
        assert_eq!(split(&[0; MAX_TEXTS + 1]), [&[0; MAX_TEXTS][..], &[0]]);
        assert!(split(&[]).is_empty());
    }
}
