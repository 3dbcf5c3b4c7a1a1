//! The state machine.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::config::Config;
use crate::request::{Refusal, Request, RequestId};

/// Tokens of one request in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// The request.
    pub id: RequestId,
    /// Tokens to compute, at least 1.
    pub tokens: usize,
    /// True if the step computes the last token that the request has: its logits give the next one.
    pub samples: bool,
}

/// Decides which tokens of which requests are computed in the next step.
#[derive(Debug)]
pub struct Scheduler {
    config: Config,
    waiting: VecDeque<Request>,
    running: Vec<RequestId>,
    states: HashMap<RequestId, State>,
}

#[derive(Debug)]
struct State {
    request: Request,
    /// Tokens whose keys and values are there.
    computed: usize,
    /// Tokens of the prompt and those generated.
    known: usize,
}

impl Scheduler {
    /// A scheduler without requests.
    pub fn new(config: Config) -> Self {
        Self { config, waiting: VecDeque::new(), running: Vec::new(), states: HashMap::new() }
    }

    /// Takes a request into the queue.
    ///
    /// # Errors
    /// [`Refusal`] if the queue is full or the deadline has passed.
    pub fn submit(&mut self, now: Duration, request: Request) -> Result<(), Refusal> {
        if let Some(late) = request.deadline.and_then(|deadline| now.checked_sub(deadline)) {
            return Err(Refusal::Late { late });
        }
        if self.waiting.len() >= self.config.max_waiting {
            return Err(Refusal::QueueFull { waiting: self.waiting.len(), retry_after: None });
        }
        self.waiting.push_back(request);
        Ok(())
    }

    /// Removes a waiting or running request; true if it was there.
    pub fn finished(&mut self, id: RequestId) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|request| request.id != id);
        self.running.retain(|&running| running != id);
        self.states.remove(&id).is_some() || self.waiting.len() < before
    }

    /// Removes a request whose deadline has passed, waiting or running.
    pub fn expire(&mut self, now: Duration) -> Option<RequestId> {
        let is_late = |request: &Request| request.deadline.is_some_and(|deadline| deadline <= now);
        let waiting = self.waiting.iter().find(|request| is_late(request)).map(|request| request.id);
        let running = || self.states.values().find(|state| is_late(&state.request)).map(|s| s.request.id);
        let id = waiting.or_else(running)?;
        self.finished(id);
        Some(id)
    }

    /// Starts the next waiting request, if `free_tokens` of KV cache suffice for its prompt and one
    /// token. Call [`started`](Self::started) before anything else.
    pub fn admit(&mut self, _now: Duration, free_tokens: usize) -> Option<RequestId> {
        if self.running.len() >= self.config.max_running {
            return None;
        }
        let next = self.waiting.front()?;
        if next.prompt_tokens >= free_tokens && !self.running.is_empty() {
            return None;
        }
        let request = self.waiting.pop_front()?;
        let id = request.id;
        self.states.insert(id, State { known: request.prompt_tokens, computed: 0, request });
        self.running.push(id);
        Some(id)
    }

    /// Says that an admitted request has `cached_tokens` from the prefix cache.
    pub fn started(&mut self, id: RequestId, cached_tokens: usize) {
        if let Some(state) = self.states.get_mut(&id) {
            state.computed = cached_tokens;
        }
    }

    /// Fills `step` with the tokens of each running request in the next step; decodes first.
    pub fn plan(&mut self, _now: Duration, step: &mut Vec<Work>) {
        step.clear();
        let mut left = self.config.step_tokens;
        for is_decode in [true, false] {
            for &id in &self.running {
                let Some(state) = self.states.get(&id) else { continue };
                let missing = state.known - state.computed;
                if (missing == 1) == is_decode && left > 0 {
                    let tokens = missing.min(left);
                    left -= tokens;
                    step.push(Work { id, tokens, samples: tokens == missing });
                }
            }
        }
    }

    /// Chooses the running request to preempt so that `short` can go on; `short` itself if it is
    /// the one that should yield.
    pub fn victim(&self, short: RequestId) -> RequestId {
        self.running.last().copied().unwrap_or(short)
    }

    /// Puts a running request back into the queue. Its tokens so far are then its prompt.
    pub fn preempted(&mut self, id: RequestId) {
        self.running.retain(|&running| running != id);
        if let Some(State { mut request, known, .. }) = self.states.remove(&id) {
            let generated = known - request.prompt_tokens;
            request.prompt_tokens = known;
            request.max_new_tokens = request.max_new_tokens.saturating_sub(generated);
            self.waiting.push_front(request);
        }
    }

    /// Says that `tokens` of a request were computed, and that `sampled` new ones are known.
    pub fn advanced(&mut self, id: RequestId, tokens: usize, sampled: usize) {
        if let Some(state) = self.states.get_mut(&id) {
            state.computed += tokens;
            state.known += sampled;
        }
    }

    /// Says how long a step took.
    pub fn observe(&mut self, _step: &[Work], _duration: Duration) {}

    /// Number of waiting requests.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Number of running requests.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// True if there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }
}
