//! The reply that is not streamed.

use ruvllm::{Completion, FinishReason};
use serde::Serialize;
use utoipa::ToSchema;

use super::Echo;
use super::logprobs::TextLogprobs;
use crate::api_error::ApiError;
use crate::models::LoadedModel;
use crate::openai::{MemoryUse, Timings, Usage, finish_reason, now};
use crate::request_id::random_id;

/// `text_completion`
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TextCompletion {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    choices: Vec<TextChoice>,
    usage: Usage,
    timings: Timings,
    /// Lessons that matched, if the request asks for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<MemoryUse>,
}

#[derive(Debug, Serialize, ToSchema)]
struct TextChoice {
    text: String,
    index: usize,
    logprobs: Option<TextLogprobs>,
    finish_reason: &'static str,
}

impl TextCompletion {
    /// The reply with `n` choices of each prompt.
    pub(super) fn new(
        model: &LoadedModel,
        completions: &[Completion],
        echoes: Option<&[Echo]>,
        n: usize,
        usage: Usage,
        wants_logprobs: bool,
    ) -> Result<Self, ApiError> {
        let tokenizer = model.tokenizer();
        let choice = |(index, completion): (usize, &Completion)| {
            let echo = echoes.and_then(|echoes| echoes.get(index / n));
            let logprobs = wants_logprobs.then(|| {
                let (mut logprobs, mut offset) = (TextLogprobs::default(), 0);
                if let Some(echo) = echo {
                    echo.write_logprobs(completion, tokenizer, &mut logprobs, &mut offset);
                }
                logprobs.extend(&completion.logprobs, tokenizer, &mut offset);
                // Harnesses that score a prompt drop the entry of the one token behind it.
                if echo.is_some() && completion.logprobs.is_empty() && ended_itself(completion) {
                    logprobs.push(tokenizer.eos().unwrap_or_default(), None, tokenizer, &mut offset);
                }
                logprobs
            });
            let prompt = echo.map_or("", |echo| echo.text.as_str());
            TextChoice {
                text: format!("{prompt}{}", completion.text),
                index,
                logprobs,
                finish_reason: finish_reason(completion.finish_reason),
            }
        };
        Ok(Self {
            id: random_id("cmpl-"),
            object: "text_completion",
            created: now(),
            model: model.name().to_string(),
            choices: completions.iter().enumerate().map(choice).collect(),
            usage,
            timings: completions.first().map(|first| first.timings.into()).unwrap_or_default(),
            memory: None,
        })
    }

    /// Reports the lessons of the prompt.
    pub(super) fn with_memory(self, memory: Option<MemoryUse>) -> Self {
        Self { memory, ..self }
    }
}

/// True if the model ended its text. The engine tells nothing of the end token but that it came.
fn ended_itself(completion: &Completion) -> bool {
    completion.finish_reason == FinishReason::Stop && completion.stop_sequence.is_none()
}
