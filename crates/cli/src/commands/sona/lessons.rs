//! Lessons of a command: from its flags, a JSON-lines file or a text.

use ruvllm::crates::sona::Rating;
use ruvllm::crates::sona::instant::Lesson;
use ruvllm::crates::sona::online::TaughtText;
use ruvllm::{Engine, Prompt, TokenId};
use ruvllm_text::chat::Message;
use ruvllm_text::tokenizer::EncodeOptions;
use serde::{Deserialize, Serialize};

use super::learned::learning;
use crate::commands::load;
use crate::error::{Error, Result};

/// Tokens of a window of a text.
const WINDOW: usize = 512;

/// Feedback on a prompt. Tokens, as `sona export` writes them, come before the texts that they are.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Feedback {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prompt: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) correction: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) response: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rating: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prompt_tokens: Option<Vec<TokenId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) response_tokens: Option<Vec<TokenId>>,
}

impl Feedback {
    /// The feedback of a JSON-lines file.
    pub(super) fn parse_lines(origin: &str, text: &str) -> Result<Vec<Self>> {
        let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
        lines
            .map(|(number, line)| {
                serde_json::from_str(line).map_err(|error| Error::Input {
                    origin: format!("{origin}:{number}"),
                    reason: error.to_string(),
                })
            })
            .collect()
    }

    /// Tokens and lesson. With `is_chat` the prompt is the user's message, and the end of the
    /// answer is taught too.
    pub(super) fn lesson(&self, engine: &Engine, is_chat: bool) -> Result<TaughtText> {
        let (text, lesson) = match (&self.correction, &self.response, self.rating) {
            (Some(correction), None, None) => (correction, Lesson::Corrected),
            (None, Some(response), Some(rating)) => {
                (response, Lesson::Rated(Rating::new(rating).map_err(learning)?))
            }
            _ => {
                let reason = "give a correction, or a response with a rating".to_owned();
                return Err(Error::Input { origin: "feedback".to_owned(), reason });
            }
        };
        let prompt = match (&self.prompt_tokens, &self.prompt) {
            (Some(tokens), _) => tokens.clone(),
            (None, Some(prompt)) if is_chat => {
                engine.encode_prompt(&Prompt::chat([Message::new("user", prompt.as_str())]))?
            }
            (None, Some(prompt)) => engine.encode_prompt(&Prompt::Text(prompt.clone()))?,
            (None, None) => {
                let reason = "give the prompt that it is about".to_owned();
                return Err(Error::Input { origin: "feedback".to_owned(), reason });
            }
        };
        if let Some(response) = self.response_tokens.clone() {
            return Ok(TaughtText { prompt, response, lesson });
        }
        let mut response = encode(engine, text)?;
        if is_chat {
            response.extend(engine.tokenizer().eos());
        }
        Ok(TaughtText { prompt, response, lesson })
    }
}

/// Windows of a text as corrected answers, each behind its first token.
pub(super) fn windows(engine: &Engine, text: &str) -> Result<Vec<TaughtText>> {
    let tokens = load::encode_plain(engine, text)?;
    let windows = tokens.chunks(WINDOW).filter_map(|window| {
        let (first, rest) = window.split_first().filter(|(_, rest)| !rest.is_empty())?;
        Some(TaughtText { prompt: vec![*first], response: rest.to_vec(), lesson: Lesson::Corrected })
    });
    Ok(windows.collect())
}

fn encode(engine: &Engine, text: &str) -> Result<Vec<TokenId>> {
    let options = EncodeOptions { add_special: false, parse_special: false };
    let tokens = engine.tokenizer().encode(text, options);
    tokens.map_err(|source| Error::Tokens { what: "cannot encode the answer", source })
}
