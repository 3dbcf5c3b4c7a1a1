//! Errors of rankings, and of models made for them.

/// Refusal to rank documents, or to compute anything else with a reranker.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RerankError {
    /// The model gives no scores.
    #[error("the model is no reranker: {reason}; use a cross-encoder such as bge-reranker-v2-m3")]
    NotReranker {
        /// Kind of the model.
        reason: &'static str,
    },
    /// Embeddings of a reranker, whose states were not trained to be any.
    #[error("the model ranks documents (`rerank`) and computes no embeddings")]
    NoEmbeddings,
    /// The query has no text.
    #[error("the query is empty")]
    EmptyQuery,
    /// There are no documents.
    #[error("there are no documents to rank")]
    NoDocuments,
    /// The query leaves no room for a document.
    #[error(
        "the query takes {tokens} of at most {max_tokens} tokens and leaves no room for a document; shorten it"
    )]
    QueryTooLong {
        /// Tokens of the query, special tokens included.
        tokens: usize,
        /// Maximum number of tokens of query and document.
        max_tokens: usize,
    },
    /// The query could not be tokenized.
    #[error("cannot encode the query")]
    EncodeQuery {
        /// Error of the tokenizer.
        #[source]
        source: ruvllm_text::Error,
    },
}
