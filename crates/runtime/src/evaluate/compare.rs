//! Comparison of two runs over the same text.

use std::ops::ControlFlow;
use std::sync::OnceLock;

use ruvllm_text::TokenId;

use super::divergence::{Comparison, KlDivergence, Position, UnusableLogit};
use super::windows::Windows;
use super::{ROWS_PER_TASK, check_model_context, scored_at_once};
use crate::backend::InferenceBackend;
use crate::codec::compare_vocabularies;
use crate::engine::Engine;
use crate::error::{Error, Result};

impl Engine {
    /// Compares the next-token probabilities of `candidate` with those of this engine, the
    /// reference, over a text given as token ids; only the first `limit` are used.
    ///
    /// Windows and scored positions are those of [`perplexity`](Self::perplexity). Both models
    /// compute one pass after the other, so that at most 64 MiB of logits of each are held. With
    /// tiers in one of the policies, the passes of both are as short as the tiers ask for.
    ///
    /// `progress` gets the number of processed ids and their total; `Break` ends the comparison
    /// with the result so far.
    ///
    /// # Numerics
    /// Log-probabilities are f64 from f32 logits, summed in f64 in the order of the text.
    ///
    /// # Errors
    /// [`Error::ComparedVocabulary`] for a candidate with other tokens; [`Error::ComparedLogit`]
    /// for logits without a finite divergence; [`Error::WindowTooShort`], [`Error::TextTooShort`],
    /// [`Error::ContextTooLong`], [`Error::TokenOutOfRange`], [`Error::Cancelled`] after a `Break`
    /// before the first result; errors of the runs.
    pub fn compare(
        &self,
        candidate: &dyn InferenceBackend,
        tokens: &[TokenId],
        context: usize,
        limit: Option<usize>,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<KlDivergence> {
        let windows = Windows::new(tokens, context, limit)?;
        check_vocabulary(self, candidate)?;
        let backends: [&dyn InferenceBackend; 2] = [self, candidate];
        for backend in backends {
            check_model_context(backend.config(), "a perplexity window", context)?;
        }
        self.check_tokens(windows.tokens())?;
        let rows = backends.map(|backend| {
            let policy = backend.kv_policy();
            scored_at_once(&policy, policy.block_tokens(), backend.config(), backend.prefill_chunk())
        });
        let [mut reference, mut candidate] = [self.session(context)?, candidate.session(context)?];
        let mut memory = [Vec::new(), Vec::new()];
        let mut comparison = Comparison::default();
        let complete = windows.score(rows[0].min(rows[1]), progress, &mut |pass| {
            if pass.start == 0 {
                reference.truncate(0)?;
                candidate.truncate(0)?;
            }
            let [reference_rows, candidate_rows] = &mut memory;
            let logits = [
                reference.forward_all(pass.inputs, reference_rows)?,
                candidate.forward_all(pass.inputs, candidate_rows)?,
            ];
            for (row, position) in self.compare_rows(logits, pass.targets).into_iter().enumerate() {
                let unusable = |UnusableLogit { run, token, logit }| Error::ComparedLogit {
                    run,
                    token,
                    logit,
                    position: pass.position + row,
                };
                comparison.add(&position.map_err(unusable)?);
            }
            Ok(())
        })?;
        comparison.finish(complete)
    }

    /// Compares the logits before each of `targets`, `[targets, vocab_size]` of both runs, on all
    /// threads; results in the order of the text.
    fn compare_rows(
        &self,
        [reference, candidate]: [&[f32]; 2],
        targets: &[TokenId],
    ) -> Vec<Result<Position, UnusableLogit>> {
        let vocab_size = self.config().vocab_size;
        let compared: Vec<OnceLock<_>> = targets.iter().map(|_| OnceLock::new()).collect();
        let compare = |row: usize| {
            let [reference, candidate] =
                [reference, candidate].map(|logits| &logits[row * vocab_size..][..vocab_size]);
            Position::new(reference, candidate, targets[row])
        };
        self.core().compute.pool.for_each_chunk(targets.len(), ROWS_PER_TASK, &|rows| {
            for row in rows {
                compared[row].get_or_init(|| compare(row));
            }
        });
        let position = |(row, slot): (usize, OnceLock<_>)| slot.into_inner().unwrap_or_else(|| compare(row));
        compared.into_iter().enumerate().map(position).collect()
    }
}

/// Refuses a candidate whose tokens or logits are not those of the reference.
fn check_vocabulary(reference: &Engine, candidate: &dyn InferenceBackend) -> Result<()> {
    compare_vocabularies(candidate.codec().tokenizer(), reference.tokenizer(), "the reference")
        .and_then(|()| match [candidate.config(), reference.config()].map(|config| config.vocab_size) {
            [found, expected] if found != expected => {
                Err(format!("its output has {found} ids, the reference's {expected}"))
            }
            _ => Ok(()),
        })
        .map_err(|reason| Error::ComparedVocabulary { reason })
}
