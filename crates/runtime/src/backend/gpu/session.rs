//! Sequences of the GPU backend.

use std::ops::ControlFlow;

use ruvllm_adapters::{ScaledAdapter, kv_digest};
use ruvllm_gpu::Dispatch;
use ruvllm_kv_cache::prefix::{AdapterVersion, PrefixKey, Scope};
use ruvllm_text::TokenId;

use super::executor::{Executor, Ids, MAX_ROWS, Next, Passes, Place};
use super::launches::Pass;
use super::refusal::{NAME, device_error};
use super::states::{StatePool, StatePrefix};
use crate::backend::batch::PrefixSharing;
use crate::backend::sequence::BackendSession;
use crate::codec::TextCodec;
use crate::error::{Error, Result};
use crate::prefix::hex;

/// A sequence with its KV cache on the device.
///
/// Prompt tokens ([`prefill`](BackendSession::prefill), and [`forward`](BackendSession::forward) of
/// several) and single tokens are computed by different kernels (GEMM, GEMV): bits depend on that,
/// not on the division of a prompt into passes (ADR-0036).
#[derive(Debug)]
pub struct GpuSession<'b> {
    executor: &'b Executor,
    codec: &'b TextCodec,
    pub(super) place: Place,
    pub(super) len: usize,
    /// First tokens that the products of prompts have computed: their keys and values have the same
    /// bits in every sequence that begins with them.
    as_prompt: usize,
    capacity: usize,
    /// Digest of what keys and values depend on of the adapters.
    kv_digest: Option<[u8; 32]>,
    /// Stored prefix, of a sequence that has states and shares it.
    prefix: Option<StatePrefix>,
    logits: Vec<f32>, // [vocab_size] of the last pass
    /// Final hidden states of the end of the last prompt, `[states, model_dim]`.
    states: Vec<f32>,
}

impl<'b> GpuSession<'b> {
    /// A sequence of at most `capacity` tokens: empty, or with the longest stored prefix of a
    /// prompt, the last token left out.
    pub(super) fn new(
        executor: &'b Executor,
        codec: &'b TextCodec,
        capacity: usize,
        adapters: &[ScaledAdapter],
        prompt: Option<(&[TokenId], &PrefixSharing<'_>)>,
    ) -> Result<Self> {
        let (kv_digest, adapters) = (kv_digest(adapters), executor.passes().lease(executor, adapters)?);
        let (blocks, long) = (&executor.pool.blocks, executor.angles.is_long(capacity));
        let key = |sharing| prefix_key(sharing, executor, long, kv_digest);
        let pool = &executor.pool;
        let state = pool.states.as_ref().map(StatePool::lease).transpose().map_err(no_state)?;
        let no_room = |room| no_room(format!("make a sequence of {capacity} tokens"))(room);
        let mut prefix = None;
        let (lease, len) = match (prompt, &state) {
            (None, _) => (blocks.lease(capacity, executor).map_err(no_room)?, 0),
            (Some((prompt, sharing)), None) => blocks
                .lease_with_prefix(capacity, &key(sharing), prompt, sharing.min_tokens, executor)
                .map_err(no_room)?,
            (Some((prompt, sharing)), Some(state)) => {
                let key = key(sharing);
                let taken = blocks.lease_with_state(capacity, &key, prompt, sharing.min_tokens, executor);
                let (lease, known) = taken.map_err(no_room)?;
                let (of_key, begun) = ((key, sharing.shared_tokens), (known.tokens, known.blocks));
                prefix = Some(StatePrefix::new(of_key, prompt, begun, (state, blocks.block_tokens())));
                if let Some(stored) = known.state {
                    state.begin(known.tokens, stored);
                }
                (lease, known.tokens)
            }
        };
        let place = Place { id: executor.passes().next_sequence(), lease, long, adapters, state };
        let (as_prompt, logits, states) = (len, Vec::new(), Vec::new());
        Ok(Self { executor, codec, place, len, as_prompt, capacity, kv_digest, prefix, logits, states })
    }

    /// Stores those of the first `tokens`, the sequence's own, that were computed as a prompt. In
    /// models whose layers keep a state its passes have done that at the borders.
    pub(super) fn keep_prefix(&self, tokens: &[TokenId], sharing: &PrefixSharing<'_>) {
        if self.place.state.is_some() {
            return;
        }
        let tokens = &tokens[..tokens.len().min(self.as_prompt)];
        let key = prefix_key(sharing, self.executor, self.place.long, self.kv_digest);
        self.executor.pool.blocks.keep(&self.place.lease, &key, tokens, sharing.shared_tokens);
    }

    /// Counts tokens up to `end` that the products of prompts have computed.
    fn prefilled(&mut self, end: usize) {
        if self.as_prompt == self.len {
            self.as_prompt = end;
        }
        self.len = end;
        if let (Some(prefix), Some(state)) = (&self.prefix, &self.place.state) {
            prefix.keep(&self.executor.pool.blocks, (&self.place.lease, state), self.as_prompt);
        }
    }

    /// Shares the rest of a prompt whose first tokens are those of the sequence, in models whose
    /// layers keep a state: nothing with `None`, and behind generated tokens.
    pub(super) fn share(&mut self, prompt: &[TokenId], sharing: Option<&PrefixSharing<'_>>) {
        let Some(state) = &self.place.state else { return };
        state.plan(Vec::new());
        self.prefix = sharing.filter(|_| self.as_prompt == self.len).map(|sharing| {
            let key = prefix_key(sharing, self.executor, self.place.long, self.kv_digest);
            let block_tokens = self.executor.pool.blocks.block_tokens();
            let of_key = (key, sharing.shared_tokens);
            StatePrefix::new(of_key, prompt, (self.len, self.len), (state, block_tokens))
        });
    }

    /// Notes tokens that are computed as a prompt now, in models whose layers keep a state.
    fn note_prompt(&mut self, tokens: &[TokenId]) {
        if let Some(prefix) = &mut self.prefix
            && self.as_prompt == self.len
        {
            prefix.append(self.len, tokens);
        }
    }

    /// Forgets the tokens behind the first `len`, and their states; returns the number of tokens
    /// that have a state behind them.
    fn cut_states(&mut self, len: usize) -> usize {
        if let Some(prefix) = &mut self.prefix {
            prefix.truncate(len);
        }
        self.place.state.as_ref().map_or(len, |state| state.cut(len))
    }

    /// Appends `prompt`, at least one token, then decodes up to `n` tokens greedily. Each is passed
    /// to `on_token`; `Break` ends it. The argmax is computed on the device, 4 bytes are read back
    /// per token, and a step starts before the token of the previous one has arrived.
    ///
    /// The last token passed is not appended to the sequence. Other sequences wait meanwhile:
    /// `on_token` must not use any sequence of this backend.
    ///
    /// # Errors
    /// As [`forward`](BackendSession::forward).
    pub fn greedy(
        &mut self,
        prompt: &[TokenId],
        n: usize,
        on_token: &mut dyn FnMut(TokenId) -> ControlFlow<()>,
    ) -> Result<()> {
        self.check(prompt, n.saturating_sub(1))?;
        if n == 0 {
            return self.forward(prompt).map(|_| ());
        }
        // Its passes are not waited for before the next one takes slots of states.
        self.share(prompt, None);
        let (executor, end) = (self.executor, self.len + prompt.len());
        let mut passes = executor.passes();
        let start = self.len;
        let (pass, _) = self.last_pass(&mut passes, prompt)?;
        let action = || format!("compute positions {start}..{}", end + n - 1);
        let mut reading = passes.start_argmax(executor, &pass, Ids::All).map_err(failed(action()))?;
        self.prefilled(end);
        for step in 1..=n {
            // The next step reads its token on the device.
            let next = if step < n {
                let next = Next { place: &self.place, position: Some(end + step - 1), token: None };
                let pass = passes.decode(executor, &[next]);
                let started = pass.and_then(|pass| passes.start_argmax(executor, &pass, Ids::All));
                Some(started.map_err(failed(action()))?)
            } else {
                None
            };
            let tokens = passes.finish_argmax(executor, reading).map_err(failed(action()))?;
            self.len = end + step - 1;
            let go_on = on_token(tokens[0].ok_or(Error::NoCandidate)?);
            match next {
                Some(next) if go_on.is_continue() => reading = next,
                Some(next) => {
                    passes.finish_argmax(executor, next).map_err(failed(action()))?;
                    break;
                }
                None => break,
            }
        }
        Ok(())
    }

    /// Tokens for which there is room.
    pub(super) fn room(&self) -> usize {
        self.capacity - self.len
    }

    /// Prepares passes for short and long prompts and contexts.
    pub(super) fn prepare_sizes(&self) -> Result<()> {
        let mut passes = self.executor.passes();
        passes
            .prepare_sizes(self.executor, &self.place, self.capacity)
            .map_err(failed("prepare passes".into()))
    }

    /// Checks that `tokens` and `more` further tokens can be appended.
    pub(super) fn check(&self, tokens: &[TokenId], more: usize) -> Result<()> {
        if tokens.is_empty() {
            let source = ruvllm_models::Error::EmptySegment { segment: 0 };
            return Err(Error::Forward { start: self.len, tokens: 0, source });
        }
        self.codec.check_tokens(tokens)?;
        let end = self.len.saturating_add(tokens.len()).saturating_add(more);
        if end > self.capacity {
            let (what, model_context) = ("the sequence".to_owned(), self.capacity);
            return Err(Error::ContextTooLong { what, tokens: end, model_context });
        }
        Ok(())
    }

    /// Runs all passes of checked prompt tokens but the last, whose inputs it writes; returns that,
    /// and its number of tokens.
    fn last_pass(
        &mut self,
        passes: &mut Passes,
        tokens: &[TokenId],
    ) -> Result<(std::sync::Arc<Pass>, usize)> {
        let mut rest = tokens;
        loop {
            let (rows, n) = passes.prefill_rows(self.executor, self.len, rest.len().min(MAX_ROWS as usize));
            let (now, later) = rest.split_at(n);
            let end = self.len + n;
            let action = format!("compute positions {}..{end}", self.len);
            let pass = passes.prefill(self.executor, &self.place, self.len, now, rows);
            let pass = pass.map_err(failed(action.clone()))?;
            if later.is_empty() {
                return Ok((pass, n));
            }
            let list: Vec<&Dispatch> = pass.keys.iter().collect();
            let run = self.executor.gpu.run(&list);
            self.settle(run, action)?;
            self.prefilled(end);
            rest = later;
        }
    }

    /// Converts the result of a pass. A prompt that failed may have changed a state: the sequence
    /// begins again then.
    fn settle(&mut self, result: ruvllm_gpu::Result<()>, action: String) -> Result<()> {
        if result.is_err() && self.place.state.is_some() {
            (self.len, self.as_prompt) = (0, 0);
            self.cut_states(0);
        }
        result.map_err(failed(action))
    }

    /// Appends checked prompt tokens without computing logits.
    fn advance(&mut self, tokens: &[TokenId]) -> Result<()> {
        let (executor, start) = (self.executor, self.len);
        let mut passes = executor.passes();
        let (pass, _) = self.last_pass(&mut passes, tokens)?;
        let action = format!("compute positions {start}..{}", start + tokens.len());
        let run = executor.gpu.run(&pass.keys.iter().collect::<Vec<_>>());
        self.settle(run, action)?;
        self.prefilled(start + tokens.len());
        Ok(())
    }

    /// Appends checked tokens and stores the logits of the last one, and final hidden states of the
    /// last `most` tokens of a prompt's last pass. `decode`: a single token is a decode step, not a
    /// prompt.
    fn compute(&mut self, tokens: &[TokenId], decode: bool, most: usize) -> Result<()> {
        let (executor, end) = (self.executor, self.len + tokens.len());
        let mut passes = executor.passes();
        let action = format!("compute positions {}..{end}", self.len);
        let decode = decode && tokens.len() == 1;
        let (pass, n) = match tokens {
            &[token] if decode => {
                let next = Next { place: &self.place, position: Some(self.len), token: Some(token) };
                (passes.decode(executor, &[next]).map_err(failed(action.clone()))?, 1)
            }
            _ => self.last_pass(&mut passes, tokens)?,
        };
        let (logits, states) = (&mut self.logits, &mut self.states);
        let copy = |values: &[f32], hidden: &[f32]| {
            for (kept, found) in [(logits, values), (states, hidden)] {
                kept.clear();
                kept.extend_from_slice(found);
            }
        };
        let launches: Vec<&Dispatch> = pass.launches().collect();
        let copied = passes.logits(executor, &pass, &launches, (1, n.saturating_sub(most)..n), copy);
        self.settle(copied, action)?;
        if let Some(cap) = executor.config.decoder.logits_soft_cap {
            soft_cap(&mut self.logits, cap);
        }
        if decode {
            self.len = end;
        } else {
            self.prefilled(end);
        }
        Ok(())
    }
}

impl BackendSession for GpuSession<'_> {
    fn len(&self) -> usize {
        self.len
    }

    fn forward(&mut self, tokens: &[TokenId]) -> Result<&[f32]> {
        self.check(tokens, 0)?;
        if tokens.len() > 1 {
            self.note_prompt(tokens);
        }
        self.compute(tokens, true, 0)?;
        Ok(&self.logits)
    }

    /// Layers with a state keep the tokens before one that is there: of the last pass, or stored.
    fn truncate(&mut self, len: usize) -> Result<usize> {
        let (before, mut len) = (self.len, self.len.min(len));
        if let Some(state) = self.place.state.as_ref().filter(|_| len < before) {
            len = state.floor(len);
        }
        loop {
            let action = format!("go on behind {len} tokens");
            let unshared = self.executor.pool.blocks.unshare(&mut self.place.lease, len, self.executor);
            if let Some(kept) = unshared.map_err(no_room(action))? {
                // Block tables on the device are those of a number.
                self.place.id = self.executor.passes().next_sequence();
                len = kept;
            }
            self.len = len;
            self.as_prompt = self.as_prompt.min(len);
            if len < before {
                len = self.cut_states(len);
            }
            if len == self.len {
                return Ok(len);
            }
        }
    }

    fn prefill(
        &mut self,
        tokens: &[TokenId],
        chunk: usize,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Option<&[f32]>> {
        Ok(self.prefill_with_states(tokens, chunk, 0, go_on)?.map(|(logits, _)| logits))
    }

    /// States of a model with a prediction head, of the tokens of the last pass.
    fn prefill_with_states(
        &mut self,
        tokens: &[TokenId],
        chunk: usize,
        most: usize,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Option<(&[f32], &[f32])>> {
        self.check(tokens, 0)?;
        self.note_prompt(tokens);
        let mut rest = tokens;
        loop {
            if go_on().is_break() {
                return Ok(None);
            }
            let (pass, later) = rest.split_at(rest.len().min(chunk.max(1)));
            if later.is_empty() {
                self.compute(pass, false, most)?;
                return Ok(Some((&self.logits, &self.states)));
            }
            self.advance(pass)?;
            rest = later;
        }
    }

    fn greedy(
        &mut self,
        prompt: &[TokenId],
        n: usize,
        on_token: &mut dyn FnMut(TokenId) -> ControlFlow<()>,
    ) -> Result<()> {
        GpuSession::greedy(self, prompt, n, on_token)
    }
}

/// Key of the prefixes of a tenant, apart by RoPE frequencies and adapters.
fn prefix_key(
    sharing: &PrefixSharing<'_>,
    executor: &Executor,
    long: bool,
    adapter: Option<[u8; 32]>,
) -> PrefixKey {
    PrefixKey {
        // The prefixes end with the backend, which has one model and one format.
        model: [0; 32],
        adapter: adapter.map(|digest| AdapterVersion { id: hex(&digest).into(), version: 0 }),
        kv_format: executor.pool.format.name().into(),
        rope_scaling: if long { "long" } else { "usual" }.into(),
        scope: Scope::Tenant(sharing.tenant.into()),
    }
}

/// Error of a sequence that has no room in the KV cache.
pub(super) fn no_room(action: String) -> impl FnOnce(usize) -> Error {
    move |room| Error::Backend {
        backend: NAME.to_owned(),
        action,
        source: format!("the KV cache on the device has room for {room}; raise GpuOptions::kv_tokens").into(),
    }
}

/// Error of a sequence for whose states there is no slot: `sequences` have all.
fn no_state(sequences: usize) -> Error {
    Error::Backend {
        backend: NAME.to_owned(),
        action: "make a sequence".to_owned(),
        source: format!(
            "the device has states for {sequences} sequences at a time; raise GpuOptions::sequences"
        )
        .into(),
    }
}

/// `cap * tanh(x / cap)` of each value, as the engine computes it.
pub(super) fn soft_cap(logits: &mut [f32], cap: f32) {
    let cap = f64::from(cap);
    for value in logits {
        *value = (cap * (f64::from(*value) / cap).tanh()) as f32;
    }
}

/// Error of a failed device operation.
pub(super) fn failed(action: String) -> impl FnOnce(ruvllm_gpu::Error) -> Error {
    move |error| device_error(action, error)
}
