//! Squared inputs of the weight matrices over a text, for an importance matrix.

use std::ops::ControlFlow;

use ruvllm_models::{InputSquares, LogitsRows, Segment, Workspace};
use ruvllm_text::TokenId;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::evaluate::check_window;

impl Engine {
    /// Sums the squared inputs of every product over a text, given as token ids; returns them with
    /// the number of windows.
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
        let mut workspace = Workspace::new();
        workspace.observe_inputs();
        let core = self.core();
        let mut done = 0;
        for window in windows {
            for piece in window.chunks(self.scored_at_once()) {
                if progress(done, total).is_break() {
                    return Err(Error::Cancelled);
                }
                // All rows: without their logits the last layer would see a few only.
                Segment::new(&core.compute, piece, &mut cache, LogitsRows::All)
                    .and_then(|segment| core.model.forward(&core.compute, &mut workspace, [segment]))
                    .map_err(|source| Error::Forward { start: done, tokens: piece.len(), source })?;
                done += piece.len();
            }
            cache.clear();
        }
        // The run is complete: a `Break` changes nothing.
        let _ = progress(done, total);
        Ok((workspace.take_input_squares(), n_windows))
    }
}
