//! Text for language models: tokenizers, streaming detokenization and chat templates.

#![forbid(unsafe_code)]

pub mod chat;
mod error;
mod token;
pub mod tokenizer;

pub use error::{Error, Result};
pub use token::TokenId;
