//! Training data of a file.

use std::path::Path;

use ruvllm::crates::sona::FunctionMasking;
use ruvllm_models::Checkpoint;
use ruvllm_text::TokenId;
use ruvllm_text::chat::{ChatTemplate, Message};
use ruvllm_text::tokenizer::{EncodeOptions, Tokenizer};
use ruvllm_training::{Pair, Preference, Sequence};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::train::{Example as Prepared, Level};
use crate::error::{Error, Result};
use crate::input;

const EXPECTED: &str = "expected {\"text\": ...}, {\"prompt\": ..., \"answer\": ...} or \
                        {\"messages\": [...], \"tools\": [...]}";

const PREFERENCE: &str = "expected {\"prompt\": ..., \"chosen\": ..., \"rejected\": ...}";
const PROMPT: &str = "expected {\"prompt\": ...}, with any other fields for the command of --reward";
const PAIR: &str = "expected {\"query\": ..., \"positive\": ...}, and if there is one \"negative\": ...";

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

/// A line of preferences.
#[derive(Deserialize)]
struct PreferenceLine {
    prompt: String,
    chosen: String,
    rejected: String,
}

/// A line of pairs.
#[derive(Deserialize)]
struct PairLine {
    query: String,
    positive: String,
    negative: Option<String>,
}

/// A prompt, and the line of its data.
pub(super) struct RewardPrompt {
    pub(super) tokens: Vec<TokenId>,
    pub(super) line: Map<String, Value>,
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

    /// The tokenizer of the model.
    pub(super) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Sequences of a file: windows of a text file, or one for each JSON line.
    ///
    /// # Errors
    /// A file that cannot be read, a line of another form, no sequence at all.
    pub(super) fn sequences(&self, path: &Path) -> Result<Vec<Prepared<Sequence>>> {
        if path.extension().is_none_or(|extension| extension != "txt") {
            return Self::lines(path, EXPECTED, |line, place| {
                let value = serde_json::to_string(&line).unwrap_or_default();
                let example = serde_json::from_value(line);
                let example = example.map_err(|_| refused(place, EXPECTED.to_owned()))?;
                Ok(Prepared::new(value, self.sequence(example, place)?))
            });
        }
        let tokens = self.encode(&input::file_text(path)?)?;
        let windows = tokens.chunks(self.window).filter(|window| window.len() > 1);
        // Words of the text of a window are its tokens: no window is decoded for that.
        let text = |window: &[TokenId]| window.iter().map(|t| format!("{t} ")).collect::<String>();
        let all: Vec<_> = windows.map(|window| Prepared::new(text(window), Sequence::new(window))).collect();
        if all.is_empty() { Err(nothing(path)) } else { Ok(all) }
    }

    /// Masked copies of the conversations with tools among `data`, so many of each, with the seed
    /// of their names; `path` is the file, for messages.
    ///
    /// # Errors
    /// No conversation with a call of one of its tools, or too few words.
    pub(super) fn masked(
        &self,
        data: &[Prepared<Sequence>],
        copies: usize,
        (seed, path): (u64, &Path),
    ) -> Result<Vec<Prepared<Sequence>>> {
        let place = path.display().to_string();
        // A window of text is no JSON.
        let lines: Vec<Value> =
            data.iter().filter_map(|example| serde_json::from_str(example.text()).ok()).collect();
        let masking = FunctionMasking::new(&lines, seed);
        let mut masking = masking.map_err(|error| refused(&place, error.to_string()))?;
        let mut all = Vec::new();
        for line in &lines {
            for _ in 0..copies {
                let Some(masked) = masking.mask(line) else { break };
                let text = masked.to_string();
                let example = serde_json::from_value(masked);
                let example = example.map_err(|_| refused(&place, EXPECTED.to_owned()))?;
                let level = Level::new(place.clone(), line);
                all.push(Prepared::new(text, self.sequence(example, &place)?).with_level(level));
            }
        }
        if all.is_empty() {
            let reason = "no line has {messages, tools} with a call of one of its tools to mask".to_owned();
            return Err(refused(&place, reason));
        }
        Ok(all)
    }

    /// Preferences of a file of JSON lines.
    ///
    /// # Errors
    /// As [`sequences`](Self::sequences).
    pub(super) fn preferences(&self, path: &Path) -> Result<Vec<Prepared<Preference>>> {
        Self::lines(path, PREFERENCE, |line: PreferenceLine, place| {
            if line.chosen == line.rejected {
                return Err(refused(place, "the chosen answer is the rejected one".to_owned()));
            }
            let prompt = self.encode(&line.prompt)?;
            let answer = |text: &str| -> Result<Sequence> {
                let answer: Vec<_> = self.encode(text)?.into_iter().chain(self.tokenizer.eos()).collect();
                Ok(Sequence::with_prompt(&prompt, &answer))
            };
            let value = Preference { chosen: answer(&line.chosen)?, rejected: answer(&line.rejected)? };
            if value.chosen.n_scored() == 0 || value.rejected.n_scored() == 0 {
                return Err(refused(place, "an answer has no token that the model predicts".to_owned()));
            }
            let text = format!("{} {} {}", line.prompt, line.chosen, line.rejected);
            Ok(Prepared::new(text, value))
        })
    }

    /// Prompts of a file of JSON lines, of at most `limit` tokens, as inference reads them: with
    /// BOS where the model wants it.
    ///
    /// # Errors
    /// As [`sequences`](Self::sequences).
    pub(super) fn prompts(&self, path: &Path, limit: usize) -> Result<Vec<Prepared<RewardPrompt>>> {
        Self::lines(path, PROMPT, |line: Map<String, Value>, place| {
            let Some(text) = line.get("prompt").and_then(Value::as_str) else {
                return Err(refused(place, PROMPT.to_owned()));
            };
            let text = text.to_owned();
            let tokens = self.encode_as(&text, EncodeOptions { add_special: true, parse_special: false })?;
            let n = tokens.len();
            if n == 0 || n > limit {
                let reason = format!(
                    "the prompt has {n} tokens; the context has room for 1 to {limit} beside --max-tokens"
                );
                return Err(refused(place, reason));
            }
            Ok(Prepared::new(text, RewardPrompt { tokens, line }))
        })
    }

    /// Queries with their texts, of a file of JSON lines.
    ///
    /// # Errors
    /// As [`sequences`](Self::sequences).
    pub(super) fn pairs(&self, path: &Path) -> Result<Vec<Prepared<Pair>>> {
        Self::lines(path, PAIR, |line: PairLine, place| {
            let encode = |text: &String| -> Result<Sequence> {
                let tokens = self.encode(text)?;
                if tokens.is_empty() {
                    return Err(refused(place, "a text is empty".to_owned()));
                }
                Ok(Sequence::new(tokens))
            };
            let value = Pair {
                query: encode(&line.query)?,
                positive: encode(&line.positive)?,
                negative: line.negative.as_ref().map(encode).transpose()?,
            };
            let text = format!("{} {} {}", line.query, line.positive, line.negative.unwrap_or_default());
            Ok(Prepared::new(text, value))
        })
    }

    /// Examples of a file of JSON lines, empty lines left out.
    fn lines<L: DeserializeOwned, T>(
        path: &Path,
        expected: &str,
        example: impl Fn(L, &str) -> Result<Prepared<T>>,
    ) -> Result<Vec<Prepared<T>>> {
        let text = input::file_text(path)?;
        let mut all = Vec::new();
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
            let place = format!("{}:{number}", path.display());
            let wrong = |_| refused(&place, expected.to_owned());
            let line: Value = serde_json::from_str(line).map_err(wrong)?;
            let level = Level::new(place.clone(), &line);
            let line = serde_json::from_value(line).map_err(wrong)?;
            all.push(example(line, &place)?.with_level(level));
        }
        if all.is_empty() { Err(nothing(path)) } else { Ok(all) }
    }

    fn sequence(&self, example: Example, place: &str) -> Result<Sequence> {
        let refused = |reason: String| refused(place, reason);
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
        self.encode_as(text, EncodeOptions { add_special: false, parse_special: false })
    }

    fn encode_as(&self, text: &str, options: EncodeOptions) -> Result<Vec<TokenId>> {
        let tokens = self.tokenizer.encode(text, options);
        tokens.map_err(|source| Error::Tokens { what: "cannot encode the data", source })
    }
}

fn refused(place: &str, reason: String) -> Error {
    Error::Input { origin: place.to_owned(), reason }
}

fn nothing(path: &Path) -> Error {
    refused(&path.display().to_string(), "it has nothing to learn from".to_owned())
}
