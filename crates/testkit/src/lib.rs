#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

pub mod allocator;
mod chat_template;
mod data;
mod letters;
mod random;

pub use chat_template::with_chat_template;
pub use data::{builtin_model, model_data, workspace};
pub use letters::letters_tokenizer;
pub use random::Random;

/// True in a full run: `PROPTEST_CASES` is above proptest's default of 256, as `cargo xtask ci
/// --full` sets it. Tests then run every combination and the longest inputs.
pub fn is_full_run() -> bool {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse::<u32>().ok());
    cases.is_some_and(|cases| cases > 256)
}
