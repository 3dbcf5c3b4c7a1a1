//! A request in the step loop: its token ids, its sampler and the text that comes of them.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ruvllm_kernels::Kernels;
use ruvllm_scheduler::RequestId;
use ruvllm_text::TokenId;
use ruvllm_text::tokenizer::TokenStream;

use super::adapters::RequestAdapters;
use super::executor::{SequenceId, SequenceReport};
use super::job::{Job, Limit, Outlet, Prepared};
use super::prompt_logprobs::PromptLogprobs;
use super::reader::Reader;
use crate::answer::OutputParser;
use crate::backend::batch::{Row, Wanted};
use crate::cancel::CancelToken;
use crate::codec::TextCodec;
use crate::error::{Error, Result};
use crate::guide::Guide;
use crate::request::{Completion, FinishReason, Timings};
use crate::sampler::{Logprobs, Sampler};
use crate::sequence::SequenceSpec;
use crate::session_table::{Record, SessionId};
use crate::speculation::{Ask, Speculation};
use crate::stop::StopMatcher;

/// Temperature from which on output is hard to foresee: drafts begin shorter.
const VARIED: f32 = 0.5;

/// Largest number of tokens before a draft in its step; more are a prompt that is computed again.
const MOST_FORCED: usize = 32;

/// Outcome of sampling.
#[derive(Debug)]
pub(super) struct Sampled {
    /// Reason that the request has ended.
    pub(super) end: Option<FinishReason>,
    /// Number of tokens appended.
    pub(super) tokens: usize,
    /// Number of tokens of the draft whose keys and values stay.
    pub(super) kept: usize,
    /// True if these are the first tokens after the prompt.
    pub(super) is_first: bool,
}

/// A request that waits or runs.
pub(super) struct Request<'c> {
    codec: &'c TextCodec,
    pub(super) sequence: SequenceId,
    pub(super) spec: SequenceSpec,
    pub(super) adapters: RequestAdapters,
    pub(super) session: Option<SessionId>,
    pub(super) record: Option<Arc<Record>>,
    pub(super) priority: i32,
    pub(super) deadline: Option<Instant>,
    pub(super) cancel: CancelToken,
    /// Other choices of the same prompt: they begin as forks of this sequence once the prompt is
    /// computed. The scheduler does not know them before.
    pub(super) followers: Vec<RequestId>,
    /// True while the sequence exists without having started: a fork.
    pub(super) is_forked: bool,
    /// Token ids of the prompt, then the generated ones.
    tokens: Vec<TokenId>,
    prompt_tokens: usize,
    /// Tokens whose keys and values are there.
    pub(super) computed: usize,
    /// Prompt tokens from earlier requests; set when the request starts.
    cached: Option<usize>,
    sampler: Sampler,
    guide: Guide,
    /// Forced tokens that are still to be appended, one in each step: their log-probabilities need
    /// the logits before them.
    forced: VecDeque<TokenId>,
    /// Number of most likely tokens in an entry of `logprobs`; `None` if these are not asked for.
    top_logprobs: Option<usize>,
    /// At the positions of the generated tokens.
    logprobs: Vec<Logprobs>,
    /// At the positions of the prompt; `None` if these are not asked for.
    prompt_logprobs: Option<PromptLogprobs>,
    output: Output<'c>,
    limit: Limit,
    ignore_eos: bool,
    parser: Option<OutputParser>,
    speculation: Option<Speculation>,
    temperature: f32,
    /// Drafted tokens that were verified, and those that became output.
    drafted: [usize; 2],
    clock: Clock,
    outlet: Outlet,
    /// Generated ids that pieces have named.
    named: usize,
    pub(super) reader: Reader,
}

impl<'c> Request<'c> {
    pub(super) fn new(codec: &'c TextCodec, sequence: SequenceId, job: Job) -> Self {
        let Job { prepared, spec, adapters, session, record, priority, deadline, cancel, outlet } = job;
        let Prepared { started, sampler, logprobs, guide, matcher, prompt, continues, .. } = prepared;
        let Prepared { limit, ignore_eos, parser, speculation, temperature, .. } = prepared;
        let of_prompt = |top_n| PromptLogprobs::new(top_n, prompt.len());
        let stream = codec.stream(continues);
        Self {
            codec,
            sequence,
            spec,
            adapters,
            session,
            record,
            priority,
            deadline,
            cancel,
            followers: Vec::new(),
            is_forked: false,
            prompt_logprobs: prepared.prompt_logprobs.map(of_prompt),
            prompt_tokens: prompt.len(),
            tokens: prompt,
            computed: 0,
            cached: None,
            sampler,
            guide,
            forced: VecDeque::new(),
            top_logprobs: logprobs,
            logprobs: Vec::new(),
            output: Output { stream: Some(stream), matcher, piece: String::new(), text: String::new() },
            limit,
            ignore_eos,
            parser,
            speculation,
            temperature,
            drafted: [0; 2],
            clock: Clock::new(started),
            outlet,
            named: 0,
            reader: Reader::default(),
        }
    }

    /// Token ids of the prompt and those generated.
    pub(super) fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    pub(super) fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// True if the next step is for a prompt, or for tokens that were generated before the request
    /// was preempted.
    pub(super) fn is_prefilling(&self) -> bool {
        self.computed + 1 < self.tokens.len() || self.tokens.len() == self.prompt_tokens
    }

    /// Largest number of tokens that may still be generated.
    pub(super) fn max_new_tokens(&self) -> usize {
        self.limit.tokens.min((self.limit.context + 1).saturating_sub(self.tokens.len()))
    }

    /// Tokens whose logits are still wanted for log-probabilities of the prompt.
    fn missing_rows(&self) -> Range<usize> {
        self.prompt_logprobs.as_ref().map_or(0..0, PromptLogprobs::missing)
    }

    /// True if log-probabilities of the prompt are not all there.
    pub(super) fn scores_prompt(&self) -> bool {
        !self.missing_rows().is_empty()
    }

    /// Number of the first of the next `tokens` tokens before those whose logits are wanted for the
    /// prompt, and number of these.
    pub(super) fn prompt_rows(&self, tokens: usize) -> (usize, usize) {
        let missing = self.missing_rows();
        let start = missing.start.max(self.computed);
        let end = missing.end.min(self.computed + tokens);
        if start < end { (start - self.computed, end - start) } else { (tokens, 0) }
    }

    /// Tokens for which keys and values of earlier requests may be taken, and one that is computed
    /// in any case: cached tokens have no logits.
    pub(super) fn reusable(&self) -> &[TokenId] {
        let missing = self.missing_rows();
        if missing.is_empty() { &self.tokens } else { &self.tokens[..=missing.start] }
    }

    /// Kernels of the sampler.
    pub(super) fn kernels(&self) -> Kernels {
        self.sampler.kernels()
    }

    /// Token at the position that the logits after prompt token `row` predict, and the number of
    /// most likely tokens that are asked for.
    pub(super) fn prompt_target(&self, row: usize) -> (TokenId, usize) {
        (self.tokens[row + 1], self.prompt_logprobs.as_ref().map_or(0, PromptLogprobs::top_n))
    }

    /// Adds the log-probabilities of the next position of the prompt. The caller can read them once
    /// all are there.
    pub(super) fn push_prompt_logprobs(&mut self, entry: Logprobs) {
        if let Some(own) = &mut self.prompt_logprobs
            && own.push(entry)
        {
            self.outlet.inbox.set_prompt_logprobs(own.share());
        }
    }

    /// Log-probabilities of the prompt so far; empty if they are not asked for.
    pub(super) fn share_prompt_logprobs(&mut self) -> Arc<[Logprobs]> {
        self.prompt_logprobs.as_mut().map(PromptLogprobs::share).unwrap_or_default()
    }

    /// Goes on behind the prompt that another choice has computed, with these adapters.
    pub(super) fn follow(&mut self, adapters: &RequestAdapters, prompt_logprobs: &Arc<[Logprobs]>) {
        self.adapters.follow(adapters);
        if let Some(own) = &mut self.prompt_logprobs {
            own.follow(Arc::clone(prompt_logprobs));
            self.outlet.inbox.set_prompt_logprobs(Arc::clone(prompt_logprobs));
        }
    }

    /// True unless the request refuses drafts.
    pub(super) fn has_drafts(&self, setting: Speculation) -> bool {
        self.speculation.unwrap_or(setting) != Speculation::Off
    }

    /// A draft that the request could use in the next step, of at most `room` tokens.
    pub(super) fn ask(&self, setting: Speculation, room: usize) -> Ask<'_> {
        Ask {
            lane: self.sequence.0,
            tokens: &self.tokens,
            spec: &self.spec,
            // The step gives one token without a draft.
            most: room.min(self.max_new_tokens().saturating_sub(1)),
            is_varied: self.temperature >= VARIED,
            setting: self.speculation.unwrap_or(setting),
        }
    }

    /// True if the next step can have a draft: all tokens but the last few were computed, and those
    /// are generated ones, more than one where a constraint has forced some.
    pub(super) fn decodes(&self) -> bool {
        self.tokens.len() > self.prompt_tokens && self.tokens.len() - self.computed <= MOST_FORCED
    }

    /// Cuts a draft before the first token that cannot be part of the output: one that ends it, or
    /// that the constraint excludes behind those before it.
    pub(super) fn trim(&mut self, draft: &mut Vec<TokenId>) {
        let (tokenizer, ids) = (self.codec.tokenizer(), self.codec.sampled_ids());
        let ends = |token: TokenId| !self.ignore_eos && tokenizer.is_end_of_generation(token);
        if let Some(end) = draft.iter().position(|&token| token as usize >= ids || ends(token)) {
            draft.truncate(end);
        }
        draft.truncate(self.guide.accepted_prefix(draft));
    }

    /// Gives the sequence the adapters; false while factors are missing.
    pub(super) fn take_adapters(&mut self) -> bool {
        let Some(scaled) = self.adapters.scaled() else { return false };
        self.spec.adapters = scaled;
        true
    }

    /// Drops the factors of registered adapters, in a request without a sequence.
    pub(super) fn release_adapters(&mut self) {
        self.adapters.release();
        self.spec.adapters = Arc::default();
    }

    /// Notes that the request starts with `cached` tokens computed.
    pub(super) fn start(&mut self, cached: usize) {
        self.computed = cached;
        self.cached.get_or_insert(cached);
        // A limit on prefixes of others, not on the own tokens after preemption.
        self.spec.min_cache_tokens = 0;
        self.adapters.begin();
        self.clock.start();
    }

    /// Samples the next tokens from the rows behind the last token and behind each token of a
    /// draft, `1 + draft.len()`: as long as what is appended is what was drafted. Pieces go to the
    /// caller.
    ///
    /// The tokens, the random numbers, and the states of sampler and constraint are those of
    /// sampling one row after the other without a draft.
    ///
    /// # Errors
    /// [`Error::NoCandidate`], [`Error::Decode`], [`Error::Constraint`].
    pub(super) fn sample<'l>(
        &mut self,
        row_of: impl Fn(usize) -> Row<'l>,
        draft: &[TokenId],
    ) -> Result<Sampled> {
        if self.limit.tokens == 0 {
            // Only the prompt was to be computed.
            let end = Some(FinishReason::Length);
            return Ok(Sampled { end, tokens: 0, kept: 0, is_first: true });
        }
        let start = self.tokens.len();
        let mut row = 0;
        let (end, kept) = loop {
            let end = self.sample_row(row_of(row))?;
            let appended = &self.tokens[start..];
            let accepted = appended.iter().zip(draft).take_while(|(a, b)| a == b).count();
            if end.is_some() {
                // As many tokens as are computed without a draft: those before the last sampling.
                break (end, row);
            }
            if accepted < appended.len() {
                break (None, accepted);
            }
            row = appended.len();
            if self.reads_logits() && !matches!(row_of(row), Row::Logits(_)) {
                // A constraint has begun: the last token is computed again, for its logits.
                break (None, row - 1);
            }
        };
        // The end of generation is no token of the output.
        self.logprobs.truncate(self.generated());
        let appended = self.tokens.len() - start;
        self.drafted = [self.drafted[0] + draft.len(), self.drafted[1] + kept];
        Ok(Sampled { end, tokens: appended, kept, is_first: start == self.prompt_tokens })
    }

    /// True if more of the logits is read than what the sampler needs.
    fn reads_logits(&self) -> bool {
        self.top_logprobs.is_some() || self.scores_prompt() || !self.guide.masks_nothing()
    }

    /// Result that the request wants of the next step.
    pub(super) fn wanted(&self) -> Wanted {
        if self.reads_logits() {
            Wanted::Logits
        } else if self.sampler.is_argmax() {
            // There is room for a token behind the next one.
            let goes_on = self.generated() + 1 < self.limit.tokens && self.tokens.len() < self.limit.context;
            Wanted::Greedy { goes_on }
        } else {
            self.sampler.largest().map_or(Wanted::Logits, Wanted::Largest)
        }
    }

    /// Samples the next token. The reason if the output has ended.
    fn sample_row(&mut self, row: Row<'_>) -> Result<Option<FinishReason>> {
        let position = self.tokens.len();
        let logits = match row {
            Row::Logits(logits) => &logits[..self.codec.sampled_ids()],
            Row::Greedy(token) => return self.take_sampled(token.ok_or(Error::NoCandidate)?),
            Row::Largest(logits) => {
                let token = self.sampler.sample_largest(logits, position)?;
                return self.take_sampled(token);
            }
        };
        let forced = self.forced.pop_front();
        let token = match forced {
            Some(token) => token,
            None => self.sampler.sample(self.guide.mask(logits)?, position)?,
        };
        if let Some(top_n) = self.top_logprobs {
            self.logprobs.push(self.sampler.logprobs(logits, token, top_n)?);
        }
        if forced.is_some() { self.take(token) } else { self.take_sampled(token) }
    }

    /// Appends a sampled token and those that the guide then forces, which are computed in one
    /// pass. The reason if the output has ended.
    fn take_sampled(&mut self, token: TokenId) -> Result<Option<FinishReason>> {
        let mut end = self.take(token)?;
        if end.is_some() {
            return Ok(end);
        }
        let forced = self.guide.forced();
        if self.top_logprobs.is_some() {
            self.forced.extend(forced);
            return Ok(None);
        }
        for token in forced {
            end = self.take(token)?;
            if end.is_some() {
                break;
            }
        }
        Ok(end)
    }

    /// Appends a token to the output; the reason if it was the last. A piece goes to the caller.
    fn take(&mut self, token: TokenId) -> Result<Option<FinishReason>> {
        self.clock.token();
        self.output.piece.clear();
        if !self.ignore_eos && self.codec.tokenizer().is_end_of_generation(token) {
            return Ok(Some(FinishReason::Stop));
        }
        self.tokens.push(token);
        self.sampler.accept(token);
        let stopped = self.output.push(token, &mut self.guide)?;
        self.deliver();
        self.guide.accept(token)?;
        // The last token of a full context is sampled and never computed.
        let is_full = self.generated() >= self.limit.tokens || self.tokens.len() > self.limit.context;
        Ok(match (stopped || self.guide.is_ended(), is_full) {
            (true, _) => Some(FinishReason::Stop),
            (false, true) => Some(FinishReason::Length),
            (false, false) => None,
        })
    }

    fn generated(&self) -> usize {
        self.tokens.len() - self.prompt_tokens
    }

    /// Gives the piece to the caller, if there is one.
    fn deliver(&mut self) {
        if !self.output.piece.is_empty() {
            let first = self.prompt_tokens + self.named;
            let logprobs = self.logprobs.get(self.named..).unwrap_or_default();
            self.outlet.inbox.push(&self.output.piece, &self.tokens[first..], logprobs);
            self.named = self.generated();
            if self.reader.has_first_text() {
                self.announce(Instant::now());
            }
        }
    }

    /// Wakes the reader for the text that has been delivered.
    pub(super) fn announce(&mut self, now: Instant) {
        self.outlet.inbox.announce();
        self.reader.wake(now);
    }

    /// Number and time of the constraint's masks since the last call.
    pub(super) fn take_mask_time(&mut self) -> (u64, Duration) {
        self.guide.take_mask_time()
    }

    /// Gives the caller the rest of the text and the result.
    pub(super) fn finish(mut self, reason: FinishReason, report: &SequenceReport) {
        self.output.piece.clear();
        let has_begun = self.clock.first.is_some();
        let reason = if has_begun { self.output.finish(reason) } else { reason };
        self.deliver();
        let stop_sequence = self.output.matcher.matched().map(str::to_owned);
        let cached = self.cached.unwrap_or(0);
        let prompt_logprobs = self.share_prompt_logprobs();
        let tokens = self.tokens.split_off(self.prompt_tokens);
        let mut completion = Completion {
            id: self.outlet.id.as_deref().map(str::to_owned),
            timings: self.clock.timings(self.prompt_tokens.saturating_sub(cached)),
            seed: self.sampler.seed(),
            text: self.output.text,
            prompt_tokens: self.prompt_tokens,
            prompt: self.tokens,
            cached_tokens: cached,
            finish_reason: reason,
            stop_sequence,
            kv_quality: report.kv_quality,
            dropped_tokens: report.dropped_tokens,
            adapters: self.adapters.into_served(),
            drafted_tokens: self.drafted[0],
            accepted_tokens: self.drafted[1],
            sequence: self.cached.map(|_| report.size),
            tokens,
            logprobs: self.logprobs,
            prompt_logprobs,
            tool_calls: Vec::new(),
            reasoning_tokens: self.guide.thinking_tokens(),
            parsed: None,
        };
        if let Some(parser) = &self.parser {
            completion.parse(parser);
        }
        self.outlet.end(Ok(completion));
    }

    /// Gives the caller an error.
    pub(super) fn fail(self, error: Error) {
        self.outlet.end(Err(error));
    }
}

/// From ids to the text that the caller sees: characters, then stop sequences.
struct Output<'c> {
    stream: Option<TokenStream<'c>>, // none once it has ended
    matcher: StopMatcher,
    piece: String, // released last by the matcher
    text: String,  // all that was released
}

impl Output<'_> {
    /// Releases the text that a token makes certain, which the guide reads before stop sequences
    /// are cut off; true if it completes one.
    fn push(&mut self, token: TokenId, guide: &mut Guide) -> Result<bool> {
        let Some(stream) = &mut self.stream else { return Ok(false) };
        let characters = stream.push(token).map_err(|source| Error::Decode { token, source })?;
        guide.read(characters);
        let stopped = self.matcher.push(characters, &mut self.piece).is_some();
        self.text.push_str(&self.piece);
        if stopped {
            self.stream = None;
        }
        Ok(stopped)
    }

    /// Releases what was held back: an unfinished character, the beginning of a stop sequence. The
    /// end of the text is the reason's, unless the last characters complete a stop sequence.
    fn finish(&mut self, reason: FinishReason) -> FinishReason {
        let Some(stream) = self.stream.take() else { return reason };
        let stopped = self.matcher.push(&stream.finish(), &mut self.piece).is_some();
        self.matcher.finish(&mut self.piece);
        self.text.push_str(&self.piece);
        if stopped { FinishReason::Stop } else { reason }
    }
}

/// Times of one generation.
struct Clock {
    submitted: Instant,
    started: Option<Instant>,
    first: Option<Instant>,
    last: Option<Instant>,
    decoded: usize, // tokens after the first
}

impl Clock {
    fn new(submitted: Instant) -> Self {
        Self { submitted, started: None, first: None, last: None, decoded: 0 }
    }

    fn start(&mut self) {
        self.started.get_or_insert_with(Instant::now);
    }

    fn token(&mut self) {
        if self.first.is_none() {
            self.first = Some(Instant::now());
        } else {
            self.last = Some(Instant::now());
            self.decoded += 1;
        }
    }

    fn timings(&self, prompt_tokens: usize) -> Timings {
        let per_second = |tokens: usize, time: Duration| tokens as f64 / time.as_secs_f64().max(1e-9);
        let since_submitted = |time: Instant| (time - self.submitted).as_secs_f64() * 1e3;
        Timings {
            queue_ms: self.started.map(since_submitted),
            ttft_ms: self.first.map(since_submitted),
            prefill_tok_s: (self.first.zip(self.started))
                .map(|(first, started)| per_second(prompt_tokens, first - started)),
            decode_tok_s: (self.first.zip(self.last))
                .map(|(first, last)| per_second(self.decoded, last - first)),
        }
    }
}
