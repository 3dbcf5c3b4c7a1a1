//! Numbers of tokens and times in replies.

use ruvllm::Completion;
use serde::Serialize;
use utoipa::ToSchema;

/// `usage` of a reply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: usize,
    pub(crate) completion_tokens: usize,
    pub(crate) total_tokens: usize,
    pub(crate) prompt_tokens_details: PromptTokens,
    pub(crate) completion_tokens_details: CompletionTokens,
}

/// Parts of the prompt's tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct PromptTokens {
    /// Tokens from the prefix cache or a session.
    pub(crate) cached_tokens: usize,
}

/// Parts of the output's tokens, and drafts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct CompletionTokens {
    /// Tokens of thinking.
    pub(crate) reasoning_tokens: usize,
    /// Drafted tokens that became output.
    pub(crate) accepted_prediction_tokens: usize,
    /// Drafted tokens that did not.
    pub(crate) rejected_prediction_tokens: usize,
}

impl Usage {
    /// Adds a choice; the prompt counts with the first one of its choices.
    pub(crate) fn add(&mut self, completion: &Completion, is_first: bool) {
        if is_first {
            self.prompt_tokens += completion.prompt_tokens;
            self.prompt_tokens_details.cached_tokens += completion.cached_tokens;
        }
        self.completion_tokens += completion.tokens.len();
        let details = &mut self.completion_tokens_details;
        details.reasoning_tokens += completion.reasoning_tokens;
        details.accepted_prediction_tokens += completion.accepted_tokens;
        details.rejected_prediction_tokens += completion.drafted_tokens - completion.accepted_tokens;
        self.total_tokens = self.prompt_tokens + self.completion_tokens;
    }

    /// Sum over choices, `n` of each prompt.
    pub(crate) fn of(completions: &[Completion], n: usize) -> Self {
        let mut usage = Self::default();
        for (index, completion) in completions.iter().enumerate() {
            usage.add(completion, index % n == 0);
        }
        usage
    }
}

/// `timings` of a reply, an addition to the interface: those of the first choice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, ToSchema)]
pub(crate) struct Timings {
    /// Time until the request had its place among those that run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) queue_ms: Option<f64>,
    /// Time to first token, from the submission on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ttft_ms: Option<f64>,
    /// Prompt tokens per second, cached ones not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_per_second: Option<f64>,
    /// Output tokens per second from the second one on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) predicted_per_second: Option<f64>,
}

impl From<ruvllm::Timings> for Timings {
    fn from(timings: ruvllm::Timings) -> Self {
        Self {
            queue_ms: timings.queue_ms,
            ttft_ms: timings.ttft_ms,
            prompt_per_second: timings.prefill_tok_s,
            predicted_per_second: timings.decode_tok_s,
        }
    }
}
