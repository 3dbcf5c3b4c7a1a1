//! Errors of rankings, and of models made for them.

/// Refusal to rank documents, or to compute anything else with a reranker.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RerankError {
    /// The model gives no scores.
    #[error("the model is no reranker: {reason}; use one such as bge-reranker-v2-m3 or Qwen3-Reranker")]
    NotReranker {
        /// Kind of the model.
        reason: &'static str,
    },
    /// Embeddings of a reranker, whose states were not trained to be any.
    #[error("the model ranks documents (`rerank`) and computes no embeddings")]
    NoEmbeddings,
    /// The request has an instruction, and the model takes none.
    #[error("the model takes no `instruction`: {reason}; leave it out")]
    NoInstruction {
        /// Kind of the model.
        reason: &'static str,
    },
    /// The prompt of the model has no place for a query and, behind it, a document.
    #[error(
        "the model's prompt `tokenizer.chat_template.rerank` needs `{{query}}` and then `{{document}}`, each once"
    )]
    Prompt,
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
        /// Tokens of the query, with special tokens and prompt.
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
