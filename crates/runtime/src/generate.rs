//! Text generation: prefill in chunks, then one token after the other, each shown as soon as it can
//! be.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use ruvllm_kernels::Kernels;
use ruvllm_text::TokenId;
use ruvllm_text::tokenizer::TokenStream;

use crate::backend::sequence::BackendSession;
use crate::cancel::CancelToken;
use crate::codec::TextCodec;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::options::check_pressure;
use crate::request::{Completion, FinishReason, GenerateRequest, Timings};
use crate::sampler::Sampler;
use crate::session::Session;
use crate::stop::StopMatcher;

impl Engine {
    /// Generates text for one request.
    ///
    /// `on_text` gets each piece of text as soon as it is certain: whole characters that belong to
    /// no stop string. The pieces joined are the completion's text. Returning `Break` ends the
    /// generation, as `cancel` does from outside; what was generated until then is still returned,
    /// with [`FinishReason::Cancelled`].
    ///
    /// The generation ends with [`FinishReason::Length`] when the sequence fills the context. The
    /// last token of such a sequence is sampled but no longer computed, so a prompt of exactly the
    /// context's length gives one token.
    ///
    /// # Errors
    /// [`Error::PromptTooLong`] and those of [`Engine::encode_prompt`], [`Sampler::new`] and
    /// [`StopMatcher::new`] before anything is computed; [`Error::Cancelled`] while a chat is
    /// rendered; [`Error::Cache`], [`Error::Forward`], [`Error::NoCandidate`] and [`Error::Decode`]
    /// from the run.
    pub fn generate(
        &self,
        request: &GenerateRequest,
        cancel: &CancelToken,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Completion> {
        let prepared = self.prepare(request, cancel)?;
        let mut session = Session::for_request(self, request, prepared.capacity())?;
        self.run(prepared, &mut session, &[], cancel, on_text).map(|(completion, _)| completion)
    }

    /// Checks a request and encodes its prompt.
    pub(crate) fn prepare<'r>(
        &'r self,
        request: &'r GenerateRequest,
        cancel: &CancelToken,
    ) -> Result<Prepared<'r>> {
        let has_files = self.prefixes.as_ref().is_some_and(|prefixes| prefixes.has_files());
        check_pressure(self.pressure_of(request), has_files)?;
        let facts = Facts {
            codec: &self.codec,
            kernels: self.kernels(),
            context: self.context_length(),
            model_context: self.config().context_length,
            prefill_chunk: self.prefill_chunk,
        };
        Prepared::new(facts, request, cancel)
    }

    /// Runs a request on a sequence whose tokens are `present`, and keeps what others can begin
    /// with; gives the tokens that the sequence has then as well.
    pub(crate) fn run(
        &self,
        prepared: Prepared<'_>,
        session: &mut Session<'_>,
        present: &[TokenId],
        cancel: &CancelToken,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<(Completion, Vec<TokenId>)> {
        let shared_tokens = prepared.request.shared_tokens.min(prepared.prompt.len());
        let (mut completion, known) = prepared.run(session, present, cancel, on_text)?;
        session.keep(&known, shared_tokens);
        session.remember_quality(&self.quality);
        completion.kv_quality = session.kv_quality();
        completion.dropped_tokens = session.dropped_tokens();
        Ok((completion, known))
    }
}

/// Properties of a backend that a generation depends on.
pub(crate) struct Facts<'b> {
    pub(crate) codec: &'b TextCodec,
    /// The kernels of the sampler.
    pub(crate) kernels: Kernels,
    /// Tokens that a sequence can have.
    pub(crate) context: usize,
    /// Tokens that the model was made for.
    pub(crate) model_context: usize,
    pub(crate) prefill_chunk: usize,
}

/// A request that was checked: all that it needs but a sequence.
pub(crate) struct Prepared<'r> {
    request: &'r GenerateRequest,
    codec: &'r TextCodec,
    /// Tokens that a sequence can have.
    context: usize,
    prefill_chunk: usize,
    started: Instant,
    sampler: Sampler,
    matcher: StopMatcher,
    pub(crate) prompt: Vec<TokenId>,
    limit: usize,
}

impl<'r> Prepared<'r> {
    /// Checks a request and encodes its prompt.
    pub(crate) fn new(facts: Facts<'r>, request: &'r GenerateRequest, cancel: &CancelToken) -> Result<Self> {
        let started = Instant::now();
        let Facts { codec, kernels, context, model_context, prefill_chunk } = facts;
        let sampler = Sampler::new(kernels, &request.sampling, codec.sampled_ids())?;
        let matcher = StopMatcher::new(request.stop.iter().cloned())?;
        let prompt = codec.encode_prompt_until(&request.prompt, cancel)?;
        if prompt.len() > context {
            return Err(Error::PromptTooLong { prompt_tokens: prompt.len(), context, model_context });
        }
        let limit = request.max_tokens.unwrap_or(usize::MAX);
        Ok(Self { request, codec, context, prefill_chunk, started, sampler, matcher, prompt, limit })
    }

    /// Most tokens that the sequence can come to have.
    pub(crate) fn capacity(&self) -> usize {
        self.context.min(self.prompt.len().saturating_add(self.limit))
    }

    /// Runs the request on a sequence whose tokens are `present`; gives the tokens that it has then
    /// as well.
    pub(crate) fn run(
        self,
        session: &mut dyn BackendSession,
        present: &[TokenId],
        cancel: &CancelToken,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<(Completion, Vec<TokenId>)> {
        let Self { request, codec, context, prefill_chunk, started, sampler, matcher, prompt, limit } = self;
        let mut generation = Generation {
            codec,
            session,
            sampler,
            output: Output {
                stream: Some(codec.stream_after(&request.prompt)),
                matcher,
                piece: String::new(),
                text: String::new(),
                on_text,
            },
            tokens: Vec::new(),
            limit: Limit { tokens: limit, context, prefill_chunk },
            ignore_eos: request.ignore_eos,
            clock: Clock::new(started),
            cached: 0,
        };
        let finish_reason = generation.run(present, &prompt, cancel)?;
        let Generation { session, sampler, output, tokens, clock, cached, .. } = generation;
        let known = if limit == 0 {
            present.to_vec()
        } else {
            prompt.iter().chain(&tokens).copied().take(session.len()).collect()
        };
        let completion = Completion {
            kv_quality: None,
            dropped_tokens: 0,
            timings: clock.timings(prompt.len() - cached),
            seed: sampler.seed(),
            text: output.text,
            tokens,
            prompt_tokens: prompt.len(),
            cached_tokens: cached,
            finish_reason,
        };
        Ok((completion, known))
    }
}

/// The state of one running generation.
struct Generation<'a> {
    codec: &'a TextCodec,
    session: &'a mut dyn BackendSession,
    sampler: Sampler,
    output: Output<'a>,
    tokens: Vec<TokenId>,
    limit: Limit,
    ignore_eos: bool,
    clock: Clock,
    /// Tokens of the prompt that earlier requests have computed.
    cached: usize,
}

/// Token limits of a generation.
struct Limit {
    /// Generated ones.
    tokens: usize,
    /// In the sequence.
    context: usize,
    /// In a pass of the prefill.
    prefill_chunk: usize,
}

impl Generation<'_> {
    fn run(&mut self, present: &[TokenId], prompt: &[TokenId], cancel: &CancelToken) -> Result<FinishReason> {
        if self.limit.tokens == 0 {
            return Ok(FinishReason::Length);
        }
        for &token in prompt {
            self.sampler.accept(token);
        }
        let go_on =
            &mut || if cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        let ids = self.codec.sampled_ids();
        let prefill_started = Instant::now();
        self.cached = self.session.begin(present, prompt)?;
        let rest = &prompt[self.cached..];
        let Some(logits) = self.session.prefill(rest, self.limit.prefill_chunk, go_on)? else {
            return Ok(FinishReason::Cancelled);
        };
        self.clock.prefill = Some(prefill_started.elapsed());
        let mut token = self.sampler.sample(&logits[..ids], prompt.len())?;
        self.clock.first_token();
        loop {
            if let Some(reason) = self.take(token)? {
                return Ok(reason);
            }
            if cancel.is_cancelled() {
                return Ok(self.output.finish(FinishReason::Cancelled));
            }
            let logits = self.session.forward(&[token])?;
            token = self.sampler.sample(&logits[..ids], prompt.len() + self.tokens.len())?;
            self.clock.next_token();
        }
    }

    /// Adds a sampled token to the output; a reason means that it was the last one.
    fn take(&mut self, token: TokenId) -> Result<Option<FinishReason>> {
        if !self.ignore_eos && self.codec.tokenizer().is_end_of_generation(token) {
            return Ok(Some(self.output.finish(FinishReason::Stop)));
        }
        self.tokens.push(token);
        self.sampler.accept(token);
        if let Some(reason) = self.output.push(token)? {
            return Ok(Some(reason));
        }
        if self.tokens.len() >= self.limit.tokens || self.session.len() >= self.limit.context {
            return Ok(Some(self.output.finish(FinishReason::Length)));
        }
        Ok(None)
    }
}

/// From ids to the text that the caller sees: characters, then stop strings, then the callback.
struct Output<'a> {
    stream: Option<TokenStream<'a>>, // none once it has ended
    matcher: StopMatcher,
    piece: String, // released last by the matcher
    text: String,  // passed to the callback
    on_text: &'a mut dyn FnMut(&str) -> ControlFlow<()>,
}

impl Output<'_> {
    /// Shows what a token makes certain; a reason means that the generation ends with it.
    fn push(&mut self, token: TokenId) -> Result<Option<FinishReason>> {
        let Some(stream) = &mut self.stream else { return Ok(None) };
        let characters = stream.push(token).map_err(|source| Error::Decode { token, source })?;
        self.piece.clear();
        let stopped = self.matcher.push(characters, &mut self.piece).is_some();
        let shown = self.show();
        Ok(if stopped {
            Some(FinishReason::Stop)
        } else {
            shown.is_break().then_some(FinishReason::Cancelled)
        })
    }

    /// Shows what was held back: an unfinished character, the beginning of a stop string. The end
    /// of the text is the reason's, unless the last characters complete a stop string.
    fn finish(&mut self, reason: FinishReason) -> FinishReason {
        let rest = self.stream.take().map(TokenStream::finish).unwrap_or_default();
        self.piece.clear();
        let stopped = self.matcher.push(&rest, &mut self.piece).is_some();
        self.matcher.finish(&mut self.piece);
        // A break has nothing left to end here.
        let _ = self.show();
        if stopped { FinishReason::Stop } else { reason }
    }

    fn show(&mut self) -> ControlFlow<()> {
        if self.piece.is_empty() {
            return ControlFlow::Continue(());
        }
        self.text.push_str(&self.piece);
        (self.on_text)(&self.piece)
    }
}

/// The times of one generation.
struct Clock {
    started: Instant,
    prefill: Option<Duration>,
    first: Option<Instant>,
    last: Option<Instant>,
    decoded: usize, // tokens after the first
}

impl Clock {
    fn new(started: Instant) -> Self {
        Self { started, prefill: None, first: None, last: None, decoded: 0 }
    }

    fn first_token(&mut self) {
        self.first = Some(Instant::now());
    }

    fn next_token(&mut self) {
        self.last = Some(Instant::now());
        self.decoded += 1;
    }

    fn timings(&self, prompt_tokens: usize) -> Timings {
        let per_second = |tokens: usize, time: Duration| tokens as f64 / time.as_secs_f64().max(1e-9);
        Timings {
            ttft_ms: self.first.map(|first| (first - self.started).as_secs_f64() * 1e3),
            prefill_tok_s: self.prefill.map(|time| per_second(prompt_tokens, time)),
            decode_tok_s: self
                .first
                .zip(self.last)
                .map(|(first, last)| per_second(self.decoded, last - first)),
        }
    }
}
