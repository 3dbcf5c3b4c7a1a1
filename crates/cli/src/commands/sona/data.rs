//! Training data of a file.

use std::path::Path;

use ruvllm_models::Checkpoint;
use ruvllm_text::TokenId;
use ruvllm_text::chat::{ChatTemplate, Message};
use ruvllm_text::tokenizer::{EncodeOptions, Tokenizer};
use ruvllm_training::Sequence;
use serde::Deserialize;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::input;

const EXPECTED: &str = "expected {\"text\": ...}, {\"prompt\": ..., \"answer\": ...} or \
                        {\"messages\": [...], \"tools\": [...]}";

/// Encodes the lines and texts of a file for a model.
pub(super) struct Encoder {
    tokenizer: Tokenizer,
    /// Only conversations need it.
    template: Result<ChatTemplate, ruvllm_text::Error>,
    /// Tokens of a window of plain text.
    window: usize,
}

/// A line of a JSON-lines file; other fields are ignored.
#[derive(Deserialize)]
struct Example {
    text: Option<String>,
    prompt: Option<String>,
    answer: Option<String>,
    messages: Option<Vec<Message>>,
    tools: Option<Value>,
}

impl Encoder {
    /// Encoder with the tokenizer and the chat template of a model.
    ///
    /// # Errors
    /// A model without a supported tokenizer.
    pub(super) fn new(checkpoint: &dyn Checkpoint, window: usize) -> Result<Self, ruvllm_models::Error> {
        let tokenizer = checkpoint.tokenizer()?;
        let template = ChatTemplate::from_gguf(checkpoint.metadata(), &tokenizer);
        Ok(Self { tokenizer, template, window })
    }

    /// Sequences of a file: windows of a text file, or one for each JSON line.
    ///
    /// # Errors
    /// A file that cannot be read, a line of another form, no sequence at all.
    pub(super) fn sequences(&self, path: &Path) -> Result<Vec<Sequence>> {
        let text = input::file_text(path)?;
        let origin = path.display().to_string();
        let mut all = Vec::new();
        if path.extension().is_some_and(|extension| extension == "txt") {
            let tokens = self.encode(&text)?;
            all.extend(tokens.chunks(self.window).filter(|window| window.len() > 1).map(Sequence::new));
        } else {
            for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
                let place = format!("{origin}:{number}");
                let Ok(example) = serde_json::from_str(line) else {
                    return Err(Error::Input { origin: place, reason: EXPECTED.to_owned() });
                };
                all.push(self.sequence(example, &place)?);
            }
        }
        if all.is_empty() {
            return Err(Error::Input { origin, reason: "it has nothing to learn from".to_owned() });
        }
        Ok(all)
    }

    fn sequence(&self, example: Example, place: &str) -> Result<Sequence> {
        let refused = |reason: String| Error::Input { origin: place.to_owned(), reason };
        match example {
            Example { text: Some(text), prompt: None, answer: None, messages: None, .. } => {
                Ok(Sequence::new(self.encode(&text)?))
            }
            Example { text: None, prompt: Some(prompt), answer: Some(answer), messages: None, .. } => {
                let answer = self.encode(&answer)?.into_iter().chain(self.tokenizer.eos());
                Ok(Sequence::with_prompt(&self.encode(&prompt)?, &answer.collect::<Vec<_>>()))
            }
            Example { text: None, prompt: None, answer: None, messages: Some(messages), tools } => {
                let template = self.template.as_ref().map_err(|error| refused(error.to_string()))?;
                let chat = self.tokenizer.encode_answers(template, &messages, tools.as_ref());
                let chat = chat.map_err(|error| refused(error.to_string()))?;
                if chat.answers.is_empty() {
                    return Err(refused("no message of the assistant is an answer to learn".to_owned()));
                }
                let mut mask = vec![false; chat.tokens.len()];
                chat.answers.into_iter().for_each(|answer| mask[answer].fill(true));
                Ok(Sequence { tokens: chat.tokens, mask })
            }
            _ => Err(refused(EXPECTED.to_owned())),
        }
    }

    fn encode(&self, text: &str) -> Result<Vec<TokenId>> {
        let options = EncodeOptions { add_special: false, parse_special: false };
        let tokens = self.tokenizer.encode(text, options);
        tokens.map_err(|source| Error::Tokens { what: "cannot encode the data", source })
    }
}
