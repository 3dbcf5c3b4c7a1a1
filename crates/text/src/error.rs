//! The error type of this crate: one variant per condition, with the numbers that explain it.

use std::path::PathBuf;

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a tokenizer, a detokenizer or a chat template.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A metadata value has another type than a tokenizer or template needs.
    #[error(transparent)]
    Gguf(#[from] gguf_rs_lite::Error),

    /// A metadata key that the tokenizer needs is absent.
    #[error("metadata key `{key}` is missing, expected {expected}")]
    MissingKey {
        /// The full key.
        key: String,
        /// Description of a valid value.
        expected: String,
    },

    /// A metadata value that no tokenizer can have, or that contradicts another.
    #[error("metadata key `{key}` is {found}, expected {expected}")]
    InvalidKey {
        /// The full key.
        key: String,
        /// The value in the file.
        found: String,
        /// Description of a valid value.
        expected: String,
    },

    /// The tokenizer of the file is of a kind that this crate does not implement.
    #[error("tokenizer kind `{found}` is not supported (supported: {supported})")]
    UnsupportedTokenizer {
        /// The value of `tokenizer.ggml.model`.
        found: String,
        /// The kinds that can be loaded, separated by commas.
        supported: String,
    },

    /// The file names a pre-tokenizer whose rules are not known. Guessing would silently give other
    /// tokens.
    #[error("pre-tokenizer type `{found}` is not known (known: {known})")]
    UnknownPreTokenizer {
        /// The value of `tokenizer.ggml.pre`.
        found: String,
        /// The types that can be loaded, separated by commas.
        known: String,
    },

    /// A tokenizer file could not be read.
    #[error("cannot read tokenizer file {}: {source}", path.display())]
    TokenizerIo {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },

    /// A tokenizer.json is not valid, or describes something that cannot be run.
    #[error("the tokenizer definition is not usable: {message}")]
    TokenizerDefinition {
        /// Reason.
        message: String,
    },

    /// The tokenizer was asked to add a special token that its vocabulary does not name, or cannot
    /// do without it.
    #[error("the tokenizer adds a {name} token, but its metadata names none")]
    MissingSpecialToken {
        /// `bos`, `eos`, `separator` or `unknown`.
        name: &'static str,
    },

    /// A text holds something that the vocabulary has no token for, and there is no unknown-token
    /// either.
    #[error("the vocabulary has no token for byte 0x{byte:02x} and no unknown-token")]
    Unencodable {
        /// The byte without a token.
        byte: u8,
    },

    /// A text is longer than the tokenizer takes in one call. Encode it in parts.
    #[error("the text has {bytes} bytes, the tokenizer takes at most {limit} at once")]
    TextTooLong {
        /// Length of the text.
        bytes: usize,
        /// Most bytes in one call.
        limit: usize,
    },

    /// A token id is not in the tokenizer's vocabulary.
    #[error("token id {id} is not in the vocabulary of {vocab_size} tokens")]
    UnknownTokenId {
        /// The id.
        id: u32,
        /// Number of tokens.
        vocab_size: usize,
    },

    /// The tokenizer failed on a text or on ids.
    #[error("tokenization failed: {message}")]
    Tokenization {
        /// Message of the tokenizer.
        message: String,
    },

    /// The model has no chat template, and its vocabulary does not show which style it was trained
    /// with. Give one, or use plain text generation.
    #[error("the model has no chat template")]
    NoChatTemplate,

    /// A name that is none of the built-in chat templates.
    #[error("chat style `{found}` is not known (known: {known})")]
    UnknownChatStyle {
        /// The name.
        found: String,
        /// The styles, separated by commas.
        known: String,
    },

    /// A chat template is not valid Jinja, or uses a feature that is not supported.
    #[error("the chat template is not valid: {message}")]
    TemplateSyntax {
        /// Reason, with the line.
        message: String,
    },

    /// The chat template refused these messages by `raise_exception`.
    #[error("the chat template refused the messages: {message}")]
    TemplateRefused {
        /// The template's own words.
        message: String,
    },

    /// Rendering a chat template failed.
    #[error("rendering the chat template failed: {message}")]
    TemplateRender {
        /// Reason, with the line.
        message: String,
    },

    /// The rendering of a chat template was asked to stop.
    #[error("the rendering of the chat template was stopped")]
    TemplateStopped,

    /// The messages hold a code point where Unicode has no characters, and which marks something
    /// while a chat template is rendered.
    #[error("the messages hold U+{code:X}, which is no character of Unicode")]
    UnassignedCharacter {
        /// The code point.
        code: u32,
    },
}
