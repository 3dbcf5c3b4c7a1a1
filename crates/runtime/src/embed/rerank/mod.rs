//! Relevance of documents to a query ([`Embedder::rerank`]), by a model that reads both together.

mod decoder;
mod encoder;
mod error;
mod prompt;

pub use self::error::RerankError;
use crate::embed::{AnyModel, Embedder};
use crate::error::{Error, Result};
use crate::setters::setters;

/// Reranking request: a query, documents and options.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct RerankRequest {
    /// The query. Special tokens written in it are plain text.
    pub query: String,
    /// The documents; special tokens written in them are plain text. An empty one has a score too.
    pub documents: Vec<String>,
    /// Instruction that says which documents are relevant, for models whose prompt has one
    /// (Qwen3-Reranker); `None`: that of the prompt, answers to a web search. Special tokens
    /// written in it are plain text.
    pub instruction: Option<String>,
    /// Maximum number of results; `None`: all documents.
    pub top_n: Option<usize>,
    /// Maximum number of tokens of query and document together, with special tokens and prompt;
    /// longer documents are truncated ([`RankedDocument::truncated`]). At most the model's context
    /// length, which is also the last default.
    pub max_tokens: Option<usize>,
}

impl RerankRequest {
    /// A request for the scores of all documents.
    pub fn new(query: impl Into<String>, documents: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let documents = documents.into_iter().map(Into::into).collect();
        Self { query: query.into(), documents, ..Self::default() }
    }
}

setters! {
    RerankRequest {
        some with_instruction(instruction: String);
        some with_top_n(top_n: usize);
        some with_max_tokens(max_tokens: usize);
    }
}

/// Ranking of a request's documents.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Ranking {
    /// The best documents, the most relevant first; equal ones in the order of the request.
    pub results: Vec<RankedDocument>,
    /// Tokens of all pairs, special tokens included.
    pub tokens: usize,
}

/// Relevance of one document.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RankedDocument {
    /// Index of the document in the request.
    pub index: usize,
    /// Output of the model, any real number: of a decoder, the logit of its `yes` less that of its
    /// `no`. The order is by it.
    pub logit: f32,
    /// Tokens of query and document together, with special tokens and prompt.
    pub tokens: usize,
    /// True if the document was truncated.
    pub truncated: bool,
}

impl RankedDocument {
    /// Relevance from 0 to 1: the logistic function of the [logit](Self::logit). Of a decoder, the
    /// softmax of its two answers.
    #[must_use]
    pub fn score(&self) -> f32 {
        (1.0 / (1.0 + (-f64::from(self.logit)).exp())) as f32
    }
}

impl Embedder {
    /// Ranks documents by their relevance to a query.
    ///
    /// A model is an encoder with a classification head (cross-encoder), or a decoder whose prompt
    /// asks if the document is relevant and whose last state is scored
    /// ([`Engine::rerank`](crate::Engine::rerank)).
    ///
    /// The logit of a document depends, bit for bit, only on query, document, `instruction` and
    /// `max_tokens`, not on other documents, threads or instruction set.
    ///
    /// # Errors
    /// [`Error::Rerank`] for a model without a head that scores, an empty query or one that leaves
    /// no room for a document, an instruction for a model without one, and for no documents;
    /// [`Error::InvalidOption`] for a `top_n` of 0; [`Error::EncodeText`], [`Error::ForwardTexts`],
    /// and those of a decoder, [`Error::Cache`] and [`Error::Forward`], from the run.
    ///
    /// # Examples
    /// ```no_run
    /// use ruvllm::{Embedder, RerankRequest};
    ///
    /// let reranker = Embedder::open("bge-reranker-v2-m3")?;
    /// let request = RerankRequest::new("capital of France", ["Paris is its capital.", "A river."]);
    /// assert_eq!(reranker.rerank(&request)?.results[0].index, 0);
    /// # Ok::<(), ruvllm::Error>(())
    /// ```
    pub fn rerank(&self, request: &RerankRequest) -> Result<Ranking> {
        match &self.0 {
            AnyModel::Decoder(engine) => engine.rerank(request),
            AnyModel::Encoder(engine) => engine.rerank(request),
        }
    }

    /// True if the model ranks documents.
    pub fn is_reranker(&self) -> bool {
        match &self.0 {
            AnyModel::Decoder(engine) => engine.is_reranker(),
            AnyModel::Encoder(engine) => engine.encoder.has_head(),
        }
    }
}

/// Checks what does not depend on the model.
fn check(request: &RerankRequest) -> Result<()> {
    if request.query.trim().is_empty() {
        return Err(RerankError::EmptyQuery.into());
    }
    if request.documents.is_empty() {
        return Err(RerankError::NoDocuments.into());
    }
    if request.top_n == Some(0) {
        return Err(Error::InvalidOption { name: "top_n", value: 0, expected: "at least 1" });
    }
    Ok(())
}

/// Checks that a pair without its document has room for one.
fn check_query_tokens(tokens: usize, max_tokens: usize) -> Result<()> {
    if tokens >= max_tokens {
        return Err(RerankError::QueryTooLong { tokens, max_tokens }.into());
    }
    Ok(())
}

/// Sorts the documents of a request and keeps the best.
fn rank(mut results: Vec<RankedDocument>, request: &RerankRequest) -> Ranking {
    let tokens = results.iter().map(|document| document.tokens).sum();
    // Stable: equal documents keep their order.
    results.sort_by(|a, b| b.logit.total_cmp(&a.logit));
    results.truncate(request.top_n.unwrap_or(results.len()));
    Ranking { results, tokens }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(index: usize, logit: f32) -> RankedDocument {
        RankedDocument { index, logit, tokens: 3, truncated: false }
    }

    #[test]
    fn the_most_relevant_come_first_and_equals_in_their_order() {
        let documents = [-1.0, 2.0, -3.0, 2.0, 0.0].into_iter().enumerate();
        let documents: Vec<_> = documents.map(|(index, logit)| document(index, logit)).collect();
        let request = RerankRequest::new("q", ["d"; 5]);
        let order = |ranking: Ranking| ranking.results.iter().map(|d| d.index).collect::<Vec<_>>();
        assert_eq!(order(rank(documents.clone(), &request)), [1, 3, 4, 0, 2]);
        let best = rank(documents, &request.with_top_n(2));
        assert_eq!((best.tokens, order(best)), (15, vec![1, 3]));
    }

    #[test]
    fn scores_are_the_logistic_function_of_logits() {
        let scores = [0.0, 3.0_f32.ln(), -1000.0, 1000.0].map(|logit| document(0, logit).score());
        assert_eq!(scores, [0.5, 0.75, 0.0, 1.0]);
    }
}
