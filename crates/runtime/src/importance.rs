//! Squared inputs of the weight matrices over a text, for an importance matrix.

use std::ops::ControlFlow;

use ruvllm_kernels::attention::KvFormat;
use ruvllm_kv_cache::{KvPolicy, Sequence};
use ruvllm_models::{InputSquares, LogitsRows, Segment, Workspace};
use ruvllm_text::TokenId;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::evaluate::check_window;
use crate::plan::{kv_pool, sequence_budget};

impl Engine {
    /// Sums the squared inputs of every product over a text, given as token ids, those of the
    /// model's prediction head too; returns them with the number of windows.
    ///
    /// The ids are cut into consecutive windows of `context` ids that begin at position 0; a
    /// partial last window is left out. Keys and values are exact (F32).
    ///
    /// `progress` gets the number of processed ids and their total; `Break` ends the run.
    ///
    /// # Errors
    /// [`Error::WindowTooShort`], [`Error::TextTooShort`], [`Error::ContextTooLong`],
    /// [`Error::TokenOutOfRange`], [`Error::Cancelled`] after a `Break`; [`Error::KvBudget`],
    /// [`Error::Cache`] and [`Error::Forward`] from the run.
    pub fn observe_inputs(
        &self,
        tokens: &[TokenId],
        context: usize,
        limit: Option<usize>,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<(InputSquares, usize)> {
        let tokens = check_window(tokens, context, limit)?;
        self.check_context("a window", context)?;
        self.check_tokens(tokens)?;
        let windows = tokens.chunks_exact(context);
        let (n_windows, total) = (windows.len(), windows.len() * context);
        let mut cache = self.exact_sequence(context)?;
        let mut of_head = self.exact_head_sequence(context)?;
        let mut states = Vec::new();
        let mut workspace = Workspace::new();
        workspace.observe_inputs();
        let core = self.core();
        let mut done = 0;
        for window in windows {
            let mut start = 0;
            for piece in window.chunks(self.scored_at_once()) {
                if progress(done, total).is_break() {
                    return Err(Error::Cancelled);
                }
                // All rows: without their logits the last layer would see a few only.
                let kept = if of_head.is_some() { piece.len() } else { 0 };
                let failed = |source| Error::Forward { start: done, tokens: piece.len(), source };
                Segment::new(&core.compute, piece, &mut cache, LogitsRows::All)
                    .map(|segment| segment.with_hidden(kept))
                    .and_then(|segment| core.model.forward(&core.compute, &mut workspace, [segment]))
                    .map_err(failed)?;
                if let Some(cache) = &mut of_head {
                    // The head reads each token beside the state of the one before.
                    let next = &window[start + 1..window.len().min(start + piece.len() + 1)];
                    states.clear();
                    states.extend_from_slice(workspace.hidden());
                    states.truncate(next.len() * core.model.config().model_dim);
                    self.predict(&mut workspace, cache, next, &states).map_err(failed)?;
                }
                start += piece.len();
                done += piece.len();
            }
            cache.clear();
            of_head.iter_mut().for_each(Sequence::clear);
        }
        // The run is complete: a `Break` changes nothing.
        let _ = progress(done, total);
        Ok((workspace.take_input_squares(), n_windows))
    }

    /// Runs the prediction head over tokens and the states before them, if there are any.
    fn predict(
        &self,
        workspace: &mut Workspace,
        cache: &mut Sequence,
        tokens: &[TokenId],
        states: &[f32],
    ) -> Result<(), ruvllm_models::Error> {
        if tokens.is_empty() {
            return Ok(());
        }
        let core = self.core();
        let segment = Segment::new(&core.compute, tokens, cache, LogitsRows::All)?;
        core.model.predict(&core.compute, workspace, [segment], states).map(|_| ())
    }

    /// A sequence of the prediction head, if the model has one, with an F32 cache in a page pool of
    /// its own.
    fn exact_head_sequence(&self, capacity: usize) -> Result<Option<Sequence>> {
        let Some(head) = self.core().model.prediction_head() else { return Ok(None) };
        let policy = KvPolicy::from(KvFormat::F32);
        let pool = kv_pool(head.config(), &policy, sequence_budget(head.config(), &policy, capacity))?;
        let store = head.kv_store(&policy, &pool);
        let sequence = store.and_then(|store| head.new_sequence(&store, capacity));
        sequence.map(Some).map_err(|source| Error::Cache { tokens: capacity, source })
    }
}
