//! The request of a completion.

use std::fmt;

use ruvllm::{GenerateRequest, Prompt, TokenId};
use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use utoipa::ToSchema;

use crate::api_error::ApiError;
use crate::app::App;
use crate::openai::Common;

/// Tokens that a completion has at most if the request does not say; OpenAI's default.
const DEFAULT_TOKENS: usize = 16;

/// Fields of completions besides [`Common`].
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct CompletionRequest {
    #[schema(schema_with = crate::field_schema::prompts)]
    prompt: Prompts,
    suffix: Option<String>,
    echo: Option<bool>,
    logprobs: Option<usize>,
    best_of: Option<usize>,
}

/// A text, a list of texts, a list of token ids, or a list of such lists.
#[derive(Debug)]
pub(crate) struct Prompts(pub(crate) Vec<Prompt>);

/// One element of a list of prompts.
enum Element {
    Text(String),
    Id(TokenId),
    Ids(Vec<TokenId>),
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Element;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a token id or a list of token ids")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Element, E> {
                Ok(Element::Text(text.to_owned()))
            }

            fn visit_u64<E: Error>(self, id: u64) -> Result<Element, E> {
                let id = TokenId::try_from(id);
                id.map(Element::Id).map_err(|_| E::custom("a token id is too large"))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Element, A::Error> {
                let mut ids = Vec::new();
                while let Some(id) = seq.next_element()? {
                    ids.push(id);
                }
                Ok(Element::Ids(ids))
            }
        }

        deserializer.deserialize_any(Any)
    }
}

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;

        impl<'de> Visitor<'de> for List {
            type Value = Prompts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a list of texts, or one or several lists of token ids")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Prompts, E> {
                Ok(Prompts(vec![Prompt::Text(text.to_owned())]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Prompts, A::Error> {
                let (mut prompts, mut ids) = (Vec::new(), Vec::new());
                while let Some(element) = seq.next_element()? {
                    match element {
                        Element::Text(text) => prompts.push(Prompt::Text(text)),
                        Element::Ids(ids) => prompts.push(Prompt::Tokens(ids)),
                        Element::Id(id) => ids.push(id),
                    }
                    if !ids.is_empty() && !prompts.is_empty() {
                        return Err(A::Error::custom("a list of token ids has another element"));
                    }
                }
                if !ids.is_empty() {
                    prompts.push(Prompt::Tokens(ids));
                }
                Ok(Prompts(prompts))
            }
        }

        deserializer.deserialize_any(List)
    }
}

impl CompletionRequest {
    pub(super) fn echoes(&self) -> bool {
        self.echo.unwrap_or(false)
    }

    /// True if the reply has log-probabilities.
    pub(super) fn wants_logprobs(&self) -> bool {
        self.logprobs.is_some()
    }

    /// Choices that are generated for each prompt.
    ///
    /// # Errors
    /// 400 for fewer than `n`, and for more where they are streamed.
    pub(super) fn best_of(&self, n: usize, streams: bool) -> Result<usize, ApiError> {
        match self.best_of.unwrap_or(n) {
            best_of if best_of < n || best_of > 128 => {
                let message = format!("best_of is {best_of}, expected n, which is {n}, to 128");
                Err(ApiError::invalid_param("best_of", message))
            }
            best_of if best_of > n && streams => {
                Err(ApiError::invalid_param("best_of", "best_of above n cannot be streamed"))
            }
            best_of => Ok(best_of),
        }
    }

    /// The prompts.
    ///
    /// # Errors
    /// 400 for none, and for more choices than the server allows.
    pub(super) fn prompts(&self, app: &App, best_of: usize) -> Result<Vec<Prompt>, ApiError> {
        let (prompts, most) = (&self.prompt.0, app.limits().choices);
        if prompts.is_empty() {
            return Err(ApiError::invalid_param("prompt", "the list of prompts is empty"));
        }
        if prompts.len() * best_of > most {
            let all = prompts.len() * best_of;
            let message = format!("{all} choices of all prompts together, expected at most {most}");
            return Err(ApiError::invalid_param("prompt", message));
        }
        Ok(prompts.clone())
    }

    /// Adds these fields to the request of a prompt. `ranks`: the choices are compared by their
    /// log-probabilities.
    ///
    /// # Errors
    /// 400 for a suffix.
    pub(super) fn complete(
        &self,
        app: &App,
        common: &Common,
        mut request: GenerateRequest,
        ranks: bool,
    ) -> Result<GenerateRequest, ApiError> {
        if self.suffix.as_ref().is_some_and(|suffix| !suffix.is_empty()) {
            return Err(ApiError::invalid_param("suffix", "a suffix is not supported; leave it out"));
        }
        if common.max_tokens.is_none() && common.max_completion_tokens.is_none() {
            let most = app.limits().output_tokens.unwrap_or(DEFAULT_TOKENS);
            request.max_tokens = Some(DEFAULT_TOKENS.min(most));
        }
        request.logprobs = self.logprobs.or(ranks.then_some(0));
        request.prompt_logprobs = self.logprobs.filter(|_| self.echoes());
        Ok(request)
    }
}
