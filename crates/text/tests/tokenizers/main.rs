//! Tokenizers against goldens in `tests/data/tokenizers`: tokenizers library, llama.cpp,
//! `SentencePiece`.

use std::{fs, path::PathBuf};

use gguf_rs_lite::Gguf;
use ruvllm_text::{
    TokenId,
    tokenizer::{EncodeOptions, Tokenizer},
};
use serde_json::Value;

mod goldens;
mod hostile;
mod long;
mod prompts;
mod random;
mod real;
mod rules;

type Failure = Box<dyn std::error::Error>;

const FROM_JSON: [&str; 7] =
    ["bpe_gpt2", "bpe_llama3", "bpe_qwen2", "spm_bpe", "spm_bpe_metaspace", "spm_gemma", "spm_unigram"];
const FROM_GGUF: [&str; 6] =
    ["bpe_gpt2", "bpe_llama3", "bpe_qwen2", "spm_bpe", "spm_bpe_metaspace", "spm_gemma"];

const PARSED: EncodeOptions = EncodeOptions { add_special: false, parse_special: true };

fn data(folder: &str, file: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "data", "tokenizers", folder, file].iter().collect()
}

fn expected(folder: &str) -> Result<Value, Failure> {
    Ok(serde_json::from_slice(&fs::read(data(folder, "expected.json"))?)?)
}

fn from_json(folder: &str) -> Result<Tokenizer, Failure> {
    Ok(Tokenizer::from_json(&fs::read(data(folder, "tokenizer.json"))?)?)
}

fn from_gguf(folder: &str) -> Result<Tokenizer, Failure> {
    Ok(Tokenizer::from_gguf(Gguf::open(data(folder, "vocab.gguf"))?.metadata())?)
}

fn ids(value: &Value) -> Vec<TokenId> {
    value.as_array().into_iter().flatten().map(|id| id.as_u64().unwrap_or(u64::MAX) as TokenId).collect()
}

fn cases(value: &Value) -> &[Value] {
    let cases = value.as_array().map_or(&[][..], Vec::as_slice);
    assert!(!cases.is_empty());
    cases
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
