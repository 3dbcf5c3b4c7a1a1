//! Encoding of prompts and detokenization of output: tokenizer and chat template of a model.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use ruvllm_models::Checkpoint;
use ruvllm_text::TokenId;
use ruvllm_text::chat::{ChatInput, ChatTemplate, ChatTemplateSource, Message};
use ruvllm_text::tokenizer::{EncodeOptions, TokenStream, Tokenizer};

use crate::cancel::CancelToken;
#[cfg(feature = "structured-output")]
use crate::constraint::{ConstraintCompiler, ConstraintError};
use crate::error::{Error, Result};
use crate::request::Prompt;

/// Tokenizer, chat template and vocabulary size of a model.
pub struct TextCodec {
    tokenizer: Arc<Tokenizer>,
    /// `None` if the metadata hold no valid template.
    template_source: Option<ChatTemplateSource>,
    /// Compiled on first use, so that a broken template fails no text prompt.
    chat_template: OnceLock<Result<ChatTemplate, ruvllm_text::Error>>,
    vocab_size: usize,
    /// Made at the first request with a constraint.
    #[cfg(feature = "structured-output")]
    constraints: OnceLock<Result<ConstraintCompiler, ConstraintError>>,
}

/// Tokenizer of `file`, else of the checkpoint (`name` in messages), for a model of `vocab_size`
/// ids.
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

/// Compares the vocabulary of a tokenizer with the `expected` one of `other`, in messages.
///
/// # Errors
/// The first difference.
pub(crate) fn compare_vocabularies(
    tokenizer: &Tokenizer,
    expected: &Tokenizer,
    other: &str,
) -> Result<(), String> {
    let both = [tokenizer, expected];
    let [found, size] = both.map(Tokenizer::text_vocab_size);
    if found != size {
        return Err(format!("it has {found} tokens, {other} has {size}"));
    }
    let differs = |id: &TokenId| tokenizer.id_to_token(*id) != expected.id_to_token(*id);
    match (0..size as TokenId).find(differs) {
        None => Ok(()),
        Some(id) => {
            let [found, expected] = both.map(|tokenizer| tokenizer.id_to_token(id).unwrap_or_default());
            Err(format!("token {id} is {found:?} and {expected:?} in {other}'s"))
        }
    }
}

impl TextCodec {
    /// Reads tokenizer and chat template of a checkpoint (`name` in messages). `tokenizer`: a
    /// `tokenizer.json` in place of its own. `vocab_size`: rows of the model's embedding. An
    /// unreadable chat template is an error only when it is used.
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

    /// Renders a conversation with the chat template, up to the beginning of the model's answer.
    ///
    /// For display only: in this text, markers of the template and equal text of a message look the
    /// same. [`encode_prompt`](Self::encode_prompt) encodes them differently.
    ///
    /// # Errors
    /// As [`chat_template`](Self::chat_template); [`Error::Chat`] if the template refuses the
    /// messages.
    pub fn render_chat(&self, messages: &[Message], tools: Option<&serde_json::Value>) -> Result<String> {
        self.chat_template()?.render(messages, tools, true).map_err(Error::Chat)
    }

    /// Encodes a prompt: at least one token id, all of them in the vocabulary.
    ///
    /// An empty prompt is encoded as BOS.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`] if the model has no BOS, [`Error::TokenOutOfRange`],
    /// [`Error::Encode`], [`Error::Chat`], and those of [`chat_template`](Self::chat_template).
    pub fn encode_prompt(&self, prompt: &Prompt) -> Result<Vec<TokenId>> {
        self.encode_prompt_until(prompt, &CancelToken::new())
    }

    /// As [`encode_prompt`](Self::encode_prompt), but stops when `cancel` is set: a chat template
    /// is a program and may run long.
    ///
    /// # Errors
    /// As [`encode_prompt`](Self::encode_prompt), and [`Error::Cancelled`].
    pub fn encode_prompt_until(&self, prompt: &Prompt, cancel: &CancelToken) -> Result<Vec<TokenId>> {
        self.encode(prompt, &serde_json::Map::new(), cancel)
    }

    /// As [`encode_prompt_until`](Self::encode_prompt_until), with further variables of the chat
    /// template.
    ///
    /// # Errors
    /// As [`encode_prompt_until`](Self::encode_prompt_until).
    pub(crate) fn encode(
        &self,
        prompt: &Prompt,
        variables: &serde_json::Map<String, serde_json::Value>,
        cancel: &CancelToken,
    ) -> Result<Vec<TokenId>> {
        let mut tokens = match prompt {
            Prompt::Text(text) => self
                .tokenizer
                .encode(text, EncodeOptions { add_special: true, parse_special: true })
                .map_err(Error::Encode)?,
            Prompt::Tokens(tokens) => tokens.clone(),
            Prompt::Chat { messages, tools } => {
                let (tools, variables) = (tools.as_ref(), Some(variables));
                let input = ChatInput { messages, tools, variables, add_generation_prompt: true };
                let template = self.chat_template()?;
                let encoded = self.tokenizer.encode_chat_until(template, &input, Some(cancel.flag()));
                encoded.map_err(|error| match error {
                    ruvllm_text::Error::TemplateStopped => Error::Cancelled,
                    error => Error::Chat(error),
                })?
            }
        };
        if tokens.is_empty() {
            tokens.push(self.tokenizer.bos().ok_or(Error::EmptyPrompt)?);
        }
        self.check_tokens(&tokens)?;
        Ok(tokens)
    }

    /// Checks that every id is in the vocabulary.
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

    /// True if output continues the text of a prompt, so that a space at its beginning stays.
    pub(crate) fn continues(prompt: &Prompt) -> bool {
        match prompt {
            Prompt::Text(text) => !text.is_empty(),
            Prompt::Tokens(tokens) => !tokens.is_empty(),
            Prompt::Chat { .. } => false,
        }
    }

    /// Detokenizes generated tokens; `continues` as [`continues`](Self::continues) says.
    pub(crate) fn stream(&self, continues: bool) -> TokenStream<'_> {
        let stream = self.tokenizer.stream();
        if continues { stream.continuing() } else { stream }
    }

    /// Number of ids of the model, which is that of the logits of a row.
    pub(crate) fn vocab_size(&self) -> usize {
        self.vocab_size
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

/// Prints the vocabulary size.
impl fmt::Debug for TextCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextCodec").field("vocab_size", &self.vocab_size).finish_non_exhaustive()
    }
}
