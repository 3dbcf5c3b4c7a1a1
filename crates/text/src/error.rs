//! Error type of this crate: one variant per condition, with the numbers that explain it.

use std::path::PathBuf;

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of a tokenizer, a detokenizer or a chat template.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A metadata value has the wrong type.
    #[error(transparent)]
    Gguf(#[from] gguf_rs_lite::Error),

    /// A required metadata key is absent.
    #[error("metadata key `{key}` is missing, expected {expected}")]
    MissingKey {
        /// Full key.
        key: String,
        /// Description of a valid value.
        expected: String,
    },

    /// A metadata value is invalid or contradicts another.
    #[error("metadata key `{key}` is {found}, expected {expected}")]
    InvalidKey {
        /// Full key.
        key: String,
        /// Value in the file.
        found: String,
        /// Description of a valid value.
        expected: String,
    },

    /// The file's tokenizer is of an unsupported kind.
    #[error("tokenizer kind `{found}` is not supported (supported: {supported})")]
    UnsupportedTokenizer {
        /// Value of `tokenizer.ggml.model`.
        found: String,
        /// Supported kinds, separated by commas.
        supported: String,
    },

    /// The file names an unknown pre-tokenizer. A guess would silently give other tokens.
    #[error("pre-tokenizer type `{found}` is not known (known: {known})")]
    UnknownPreTokenizer {
        /// Value of `tokenizer.ggml.pre`.
        found: String,
        /// Supported types, separated by commas.
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

    /// A `tokenizer.json` is not valid, or describes something unsupported or beyond the limits.
    #[error("the tokenizer definition is not usable: {message}")]
    TokenizerDefinition {
        /// Reason.
        message: String,
    },

    /// The metadata lack a special token that the tokenizer must add or cannot do without.
    #[error("the tokenizer adds a {name} token, but its metadata names none")]
    MissingSpecialToken {
        /// `bos`, `eos`, `separator` or `unknown`.
        name: &'static str,
    },

    /// The vocabulary has no token for a part of a text, and no unknown token.
    #[error("the vocabulary has no token for byte 0x{byte:02x} and no unknown-token")]
    Unencodable {
        /// The byte without a token.
        byte: u8,
    },

    /// The text is longer than the limit of one call. Encode it in parts.
    #[error("the text has {bytes} bytes, the tokenizer takes at most {limit} at once")]
    TextTooLong {
        /// Length of the text.
        bytes: usize,
        /// Maximum length of one call.
        limit: usize,
    },

    /// The tokenizer has no rule that makes one sequence of two texts.
    #[error("the tokenizer has no rule for pairs of texts")]
    NoPairs,

    /// The part of a prompt behind a text begins with plain text.
    #[error("the prompt goes on with {text:?} behind the text, expected a special token such as <|im_end|>")]
    OpenPrompt {
        /// Its first characters.
        text: String,
    },

    /// The token id is not in the vocabulary.
    #[error("token id {id} is not in the vocabulary of {vocab_size} tokens")]
    UnknownTokenId {
        /// Token id.
        id: u32,
        /// Size of the vocabulary.
        vocab_size: usize,
    },

    /// The tokenizer failed on a text or on token ids.
    #[error("tokenization failed: {message}")]
    Tokenization {
        /// Message of the tokenizer.
        message: String,
    },

    /// The model has no chat template, and its vocabulary does not identify a built-in style. Set
    /// one, or generate from plain text.
    #[error("the model has no chat template")]
    NoChatTemplate,

    /// No built-in chat template has this name.
    #[error("chat style `{found}` is not known (known: {known})")]
    UnknownChatStyle {
        /// Name asked for.
        found: String,
        /// Known styles, separated by commas.
        known: String,
    },

    /// The chat template is not valid Jinja or uses an unsupported feature.
    #[error("the chat template is not valid: {message}")]
    TemplateSyntax {
        /// Reason, with the line.
        message: String,
    },

    /// The chat template rejected the messages by `raise_exception`.
    #[error("the chat template refused the messages: {message}")]
    TemplateRefused {
        /// Message of the template.
        message: String,
    },

    /// Rendering a chat template failed.
    #[error("rendering the chat template failed: {message}")]
    TemplateRender {
        /// Reason, with the line.
        message: String,
    },

    /// The rendering of a chat template was stopped by its caller.
    #[error("the rendering of the chat template was stopped")]
    TemplateStopped,

    /// The messages contain an unassigned code point (planes 4 and 5). Rendering uses these
    /// internally.
    #[error("the messages hold U+{code:X}, which is no character of Unicode")]
    UnassignedCharacter {
        /// Code point.
        code: u32,
    },
}
