//! A request on its way to the step loop: checked, encoded, with its mailbox.

use std::sync::Arc;
use std::time::Instant;

use ruvllm_kernels::Kernels;
use ruvllm_text::TokenId;

use super::adapters::RequestAdapters;
use super::inbox::Inbox;
use crate::answer::OutputParser;
use crate::cancel::CancelToken;
use crate::codec::TextCodec;
use crate::error::{Error, Result};
use crate::guide::Guide;
use crate::intake::Taken;
use crate::request::{Completion, GenerateRequest};
use crate::sampler::{Sampler, SamplingParams};
use crate::sequence::SequenceSpec;
use crate::session_table::{Record, SessionId};
use crate::speculation::Speculation;
use crate::stop::StopMatcher;
use crate::thinking::{Thinking, variables_of};
use crate::tools::{RequestTools, Scope, prompt_of};

/// Properties of a backend that a generation depends on.
pub(crate) struct Facts<'b> {
    pub(crate) codec: &'b TextCodec,
    /// The kernels of the sampler.
    pub(crate) kernels: Kernels,
    /// Largest number of tokens in a sequence.
    pub(crate) context: usize,
    /// Context length of the model.
    pub(crate) model_context: usize,
}

/// A request that was checked and encoded, before it waits for its turn.
pub(crate) struct Prepared {
    pub(super) started: Instant,
    pub(super) sampler: Sampler,
    pub(super) logprobs: Option<usize>,
    pub(super) prompt_logprobs: Option<usize>,
    pub(super) guide: Guide,
    pub(super) matcher: StopMatcher,
    pub(super) prompt: Vec<TokenId>,
    /// True if the output continues the prompt's text.
    pub(super) continues: bool,
    pub(super) limit: Limit,
    pub(super) ignore_eos: bool,
    /// Finds thinking and tool calls in the output; `None` if there can be none.
    pub(super) parser: Option<OutputParser>,
    /// Thinking at the beginning of the output, for further choices.
    thinking: Option<Thinking>,
    pub(super) speculation: Option<Speculation>,
    pub(super) temperature: f32,
}

/// Rules of the output of one choice.
struct Rules {
    sampler: Sampler,
    guide: Guide,
    matcher: StopMatcher,
    tools: Option<RequestTools>,
}

impl Rules {
    /// # Errors
    /// Errors of the sampling parameters, the constraint, the tools and the stop sequences.
    fn new(facts: &Facts<'_>, request: &GenerateRequest, sampling: &SamplingParams) -> Result<Self> {
        request.speculation.map_or(Ok(()), Speculation::check)?;
        let sampler = Sampler::new(facts.kernels, sampling, facts.codec.sampled_ids())?;
        let tools = RequestTools::new(facts.codec, request)?;
        let guide = Guide::new(facts.codec, request, tools.as_ref())?;
        let matcher = StopMatcher::new(request.stop.iter().cloned())?;
        Ok(Self { sampler, guide, matcher, tools })
    }
}

/// Token limits of a generation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    /// Largest number of generated tokens.
    pub(super) tokens: usize,
    /// Largest number of tokens in the sequence.
    pub(super) context: usize,
}

impl Prepared {
    /// Checks a request and encodes its prompt.
    ///
    /// # Errors
    /// Errors of [`Engine::generate_with`](crate::Engine::generate_with) before the run.
    pub(crate) fn new(facts: &Facts<'_>, request: &GenerateRequest, cancel: &CancelToken) -> Result<Self> {
        let started = Instant::now();
        // Checked before the prompt is encoded, which may take long.
        let rules = Rules::new(facts, request, &request.sampling)?;
        let variables = variables_of(request);
        let mut prompt = facts.codec.encode(&prompt_of(request), &variables, cancel)?;
        let scope = Scope::of(request, rules.tools.as_ref());
        let thinking = Thinking::new(facts.codec, request, &mut prompt, scope)?;
        let (context, model_context) = (facts.context, facts.model_context);
        if prompt.len() > context {
            return Err(Error::PromptTooLong { prompt_tokens: prompt.len(), context, model_context });
        }
        Ok(Self::with_prompt(started, facts, request, (prompt, thinking), rules))
    }

    /// As [`new`](Self::new), for `n` choices, at least one: the seed of each is one above that of
    /// the one before.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn choices(
        facts: &Facts<'_>,
        request: &GenerateRequest,
        n: usize,
        cancel: &CancelToken,
    ) -> Result<Vec<Self>> {
        let first = Self::new(facts, request, cancel)?;
        let choice = |index: u64| {
            let seed = first.seed().wrapping_add(index);
            first.choice(facts, request, &request.sampling.clone().with_seed(Some(seed)))
        };
        let others = (1..n as u64).map(choice).collect::<Result<Vec<_>>>()?;
        Ok(std::iter::once(first).chain(others).collect())
    }

    /// The same request with its sampling parameters changed to those given: another choice.
    ///
    /// # Errors
    /// Errors of the sampler and of the constraint.
    fn choice(
        &self,
        facts: &Facts<'_>,
        request: &GenerateRequest,
        sampling: &SamplingParams,
    ) -> Result<Self> {
        let rules = Rules::new(facts, request, sampling)?;
        let prompt = (self.prompt.clone(), self.thinking.clone());
        Ok(Self::with_prompt(self.started, facts, request, prompt, rules))
    }

    fn with_prompt(
        started: Instant,
        facts: &Facts<'_>,
        request: &GenerateRequest,
        (prompt, thinking): (Vec<TokenId>, Option<Thinking>),
        rules: Rules,
    ) -> Self {
        let Rules { mut sampler, guide, matcher, tools } = rules;
        prompt.iter().for_each(|&token| sampler.accept(token));
        Self {
            started,
            sampler,
            logprobs: request.logprobs,
            prompt_logprobs: request.prompt_logprobs,
            guide: guide.with_thinking(thinking.clone()),
            matcher,
            parser: OutputParser::of(
                thinking.as_ref().map(Thinking::start),
                tools.map(|tools| tools.parser(&prompt)),
            ),
            thinking,
            prompt,
            continues: TextCodec::continues(&request.prompt),
            limit: Limit { tokens: request.max_tokens.unwrap_or(usize::MAX), context: facts.context },
            ignore_eos: request.ignore_eos,
            speculation: request.speculation,
            temperature: request.sampling.temperature,
        }
    }

    /// Sampling seed.
    fn seed(&self) -> u64 {
        self.sampler.seed()
    }

    /// Tokens of the prompt.
    pub(crate) fn prompt_tokens(&self) -> usize {
        self.prompt.len()
    }

    /// Parameters of the parser of the output.
    pub(crate) fn parser(&self) -> Option<OutputParser> {
        self.parser.clone()
    }

    /// Largest number of tokens that the sequence can come to have.
    pub(crate) fn capacity(&self) -> usize {
        self.limit.context.min(self.prompt.len().saturating_add(self.limit.tokens))
    }
}

/// A request on its way to the step loop.
pub(crate) struct Job {
    pub(crate) prepared: Prepared,
    /// Properties of the sequence; the adapters come to it when the request starts.
    pub(crate) spec: SequenceSpec,
    pub(crate) adapters: RequestAdapters,
    /// Session that keeps the sequence afterwards.
    pub(crate) session: Option<SessionId>,
    /// The caller's session that the state of the sequence is written to.
    pub(crate) record: Option<Arc<Record>>,
    pub(crate) priority: i32,
    /// Time from which on the result is worthless.
    pub(crate) deadline: Option<Instant>,
    pub(crate) cancel: CancelToken,
    pub(crate) outlet: Outlet,
}

/// The step loop's end of a mailbox: dropped without a result, it reports a stopped engine.
pub(crate) struct Outlet {
    pub(super) inbox: Arc<Inbox>,
    /// The caller's id of the request.
    pub(super) id: Option<Box<str>>,
    /// Counts as a request of its engine until it is dropped.
    taken: Option<Taken>,
}

impl Outlet {
    pub(crate) fn new(inbox: Arc<Inbox>, id: Option<&str>) -> Self {
        Self { inbox, id: id.map(Into::into), taken: None }
    }

    /// The outlet of a request that its engine counts.
    pub(crate) fn with(mut self, taken: Taken) -> Self {
        self.taken = Some(taken);
        self
    }

    pub(super) fn end(&self, result: Result<Completion>) {
        self.inbox.end(result.map_err(|error| error.in_request(self.id.as_deref())));
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        self.end(Err(Error::EngineStopped));
    }
}
