//! Text generation: chunked prefill, then decode. [`Generation`] computes one token per call, so
//! that callback and iterator share the code.

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
    /// Generates text for a prompt or a [`GenerateRequest`] and returns the result at the end.
    ///
    /// A reference to a request is accepted as well and cloned.
    ///
    /// # Errors
    /// As [`generate_with`](Self::generate_with).
    ///
    /// # Examples
    /// ```no_run
    /// use ruvllm::{Engine, GenerateRequest};
    ///
    /// let engine = Engine::open("model.gguf")?;
    /// println!("{}", engine.generate("Once upon a time")?.text);
    /// let request = GenerateRequest::new("The capital of France is").with_max_tokens(8);
    /// println!("{}", engine.generate(request)?.text);
    /// # Ok::<(), ruvllm::Error>(())
    /// ```
    pub fn generate(&self, request: impl Into<GenerateRequest>) -> Result<Completion> {
        self.generate_with(&request.into(), &CancelToken::new(), &mut |_| ControlFlow::Continue(()))
    }

    /// Generates text for one request, with a callback and cancellation.
    ///
    /// `on_text` gets each piece of text as soon as it is certain: whole characters outside of stop
    /// sequences. The pieces joined are the completion's text. `Break` ends the generation as
    /// `cancel` does; the text generated so far is returned with [`FinishReason::Cancelled`].
    /// [`stream`](Self::stream) yields the same pieces as an iterator.
    ///
    /// The generation ends with [`FinishReason::Length`] when the sequence fills the context. The
    /// last token is sampled without a forward pass of its own, so a prompt of exactly the context
    /// length gives one token.
    ///
    /// # Errors
    /// [`Error::PromptTooLong`] and those of [`Engine::encode_prompt`], [`Sampler::new`] and
    /// [`StopMatcher::new`] before anything is computed; [`Error::Cancelled`] while a chat is
    /// rendered; [`Error::Cache`], [`Error::Forward`], [`Error::NoCandidate`] and [`Error::Decode`]
    /// from the run.
    pub fn generate_with(
        &self,
        request: &GenerateRequest,
        cancel: &CancelToken,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Completion> {
        let prepared = self.prepare(request, cancel)?;
        let mut session = Session::for_request(self, request, prepared.capacity())?;
        self.run(prepared, &mut session, Vec::new(), cancel, on_text).map(|(completion, _)| completion)
    }

    /// Checks a request and encodes its prompt.
    pub(crate) fn prepare(&self, request: &GenerateRequest, cancel: &CancelToken) -> Result<Prepared<'_>> {
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

    /// Runs a request on a sequence with tokens `present` and inserts it into the prefix cache;
    /// returns the completion and the sequence's tokens.
    pub(crate) fn run(
        &self,
        prepared: Prepared<'_>,
        session: &mut Session<'_>,
        present: Vec<TokenId>,
        cancel: &CancelToken,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<(Completion, Vec<TokenId>)> {
        let mut generation = Generation::new(prepared, present);
        let reason = generation.run(session, cancel, on_text)?;
        Ok(self.complete(generation, reason, session))
    }

    /// Result of an ended generation, and the sequence's tokens; the sequence enters the prefix
    /// cache.
    pub(crate) fn complete(
        &self,
        generation: Generation<'_>,
        reason: FinishReason,
        session: &mut Session<'_>,
    ) -> (Completion, Vec<TokenId>) {
        let shared_tokens = generation.shared_tokens();
        let (mut completion, known) = generation.complete(reason, &*session);
        session.keep(&known, shared_tokens);
        session.remember_quality(&self.quality);
        completion.kv_quality = session.kv_quality();
        completion.dropped_tokens = session.dropped_tokens();
        (completion, known)
    }
}

/// Properties of a backend that a generation depends on.
pub(crate) struct Facts<'b> {
    pub(crate) codec: &'b TextCodec,
    /// Kernels of the sampler.
    pub(crate) kernels: Kernels,
    /// Context length in tokens.
    pub(crate) context: usize,
    /// Context length of the model.
    pub(crate) model_context: usize,
    pub(crate) prefill_chunk: usize,
}

/// A checked request with its encoded prompt, without a sequence.
pub(crate) struct Prepared<'c> {
    codec: &'c TextCodec,
    started: Instant,
    sampler: Sampler,
    stream: TokenStream<'c>,
    matcher: StopMatcher,
    pub(crate) prompt: Vec<TokenId>,
    shared_tokens: usize,
    limit: Limit,
    ignore_eos: bool,
}

impl<'c> Prepared<'c> {
    /// Checks a request and encodes its prompt.
    pub(crate) fn new(facts: Facts<'c>, request: &GenerateRequest, cancel: &CancelToken) -> Result<Self> {
        let started = Instant::now();
        let Facts { codec, kernels, context, model_context, prefill_chunk } = facts;
        let sampler = Sampler::new(kernels, &request.sampling, codec.sampled_ids())?;
        let matcher = StopMatcher::new(request.stop.iter().cloned())?;
        let prompt = codec.encode_prompt_until(&request.prompt, cancel)?;
        if prompt.len() > context {
            return Err(Error::PromptTooLong { prompt_tokens: prompt.len(), context, model_context });
        }
        Ok(Self {
            codec,
            started,
            sampler,
            stream: codec.stream_after(&request.prompt),
            matcher,
            prompt,
            shared_tokens: request.shared_tokens,
            limit: Limit { tokens: request.max_tokens.unwrap_or(usize::MAX), context, prefill_chunk },
            ignore_eos: request.ignore_eos,
        })
    }

    /// Maximum length of the sequence in tokens.
    pub(crate) fn capacity(&self) -> usize {
        self.limit.context.min(self.prompt.len().saturating_add(self.limit.tokens))
    }
}

/// State of a running generation. The sequence is an argument of each call, so that an owner of
/// both needs no self-reference.
pub(crate) struct Generation<'c> {
    codec: &'c TextCodec,
    sampler: Sampler,
    output: Output<'c>,
    /// Tokens of the sequence before the prefill.
    present: Vec<TokenId>,
    prompt: Vec<TokenId>,
    shared_tokens: usize,
    tokens: Vec<TokenId>,
    limit: Limit,
    ignore_eos: bool,
    clock: Clock,
    /// Prompt tokens served from the prefix cache or an earlier turn.
    cached: usize,
}

/// Token limits of a generation.
struct Limit {
    /// Maximum number of generated tokens.
    tokens: usize,
    /// Maximum length of the sequence.
    context: usize,
    /// Tokens per prefill pass.
    prefill_chunk: usize,
}

/// A sampled token, or the reason that the generation has ended.
type Sampled = ControlFlow<FinishReason, TokenId>;

impl<'c> Generation<'c> {
    /// A new generation on a sequence with tokens `present`.
    pub(crate) fn new(prepared: Prepared<'c>, present: Vec<TokenId>) -> Self {
        let Prepared { codec, started, sampler, stream, matcher, prompt, shared_tokens, limit, ignore_eos } =
            prepared;
        let output = Output { stream: Some(stream), matcher, piece: String::new(), text: String::new() };
        Self {
            codec,
            sampler,
            output,
            present,
            prompt,
            shared_tokens,
            tokens: Vec::new(),
            limit,
            ignore_eos,
            clock: Clock::new(started),
            cached: 0,
        }
    }

    /// Runs to the end, or until `on_text` breaks.
    pub(crate) fn run(
        &mut self,
        session: &mut dyn BackendSession,
        cancel: &CancelToken,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<FinishReason> {
        loop {
            let reason = self.advance(session, cancel)?;
            let shown =
                if self.piece().is_empty() { ControlFlow::Continue(()) } else { on_text(self.piece()) };
            match reason {
                // The generation has ended; a `Break` of the callback changes nothing.
                Some(reason) => return Ok(reason),
                None if shown.is_break() => return Ok(FinishReason::Cancelled),
                None => {}
            }
        }
    }

    /// Computes the next token, the first time after the prefill. [`piece`](Self::piece) is the
    /// text that it released. Returns the reason if the generation has ended.
    pub(crate) fn advance(
        &mut self,
        session: &mut dyn BackendSession,
        cancel: &CancelToken,
    ) -> Result<Option<FinishReason>> {
        self.output.piece.clear();
        let sampled = match self.tokens.last() {
            None => self.prefill(session, cancel)?,
            Some(&token) => self.decode(token, session, cancel)?,
        };
        match sampled {
            ControlFlow::Continue(token) => self.take(token),
            ControlFlow::Break(reason) => Ok(Some(reason)),
        }
    }

    /// Text released by the last [`advance`](Self::advance); may be empty.
    pub(crate) fn piece(&self) -> &str {
        &self.output.piece
    }

    /// Generated token ids so far.
    pub(crate) fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// First tokens of the prompt whose prefix is shared by all tenants.
    fn shared_tokens(&self) -> usize {
        self.shared_tokens.min(self.prompt.len())
    }

    /// The result, and the sequence's tokens.
    pub(crate) fn complete(
        self,
        finish_reason: FinishReason,
        session: &dyn BackendSession,
    ) -> (Completion, Vec<TokenId>) {
        let Self { sampler, output, present, prompt, tokens, limit, clock, cached, .. } = self;
        let known = if limit.tokens == 0 {
            present
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
        (completion, known)
    }

    /// Prefills the prompt and samples the first token.
    fn prefill(&mut self, session: &mut dyn BackendSession, cancel: &CancelToken) -> Result<Sampled> {
        if self.limit.tokens == 0 {
            return Ok(ControlFlow::Break(FinishReason::Length));
        }
        for &token in &self.prompt {
            self.sampler.accept(token);
        }
        let go_on =
            &mut || if cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        let started = Instant::now();
        self.cached = session.begin(&self.present, &self.prompt)?;
        let rest = &self.prompt[self.cached..];
        let Some(logits) = session.prefill(rest, self.limit.prefill_chunk, go_on)? else {
            return Ok(ControlFlow::Break(FinishReason::Cancelled));
        };
        self.clock.prefill = Some(started.elapsed());
        let token = self.sampler.sample(&logits[..self.codec.sampled_ids()], self.prompt.len())?;
        self.clock.first_token();
        Ok(ControlFlow::Continue(token))
    }

    /// Computes the last token and samples the next one, unless a limit is reached.
    fn decode(
        &mut self,
        token: TokenId,
        session: &mut dyn BackendSession,
        cancel: &CancelToken,
    ) -> Result<Sampled> {
        if self.tokens.len() >= self.limit.tokens || session.len() >= self.limit.context {
            return Ok(ControlFlow::Break(self.output.finish(FinishReason::Length)));
        }
        if cancel.is_cancelled() {
            return Ok(ControlFlow::Break(self.output.finish(FinishReason::Cancelled)));
        }
        let logits = session.forward(&[token])?;
        let position = self.prompt.len() + self.tokens.len();
        let token = self.sampler.sample(&logits[..self.codec.sampled_ids()], position)?;
        self.clock.next_token();
        Ok(ControlFlow::Continue(token))
    }

    /// Adds a sampled token to the output; returns the reason if the generation has ended.
    fn take(&mut self, token: TokenId) -> Result<Option<FinishReason>> {
        if !self.ignore_eos && self.codec.tokenizer().is_end_of_generation(token) {
            return Ok(Some(self.output.finish(FinishReason::Stop)));
        }
        self.tokens.push(token);
        self.sampler.accept(token);
        let stopped = self.output.push(token)?;
        Ok(stopped.then_some(FinishReason::Stop))
    }
}

/// Detokenization and stop sequences: from token ids to released text.
struct Output<'c> {
    stream: Option<TokenStream<'c>>, // `None` after the end
    matcher: StopMatcher,
    piece: String, // released by the last step
    text: String,  // all released text
}

impl Output<'_> {
    /// Releases the text that a token completes; true if it completes a stop sequence.
    fn push(&mut self, token: TokenId) -> Result<bool> {
        let Some(stream) = &mut self.stream else { return Ok(false) };
        let characters = stream.push(token).map_err(|source| Error::Decode { token, source })?;
        let stopped = self.matcher.push(characters, &mut self.piece).is_some();
        self.text.push_str(&self.piece);
        Ok(stopped)
    }

    /// Releases the text held back: an incomplete character, the beginning of a stop sequence.
    /// Returns `reason`, or `Stop` if the last characters complete a stop sequence.
    fn finish(&mut self, reason: FinishReason) -> FinishReason {
        let rest = self.stream.take().map(TokenStream::finish).unwrap_or_default();
        let stopped = self.matcher.push(&rest, &mut self.piece).is_some();
        self.matcher.finish(&mut self.piece);
        self.text.push_str(&self.piece);
        if stopped { FinishReason::Stop } else { reason }
    }
}

/// Times of one generation.
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
