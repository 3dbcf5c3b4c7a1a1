//! Rules of one generation's tokens: the constraint of its request, and the budget of its thinking.
//!
//! A constraint holds for the answer. Where the model may think first, the logits pass until the
//! token that ends the thinking; only tokens that end the output are excluded there. A grammar of
//! calls that are messages holds for all messages, from the first token on.

use std::time::{Duration, Instant};

use ruvllm_text::TokenId;
use ruvllm_text::reasoning::Phase;

use self::language::Language;
use crate::codec::TextCodec;
use crate::error::Result;
use crate::request::GenerateRequest;
use crate::thinking::Thinking;
use crate::tools::{RequestTools, Scope};

/// Masks the logits of a generation; without a rule they pass unchanged.
pub(crate) struct Guide {
    thinking: Option<Thinking>,
    language: Option<Language>,
    scope: Scope,
    gate: Gate,
    /// Tokens that end the output.
    ends: Vec<TokenId>,
    /// Logits of the allowed ids, `-inf` elsewhere `[sampled_ids]`.
    masked: Vec<f32>,
    /// Number of the constraint's masks and their time, until they are taken.
    masks: (u64, Duration),
}

/// Place of the output relative to the text that the constraint holds for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gate {
    /// The first token decides: it begins thinking, or the answer.
    Start,
    /// Before the answer.
    Waiting,
    /// Within the answer.
    Passed,
}

impl Guide {
    /// The guide of a request with these tools.
    ///
    /// # Errors
    /// [`Error::Constraint`](crate::Error::Constraint) if the constraint does not compile.
    pub(crate) fn new(
        codec: &TextCodec,
        request: &GenerateRequest,
        tools: Option<&RequestTools>,
    ) -> Result<Self> {
        let language = Language::new(codec, request, tools)?;
        let scope = Scope::of(request, tools);
        let ends = codec.tokenizer().end_of_generation().to_vec();
        let (masked, masks) = (Vec::new(), Default::default());
        Ok(Self { thinking: None, language, scope, gate: Gate::Passed, ends, masked, masks })
    }

    /// The guide of a model that thinks.
    pub(crate) fn with_thinking(self, thinking: Option<Thinking>) -> Self {
        let gate = match &thinking {
            Some(thinking) if self.scope == Scope::Answer && thinking.has_borders() => match thinking.phase()
            {
                Phase::Start => Gate::Start,
                Phase::Thinking => Gate::Waiting,
                Phase::Answer => Gate::Passed,
            },
            _ => Gate::Passed,
        };
        Self { thinking, gate, ..self }
    }

    /// Number of tokens of the thinking so far.
    pub(crate) fn thinking_tokens(&self) -> usize {
        self.thinking.as_ref().map_or(0, Thinking::tokens)
    }

    /// The logits to sample from: those given, with `-inf` for ids that are excluded.
    ///
    /// # Errors
    /// [`Error::Constraint`](crate::Error::Constraint) if the step exceeds a limit.
    pub(crate) fn mask<'l>(&'l mut self, logits: &'l [f32]) -> Result<&'l [f32]> {
        let thinking = self.thinking.as_ref();
        let open = thinking.and_then(Thinking::open).map(|id| id as usize).filter(|&id| id < logits.len());
        let excluded = thinking.and_then(Thinking::excluded);
        let needs_opening = thinking.is_some_and(Thinking::needs_opening);
        let Some(language) = &mut self.language else {
            let Some(excluded) = excluded else { return Ok(logits) };
            return Ok(without(&mut self.masked, logits, &[excluded]));
        };
        match (self.gate, open) {
            (Gate::Waiting, _) => return Ok(without(&mut self.masked, logits, &self.ends)),
            (Gate::Start, Some(open)) if needs_opening => {
                self.masked.clear();
                self.masked.resize(logits.len(), f32::NEG_INFINITY);
                self.masked[open] = logits[open];
                return Ok(&self.masked);
            }
            _ => {}
        }
        let started = Instant::now();
        language.mask(logits, &mut self.masked)?;
        self.masks = (self.masks.0 + 1, self.masks.1 + started.elapsed());
        if let (Gate::Start, Some(open)) = (self.gate, open) {
            self.masked[open] = logits[open];
        }
        Ok(&self.masked)
    }

    /// True if the next logits pass unchanged.
    pub(crate) fn masks_nothing(&self) -> bool {
        self.language.is_none() && self.thinking.as_ref().and_then(Thinking::excluded).is_none()
    }

    /// Number and time of the constraint's masks since the last call.
    pub(crate) fn take_mask_time(&mut self) -> (u64, Duration) {
        std::mem::take(&mut self.masks)
    }

    /// Reads the text that the next token makes certain, before [`accept`](Self::accept).
    pub(crate) fn read(&mut self, text: &str) {
        if let Some(thinking) = &mut self.thinking {
            thinking.read(text);
        }
    }

    /// Moves past a token of the output, whose text was read.
    ///
    /// # Errors
    /// [`Error::Constraint`](crate::Error::Constraint) if the step exceeds a limit.
    pub(crate) fn accept(&mut self, token: TokenId) -> Result<()> {
        let Some(language) = &mut self.language else { return Ok(()) };
        let (open, phase) = match &self.thinking {
            Some(thinking) => (thinking.open(), thinking.phase()),
            None => (None, Phase::Answer),
        };
        match self.gate {
            Gate::Start if open == Some(token) => self.gate = Gate::Waiting,
            Gate::Waiting if phase == Phase::Answer => self.gate = Gate::Passed,
            Gate::Waiting => {}
            Gate::Start | Gate::Passed => {
                self.gate = Gate::Passed;
                language.accept(token)?;
            }
        }
        Ok(())
    }

    /// Tokens that must follow, whatever is sampled; often none.
    pub(crate) fn forced(&mut self) -> Vec<TokenId> {
        if let Some(thinking) = &mut self.thinking {
            let closing = thinking.closing();
            if !closing.is_empty() {
                return closing.to_vec();
            }
        }
        match &mut self.language {
            Some(language) if self.gate == Gate::Passed => language.forced(),
            _ => Vec::new(),
        }
    }

    /// Number of `tokens` from the first on that may come next, one after the other. The position
    /// stays.
    pub(crate) fn accepted_prefix(&mut self, tokens: &[TokenId]) -> usize {
        match &mut self.language {
            Some(language) if self.gate != Gate::Waiting => language.accepted_prefix(tokens),
            _ => tokens.len(),
        }
    }

    /// True if the output is complete and nothing can follow.
    pub(crate) fn is_ended(&self) -> bool {
        self.gate == Gate::Passed && self.language.as_ref().is_some_and(Language::is_ended)
    }
}

/// The logits with `-inf` for some ids.
fn without<'m>(masked: &'m mut Vec<f32>, logits: &[f32], ids: &[TokenId]) -> &'m [f32] {
    masked.clear();
    masked.extend_from_slice(logits);
    for &id in ids {
        if let Some(logit) = masked.get_mut(id as usize) {
            *logit = f32::NEG_INFINITY;
        }
    }
    masked
}

/// Position in a constraint.
#[cfg(feature = "structured-output")]
mod language {
    use super::{GenerateRequest, RequestTools, Result, TextCodec, TokenId};
    use crate::constraint::ConstraintState;
    use crate::error::Error;

    pub(super) struct Language(ConstraintState);

    impl Language {
        pub(super) fn new(
            codec: &TextCodec,
            request: &GenerateRequest,
            tools: Option<&RequestTools>,
        ) -> Result<Option<Self>> {
            let start = |constraint| codec.constraints()?.start(constraint);
            let constraint =
                tools.and_then(|tools| tools.constraint.as_ref()).or(request.constraint.as_ref());
            Ok(constraint.map(start).transpose().map_err(Error::Constraint)?.map(Self))
        }

        pub(super) fn mask(&mut self, logits: &[f32], masked: &mut Vec<f32>) -> Result<()> {
            self.0.mask().map_err(Error::Constraint)?.apply(logits, masked);
            Ok(())
        }

        pub(super) fn accept(&mut self, token: TokenId) -> Result<()> {
            self.0.accept(token).map_err(Error::Constraint)
        }

        pub(super) fn forced(&mut self) -> Vec<TokenId> {
            self.0.forced()
        }

        pub(super) fn accepted_prefix(&mut self, tokens: &[TokenId]) -> usize {
            // A step that fails here fails again when the mask is taken.
            self.0.accepted_prefix(tokens).unwrap_or(0)
        }

        pub(super) fn is_ended(&self) -> bool {
            self.0.is_ended()
        }
    }
}

/// A build without constraints.
#[cfg(not(feature = "structured-output"))]
mod language {
    use super::{GenerateRequest, RequestTools, Result, TextCodec, TokenId};

    pub(super) enum Language {}

    impl Language {
        pub(super) fn new(
            _: &TextCodec,
            _: &GenerateRequest,
            _: Option<&RequestTools>,
        ) -> Result<Option<Self>> {
            Ok(None)
        }

        pub(super) fn mask(&mut self, _: &[f32], _: &mut Vec<f32>) -> Result<()> {
            match *self {}
        }

        pub(super) fn accept(&mut self, _: TokenId) -> Result<()> {
            match *self {}
        }

        pub(super) fn forced(&mut self) -> Vec<TokenId> {
            match *self {}
        }

        pub(super) fn accepted_prefix(&mut self, _: &[TokenId]) -> usize {
            match *self {}
        }

        pub(super) fn is_ended(&self) -> bool {
            match *self {}
        }
    }
}
