//! Reranking by an encoder with a classification head (cross-encoder).

use ruvllm_models::{Compute, EncoderText, EncoderWorkspace};
use ruvllm_text::tokenizer::{PairEncoder, TextPair};

use super::{RankedDocument, Ranking, RerankError, RerankRequest, check, check_query_tokens, rank};
use crate::embed::encoder::EncoderEngine;
use crate::embed::passes::Batch;
use crate::error::{Error, Result};

/// Documents of one query.
struct Documents<'a> {
    engine: &'a EncoderEngine,
    query: PairEncoder<'a>,
    documents: &'a [String],
    max_tokens: usize,
}

impl EncoderEngine {
    pub(super) fn rerank(&self, request: &RerankRequest) -> Result<Ranking> {
        if !self.encoder.has_head() {
            let reason = "it has no classification head and computes embeddings";
            return Err(RerankError::NotReranker { reason }.into());
        }
        if request.instruction.is_some() {
            let reason = "it is a cross-encoder, which reads query and document alone";
            return Err(RerankError::NoInstruction { reason }.into());
        }
        check(request)?;
        let context = self.encoder.config().context_length;
        let max_tokens = request.max_tokens.or(self.defaults.max_tokens).unwrap_or(context).min(context);
        let query = self.tokenizer.pair_encoder(&request.query);
        let query = query.map_err(|source| RerankError::EncodeQuery { source })?;
        check_query_tokens(query.tokens_around(), max_tokens)?;
        let documents = &request.documents;
        let results = self.passes.run(&Documents { engine: self, query, documents, max_tokens })?;
        Ok(rank(results, request))
    }
}

impl Batch for Documents<'_> {
    type Text = TextPair;
    type Output = RankedDocument;

    fn len(&self) -> usize {
        self.documents.len()
    }

    fn encode(&self, index: usize) -> Result<TextPair> {
        let pair = self.query.encode(&self.documents[index], self.max_tokens);
        pair.map_err(|source| Error::EncodeText { index, source })
    }

    fn tokens(pair: &TextPair) -> usize {
        pair.tokens.len()
    }

    fn compute(
        &self,
        compute: &Compute,
        workspace: &mut EncoderWorkspace,
        pass: &[(usize, TextPair)],
    ) -> ruvllm_models::Result<Vec<RankedDocument>> {
        let texts: Vec<EncoderText<'_>> = pass
            .iter()
            .map(|(_, pair)| EncoderText { tokens: &pair.tokens, second_type: pair.second_type })
            .collect();
        let logits = self.engine.encoder.scores(compute, workspace, &texts)?;
        let document = |((index, pair), logit): (&(usize, TextPair), f32)| RankedDocument {
            index: *index,
            logit,
            tokens: pair.tokens.len(),
            truncated: pair.truncated,
        };
        Ok(pass.iter().zip(logits).map(document).collect())
    }
}
