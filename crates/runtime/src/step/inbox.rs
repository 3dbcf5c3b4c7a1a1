//! Mailbox of one request: the step loop puts text in, the caller takes it out.
//!
//! Text, ids and borders lie in buffers that change places between both sides, so that a running
//! request allocates nothing. A caller that does not read holds its own text back and nothing else.
//! Putting text in and waking the reader are separate: the loop decides when a wake-up is worth its
//! cost.

use std::fmt;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex, MutexGuard};
use ruvllm_text::TokenId;

use crate::error::{Error, Result};
use crate::request::Completion;
use crate::sampler::Logprobs;

/// Callback for the arrival of text or of the result.
type Notify = Arc<dyn Fn() + Send + Sync>;

/// Text and token ids in pieces.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    pub(super) text: String,
    pub(super) tokens: Vec<TokenId>,
    /// One for each of `tokens`, if the request asks for them; else empty.
    pub(super) logprobs: Vec<Logprobs>,
    /// Ends of the pieces in `text` and `tokens`.
    pub(super) ends: Vec<(usize, usize)>,
}

impl Pieces {
    fn clear(&mut self) {
        self.text.clear();
        self.tokens.clear();
        self.logprobs.clear();
        self.ends.clear();
    }
}

/// Mailbox of one request.
#[derive(Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    /// A piece or the result is there.
    arrived: Condvar,
    /// The result is there: who waits for nothing else is not woken by pieces.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    pieces: Pieces,
    /// The result until it is taken.
    end: Option<Result<Completion>>,
    /// True once there was a result.
    has_ended: bool,
    /// Log-probabilities of the prompt, once all are there and if the request asks for them.
    prompt_logprobs: Option<Arc<[Logprobs]>>,
    notify: Option<Notify>,
}

impl Inbox {
    /// Puts a piece of text, the ids that were generated since the last one, and their
    /// log-probabilities if the request asks for them. A reader that waits sleeps on until
    /// [`announce`](Self::announce).
    pub(super) fn push(&self, text: &str, tokens: &[TokenId], logprobs: &[Logprobs]) {
        let mut state = self.state.lock();
        let Pieces { text: all, tokens: ids, logprobs: all_logprobs, ends } = &mut state.pieces;
        all_logprobs.extend_from_slice(logprobs);
        all.push_str(text);
        ids.extend_from_slice(tokens);
        ends.push((all.len(), ids.len()));
    }

    /// Puts the log-probabilities of the prompt, before the first piece.
    pub(super) fn set_prompt_logprobs(&self, logprobs: Arc<[Logprobs]>) {
        self.state.lock().prompt_logprobs = Some(logprobs);
    }

    /// Log-probabilities of the prompt, once all are there.
    pub(super) fn prompt_logprobs(&self) -> Option<Arc<[Logprobs]>> {
        self.state.lock().prompt_logprobs.clone()
    }

    /// Puts the result; the first one counts.
    pub(super) fn end(&self, result: Result<Completion>) {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.has_ended, true) {
            state.end = Some(result);
            self.ended.notify_one();
            self.wake(state);
        }
    }

    /// Wakes the reader of pieces.
    pub(super) fn announce(&self) {
        self.wake(self.state.lock());
    }

    /// Wakes the reader of pieces, with the lock released: a callback may read at once.
    fn wake(&self, state: MutexGuard<'_, State>) {
        let notify = state.notify.clone();
        drop(state);
        self.arrived.notify_one();
        if let Some(notify) = notify {
            notify();
        }
    }

    /// Calls `notify` whenever something arrives, and now if something has.
    pub(super) fn set_notify(&self, notify: Notify) {
        let mut state = self.state.lock();
        let is_due = !state.pieces.ends.is_empty() || state.end.is_some();
        state.notify = Some(Arc::clone(&notify));
        drop(state);
        if is_due {
            notify();
        }
    }

    /// Exchanges read pieces for those that have arrived; with `wait`, waits for some. Gives the
    /// result once no piece comes before it.
    pub(super) fn take(&self, pieces: &mut Pieces, wait: bool) -> Option<Result<Completion>> {
        pieces.clear();
        let mut state = self.state.lock();
        while wait && state.pieces.ends.is_empty() && state.end.is_none() {
            self.arrived.wait(&mut state);
        }
        std::mem::swap(&mut state.pieces, pieces);
        if pieces.ends.is_empty() { state.end.take() } else { None }
    }

    /// Waits for the result and takes it; pieces stay.
    pub(super) fn wait_for_end(&self) -> Result<Completion> {
        let mut state = self.state.lock();
        while state.end.is_none() {
            self.ended.wait(&mut state);
        }
        state.end.take().unwrap_or(Err(Error::EngineStopped))
    }
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").finish_non_exhaustive()
    }
}
