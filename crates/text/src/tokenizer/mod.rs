//! Tokenizers: text to token ids and back, from GGUF metadata or a Hugging Face `tokenizer.json`.
//!
//! GGUF vocabularies are run by this crate's own encoders (byte-level BPE, BPE over characters and
//! `SentencePiece` BPE, all in O(n log n); unigram; `WordPiece`); a `tokenizer.json` can describe
//! any pipeline and is run by the `tokenizers` library. Out of scope: training.

mod bpe;
mod bytes;
mod character_bpe;
mod charsmap;
mod decode;
#[cfg(feature = "tokenizer-json")]
mod definition;
mod end_of_generation;
mod gguf;
mod index;
#[cfg(feature = "tokenizer-json")]
mod library;
#[cfg(feature = "tokenizer-json")]
mod limits;
mod merge;
mod pair;
mod pipeline;
mod pre;
#[cfg(feature = "tokenizer-json")]
mod search;
mod special;
mod spm;
#[cfg(feature = "tokenizer-json")]
mod steps;
mod stream;
mod unigram;
mod vocab;
#[cfg(not(feature = "tokenizer-json"))]
mod without_library;
#[cfg(feature = "tokenizer-json")]
mod wordpiece;

#[cfg(not(feature = "tokenizer-json"))]
use without_library as library;
#[cfg(not(feature = "tokenizer-json"))]
use without_library as wordpiece;

pub use self::bytes::byte_token;
pub use self::pair::{PairEncoder, PromptPart, TextPair};
pub use self::pipeline::{EncodeOptions, Tokenizer};
#[cfg(feature = "tokenizer-json")]
pub use self::pre::find::name as pre_tokenizer_name;
pub use self::stream::TokenStream;
