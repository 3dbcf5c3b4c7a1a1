//! Reranking by a decoder that answers whether a document is relevant.

use ruvllm_models::{RankHead, Workspace};
use ruvllm_text::TokenId;

use super::prompt::Prompt;
use super::{RankedDocument, Ranking, RerankError, RerankRequest, check, check_query_tokens, rank};
use crate::backend::sequence::common_prefix_len;
use crate::embed::groups;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::session::Session;

/// Encoded prompt of a document.
struct Document {
    tokens: Vec<TokenId>,
    truncated: bool,
    /// Tokens at the beginning that the prompt has for every document.
    shared: usize,
}

impl Engine {
    /// Ranks documents by their relevance to a query: see
    /// [`Embedder::rerank`](crate::Embedder::rerank).
    ///
    /// # Errors
    /// As `Embedder::rerank`.
    pub fn rerank(&self, request: &RerankRequest) -> Result<Ranking> {
        let (Some(head), Some(template)) = (self.model().rank_head(), &self.rerank_template) else {
            return Err(RerankError::NotReranker { reason: "it generates text" }.into());
        };
        check(request)?;
        let context = self.context_length();
        let max_tokens = request.max_tokens.or(self.embedding.max_tokens).unwrap_or(context).min(context);
        let encoder = Prompt::new(template)?.encoder(self.tokenizer(), request)?;
        check_query_tokens(encoder.tokens_around(), max_tokens)?;

        let no_document = encoder.encode("", max_tokens);
        let mut query = no_document.map_err(|source| RerankError::EncodeQuery { source })?.tokens;
        query.truncate(query.len() - encoder.tail().len());
        let encode = |(index, text): (usize, &String)| {
            let pair = encoder.encode(text, max_tokens);
            let pair = pair.map_err(|source| Error::EncodeText { index, source })?;
            // The last token is computed for each.
            let shared = common_prefix_len(&query, &pair.tokens).min(pair.tokens.len().saturating_sub(1));
            Ok(Document { tokens: pair.tokens, truncated: pair.truncated, shared })
        };
        let documents = request.documents.iter().enumerate().map(encode).collect::<Result<Vec<_>>>()?;
        let logits = self.logits_of(&query, &documents, head, max_tokens)?;
        let ranked = |(index, (document, logit)): (usize, (&Document, f32))| RankedDocument {
            index,
            logit,
            tokens: document.tokens.len(),
            truncated: document.truncated,
        };
        Ok(rank(documents.iter().zip(logits).enumerate().map(ranked).collect(), request))
    }

    /// True if the model ranks documents.
    pub fn is_reranker(&self) -> bool {
        self.model().rank_head().is_some()
    }

    /// Logits of documents. The prompt up to the document, `query`, is computed once.
    ///
    /// Where a document's own tokens begin follows from it and the query alone, and so does every
    /// bit of its logit.
    fn logits_of(
        &self,
        query: &[TokenId],
        documents: &[Document],
        head: &RankHead,
        capacity: usize,
    ) -> Result<Vec<f32>> {
        let mut workspace = Workspace::new();
        let mut base = Session::new(self, capacity)?;
        base.keep_all();
        self.final_states(&mut workspace, std::slice::from_mut(&mut base), &[query], false, &mut |_, _| ())?;
        let mut logits = Vec::with_capacity(documents.len());
        let own = |document: &Document| document.tokens.len() - document.shared;
        for group in groups(documents, own, self.core().prefill_chunk) {
            let mut sessions: Vec<Session<'_>> =
                group.iter().map(|document| base.fork_at(document.shared)).collect::<Result<_>>()?;
            let rests: Vec<&[TokenId]> = sessions
                .iter()
                .zip(group)
                .map(|(session, document)| &document.tokens[session.len()..])
                .collect();
            let start = logits.len();
            logits.resize(start + group.len(), 0.0);
            self.final_states(&mut workspace, &mut sessions, &rests, false, &mut |index, states| {
                if !states.is_empty() {
                    logits[start + index] = head.logit(states);
                }
            })?;
        }
        Ok(logits)
    }
}
