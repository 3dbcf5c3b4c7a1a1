//! Text generation: prefill in chunks, then one token after the other. [`Generation`] computes one
//! token per call, so that a callback and an iterator drive the same code.

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
use crate::guide::Guide;
use crate::options::check_pressure;
use crate::request::{Completion, FinishReason, GenerateRequest, Timings};
use crate::sampler::Sampler;
use crate::session::Session;
use crate::stop::StopMatcher;

impl Engine {
    /// Generates text for a prompt or a whole [`GenerateRequest`] and returns it when it is
    /// complete.
    ///
    /// A reference to a request is taken as well; the request is copied then.
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

    /// Generates text for one request, with a callback and a way to end it.
    ///
    /// `on_text` gets each piece of text as soon as it is certain: whole characters that belong to
    /// no stop string. The pieces joined are the completion's text. Returning `Break` ends the
    /// generation, as `cancel` does from outside; what was generated until then is still returned,
    /// with [`FinishReason::Cancelled`]. [`stream`](Self::stream) gives the same pieces as an
    /// iterator.
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

    /// Runs a request on a sequence whose tokens are `present`, and keeps what others can begin
    /// with; gives the tokens that the sequence has then as well.
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

    /// The result of an ended generation, whose sequence is stored as a prefix; and the tokens that
    /// the sequence has.
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
    /// The kernels of the sampler.
    pub(crate) kernels: Kernels,
    /// Tokens that a sequence can have.
    pub(crate) context: usize,
    /// Tokens that the model was made for.
    pub(crate) model_context: usize,
    pub(crate) prefill_chunk: usize,
}

/// A request that was checked: all that it needs but a sequence.
pub(crate) struct Prepared<'c> {
    codec: &'c TextCodec,
    started: Instant,
    sampler: Sampler,
    guide: Guide,
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
        let guide = Guide::new(codec, request)?;
        let matcher = StopMatcher::new(request.stop.iter().cloned())?;
        let prompt = codec.encode_prompt_until(&request.prompt, cancel)?;
        if prompt.len() > context {
            return Err(Error::PromptTooLong { prompt_tokens: prompt.len(), context, model_context });
        }
        Ok(Self {
            codec,
            started,
            sampler,
            guide,
            stream: codec.stream_after(&request.prompt),
            matcher,
            prompt,
            shared_tokens: request.shared_tokens,
            limit: Limit { tokens: request.max_tokens.unwrap_or(usize::MAX), context, prefill_chunk },
            ignore_eos: request.ignore_eos,
        })
    }

    /// Most tokens that the sequence can come to have.
    pub(crate) fn capacity(&self) -> usize {
        self.limit.context.min(self.prompt.len().saturating_add(self.limit.tokens))
    }
}

/// The state of one running generation. Its sequence is given with each call, so that the owner of
/// both need not borrow from itself.
pub(crate) struct Generation<'c> {
    codec: &'c TextCodec,
    sampler: Sampler,
    guide: Guide,
    output: Output<'c>,
    /// Tokens that the sequence has before the prefill.
    present: Vec<TokenId>,
    prompt: Vec<TokenId>,
    shared_tokens: usize,
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

/// A sampled token, or the reason that there is none.
type Sampled = ControlFlow<FinishReason, TokenId>;

impl<'c> Generation<'c> {
    /// A generation that has computed nothing, on a sequence whose tokens are `present`.
    pub(crate) fn new(prepared: Prepared<'c>, present: Vec<TokenId>) -> Self {
        let Prepared {
            codec,
            started,
            sampler,
            guide,
            stream,
            matcher,
            prompt,
            shared_tokens,
            limit,
            ignore_eos,
        } = prepared;
        let output = Output { stream: Some(stream), matcher, piece: String::new(), text: String::new() };
        Self {
            codec,
            sampler,
            guide,
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
                // A break has nothing left to end here.
                Some(reason) => return Ok(reason),
                None if shown.is_break() => return Ok(FinishReason::Cancelled),
                None => {}
            }
        }
    }

    /// Computes the next token, with the first one the prefill. [`piece`](Self::piece) is the text
    /// that it made certain. A reason means that the generation has ended.
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

    /// The text that the last [`advance`](Self::advance) made certain; often empty.
    pub(crate) fn piece(&self) -> &str {
        &self.output.piece
    }

    /// The generated ids so far.
    pub(crate) fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Tokens of the prompt that prompts of all tenants may begin with.
    fn shared_tokens(&self) -> usize {
        self.shared_tokens.min(self.prompt.len())
    }

    /// The result, and the tokens that the sequence has.
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

    /// Computes the prompt and samples the first token.
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
        let logits = self.guide.mask(&logits[..self.codec.sampled_ids()])?;
        let token = self.sampler.sample(logits, self.prompt.len())?;
        self.clock.first_token();
        Ok(ControlFlow::Continue(token))
    }

    /// Computes the last token and samples the next one, unless the last one was the last.
    fn decode(
        &mut self,
        token: TokenId,
        session: &mut dyn BackendSession,
        cancel: &CancelToken,
    ) -> Result<Sampled> {
        if self.guide.is_ended() {
            return Ok(ControlFlow::Break(self.output.finish(FinishReason::Stop)));
        }
        if self.tokens.len() >= self.limit.tokens || session.len() >= self.limit.context {
            return Ok(ControlFlow::Break(self.output.finish(FinishReason::Length)));
        }
        if cancel.is_cancelled() {
            return Ok(ControlFlow::Break(self.output.finish(FinishReason::Cancelled)));
        }
        let logits = session.forward(&[token])?;
        let position = self.prompt.len() + self.tokens.len();
        let logits = self.guide.mask(&logits[..self.codec.sampled_ids()])?;
        let token = self.sampler.sample(logits, position)?;
        self.clock.next_token();
        Ok(ControlFlow::Continue(token))
    }

    /// Adds a sampled token to the output; a reason means that it was the last one.
    fn take(&mut self, token: TokenId) -> Result<Option<FinishReason>> {
        if !self.ignore_eos && self.codec.tokenizer().is_end_of_generation(token) {
            return Ok(Some(self.output.finish(FinishReason::Stop)));
        }
        self.tokens.push(token);
        self.sampler.accept(token);
        let stopped = self.output.push(token)?;
        self.guide.accept(token)?;
        Ok(stopped.then_some(FinishReason::Stop))
    }
}

/// From ids to the text that the caller sees: characters, then stop strings.
struct Output<'c> {
    stream: Option<TokenStream<'c>>, // none once it has ended
    matcher: StopMatcher,
    piece: String, // released last by the matcher
    text: String,  // all that was released
}

impl Output<'_> {
    /// Releases the text that a token makes certain; true if it completes a stop string.
    fn push(&mut self, token: TokenId) -> Result<bool> {
        let Some(stream) = &mut self.stream else { return Ok(false) };
        let characters = stream.push(token).map_err(|source| Error::Decode { token, source })?;
        let stopped = self.matcher.push(characters, &mut self.piece).is_some();
        self.text.push_str(&self.piece);
        Ok(stopped)
    }

    /// Releases what was held back: an unfinished character, the beginning of a stop string. The
    /// end of the text is the reason's, unless the last characters complete a stop string.
    fn finish(&mut self, reason: FinishReason) -> FinishReason {
        let rest = self.stream.take().map(TokenStream::finish).unwrap_or_default();
        let stopped = self.matcher.push(&rest, &mut self.piece).is_some();
        self.matcher.finish(&mut self.piece);
        self.text.push_str(&self.piece);
        if stopped { FinishReason::Stop } else { reason }
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
