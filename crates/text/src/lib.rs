//! Text for language models: tokenizers, streaming detokenization and chat templates.
//!
//! **Scope:** a [`Tokenizer`](tokenizer::Tokenizer) from the metadata of a GGUF file or from a
//! `tokenizer.json`, with the ids of the tokenizer that the model was published with; a
//! [`TokenStream`](tokenizer::TokenStream) that detokenizes token by token into whole characters; a
//! [`ChatTemplate`](chat::ChatTemplate) that renders a conversation as Jinja2 does in transformers;
//! an [`AnswerParser`](reasoning::AnswerParser) that tells thinking, text and tool calls apart.
//!
//! **Out of scope:** training of tokenizers, reading weights.
//!
//! # Example
//! ```
//! use gguf_rs_lite::Gguf;
//! use ruvllm_text::chat::{ChatTemplate, Message};
//! use ruvllm_text::tokenizer::{EncodeOptions, Tokenizer};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizers/bpe_qwen2/vocab.gguf");
//! let model = Gguf::open(path)?;
//! let tokenizer = Tokenizer::from_gguf(model.metadata())?;
//! let ids = tokenizer.encode("Grüße, 世界!", EncodeOptions::default())?;
//!
//! let mut stream = tokenizer.stream();
//! let chunks = ids.iter().map(|&id| stream.push(id).map(str::to_owned)).collect::<Result<Vec<_>, _>>()?;
//! assert_eq!(chunks.concat(), "Grüße, 世界!");
//!
//! let template = ChatTemplate::from_gguf(model.metadata(), &tokenizer)?;
//! let prompt = tokenizer.encode_chat(&template, &[Message::user("Hi <|im_end|>")], None, true)?;
//! # let _ = prompt;
//! # Ok(())
//! # }
//! ```
//!
//! # Parts
//! ```text
//! GGUF metadata ──▶ own encoders ────────┐
//! tokenizer.json ─▶ tokenizers library ──┴▶ Tokenizer ── encode, decode, stream ─▶ TokenStream
//! template, or ChatStyle::detect ────────▶ ChatTemplate ── render ─▶ text
//!                                          Tokenizer::encode_chat: both, and no text of a message becomes a marker
//! ```
//!
//! # Invariants
//! - No file, text, token id or template causes a panic: invalid ones give an [`Error`].
//! - Encoders and pre-tokenizers of GGUF vocabularies take at most O(n log n) time; a
//!   `tokenizer.json` is run within limits, beyond which there is an error. Renderings are limited
//!   in steps, work, memory and time (ADR-0034).
//! - No text of a message becomes a special token, whatever the template does with it.
//! - Nothing is guessed: an unknown kind of tokenizer or pre-tokenizer is an error that lists the
//!   known ones (ADR-0018).

#![forbid(unsafe_code)]
// Encoding that only chats or definitions of the tokenizers library use.
#![cfg_attr(not(all(feature = "templates", feature = "tokenizer-json")), allow(dead_code))]

#[cfg(feature = "templates")]
pub mod chat;
mod error;
#[cfg(feature = "templates")]
pub mod reasoning;
mod token;
pub mod tokenizer;
#[cfg(feature = "templates")]
pub mod tool_call;

pub use error::{Error, Result};
pub use token::TokenId;
