//! From text to tokens and back: what a model's tokenizer and chat template make of prompts.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use ruvllm_models::Checkpoint;
use ruvllm_text::TokenId;
use ruvllm_text::chat::{ChatTemplate, ChatTemplateSource, Message};
use ruvllm_text::tokenizer::{EncodeOptions, TokenStream, Tokenizer};

use crate::cancel::CancelToken;
#[cfg(feature = "structured-output")]
use crate::constraint::{ConstraintCompiler, ConstraintError};
use crate::error::{Error, Result};
use crate::request::Prompt;

/// The tokenizer and the chat template of a model, and the ids that it knows.
pub struct TextCodec {
    tokenizer: Arc<Tokenizer>,
    /// `None` if the metadata hold something else in its place.
    template_source: Option<ChatTemplateSource>,
    /// Compiled when a chat asks for it: prompts that are no chats do not depend on it.
    chat_template: OnceLock<Result<ChatTemplate, ruvllm_text::Error>>,
    vocab_size: usize,
    /// Made at the first request with a constraint.
    #[cfg(feature = "structured-output")]
    constraints: OnceLock<Result<ConstraintCompiler, ConstraintError>>,
}

/// The tokenizer of a file, or else that of a checkpoint which messages call `name`, for a model of
/// `vocab_size` ids.
pub(crate) fn read_tokenizer(
    checkpoint: &dyn Checkpoint,
    name: &str,
    file: Option<&Path>,
    vocab_size: usize,
) -> Result<Tokenizer> {
    let (tokenizer, name) = match file {
        Some(path) => (Tokenizer::from_file(path).map_err(Into::into), path.display().to_string()),
        None => (checkpoint.tokenizer(), name.to_owned()),
    };
    let tokenizer = tokenizer.map_err(|source| Error::Tokenizer { name, source })?;
    let ids = tokenizer.text_vocab_size();
    if ids > vocab_size {
        return Err(Error::VocabularyMismatch { tokenizer: ids, model: vocab_size });
    }
    Ok(tokenizer)
}

impl TextCodec {
    /// Reads those of a checkpoint that messages call `name`, or takes the `tokenizer.json` given
    /// instead of its own. `vocab_size` is how many ids the model has, rows of its embedding. A
    /// chat template that cannot be read is no error before it is used.
    ///
    /// # Errors
    /// [`Error::Tokenizer`], and [`Error::VocabularyMismatch`] if the tokenizer has more ids than
    /// the model.
    pub fn read(
        checkpoint: &dyn Checkpoint,
        name: &str,
        tokenizer: Option<&Path>,
        vocab_size: usize,
    ) -> Result<Self> {
        let tokenizer = read_tokenizer(checkpoint, name, tokenizer, vocab_size)?;
        let (template_source, chat_template) = match ChatTemplateSource::from_gguf(checkpoint.metadata()) {
            Ok(source) => (Some(source), OnceLock::new()),
            Err(error) => (None, OnceLock::from(Err(error))),
        };
        Ok(Self {
            tokenizer: Arc::new(tokenizer),
            template_source,
            chat_template,
            vocab_size,
            #[cfg(feature = "structured-output")]
            constraints: OnceLock::new(),
        })
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The chat template of the model.
    ///
    /// # Errors
    /// [`Error::NoChatTemplate`] if it has none, [`Error::UnusableChatTemplate`] if it cannot be
    /// read.
    pub fn chat_template(&self) -> Result<&ChatTemplate> {
        let source = self.template_source.as_ref();
        let compile = || {
            source.map_or(Err(ruvllm_text::Error::NoChatTemplate), |source| source.compile(&self.tokenizer))
        };
        self.chat_template.get_or_init(compile).as_ref().map_err(|error| match error {
            ruvllm_text::Error::NoChatTemplate => Error::NoChatTemplate,
            error => Error::UnusableChatTemplate { reason: error.to_string() },
        })
    }

    /// The text that a conversation becomes, up to where the model's answer begins.
    ///
    /// It is for people to read: [`encode_prompt`](Self::encode_prompt) keeps apart what the
    /// template and what the messages say, which this text no longer does.
    ///
    /// # Errors
    /// As [`chat_template`](Self::chat_template); [`Error::Chat`] if the template refuses the
    /// messages.
    pub fn render_chat(&self, messages: &[Message], tools: Option<&serde_json::Value>) -> Result<String> {
        self.chat_template()?.render(messages, tools, true).map_err(Error::Chat)
    }

    /// The token ids that a prompt becomes: at least one, all of them known to the model.
    ///
    /// An empty prompt becomes the beginning-of-text token.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`] if the model has no such token, [`Error::TokenOutOfRange`],
    /// [`Error::Encode`], [`Error::Chat`], and those of [`chat_template`](Self::chat_template).
    pub fn encode_prompt(&self, prompt: &Prompt) -> Result<Vec<TokenId>> {
        self.encode_prompt_until(prompt, &CancelToken::new())
    }

    /// As [`encode_prompt`](Self::encode_prompt), and ends when `cancel` is set: a chat template is
    /// a program.
    ///
    /// # Errors
    /// As [`encode_prompt`](Self::encode_prompt), and [`Error::Cancelled`].
    pub fn encode_prompt_until(&self, prompt: &Prompt, cancel: &CancelToken) -> Result<Vec<TokenId>> {
        let mut tokens = match prompt {
            Prompt::Text(text) => self
                .tokenizer
                .encode(text, EncodeOptions { add_special: true, parse_special: true })
                .map_err(Error::Encode)?,
            Prompt::Tokens(tokens) => tokens.clone(),
            Prompt::Chat { messages, tools } => self
                .tokenizer
                .encode_chat_until(self.chat_template()?, messages, tools.as_ref(), true, Some(cancel.flag()))
                .map_err(|error| match error {
                    ruvllm_text::Error::TemplateStopped => Error::Cancelled,
                    error => Error::Chat(error),
                })?,
        };
        if tokens.is_empty() {
            tokens.push(self.tokenizer.bos().ok_or(Error::EmptyPrompt)?);
        }
        self.check_tokens(&tokens)?;
        Ok(tokens)
    }

    /// Checks that the model knows every id.
    ///
    /// # Errors
    /// [`Error::TokenOutOfRange`].
    pub fn check_tokens(&self, tokens: &[TokenId]) -> Result<()> {
        let vocab_size = self.vocab_size;
        match tokens.iter().position(|&token| token as usize >= vocab_size) {
            Some(position) => Err(Error::TokenOutOfRange { token: tokens[position], position, vocab_size }),
            None => Ok(()),
        }
    }

    /// Turns generated tokens into text. What goes on in the middle of a text keeps a space at its
    /// beginning.
    pub(crate) fn stream_after(&self, prompt: &Prompt) -> TokenStream<'_> {
        let stream = self.tokenizer.stream();
        match prompt {
            Prompt::Text(text) if !text.is_empty() => stream.continuing(),
            Prompt::Tokens(tokens) if !tokens.is_empty() => stream.continuing(),
            _ => stream,
        }
    }

    /// The compiler of constraints for the ids that may be sampled.
    #[cfg(feature = "structured-output")]
    pub(crate) fn constraints(&self) -> Result<&ConstraintCompiler, ConstraintError> {
        let make = || ConstraintCompiler::new(Arc::clone(&self.tokenizer), self.sampled_ids());
        self.constraints.get_or_init(make).as_ref().map_err(Clone::clone)
    }

    /// Ids that may be sampled. Some models have more logits than tokens; the surplus stands for
    /// nothing.
    pub(crate) fn sampled_ids(&self) -> usize {
        self.vocab_size.min(self.tokenizer.vocab_size())
    }
}

/// Prints the vocabulary's size; the vocabulary would be too long.
impl fmt::Debug for TextCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextCodec").field("vocab_size", &self.vocab_size).finish_non_exhaustive()
    }
}
