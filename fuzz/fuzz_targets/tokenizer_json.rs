//! Parses any bytes as a `tokenizer.json`; encodes and decodes with its tokenizer.

#![no_main]

use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use ruvllm_text::TokenId;
use ruvllm_text::tokenizer::{EncodeOptions, Tokenizer};

const TEXT: &str = "Hello  wörld's 12345\n\n\t你好 👩‍💻<s></s>[CLS] <0x0A>▁▁aaaaaaaaaaaaaaaaaaaaaaaaaaaaz\u{0}\u{FFFD}";

fuzz_target!(|json: &[u8]| {
    let started = Instant::now();
    let Ok(tokenizer) = Tokenizer::from_json(json) else { return };
    let size = tokenizer.vocab_size() as TokenId;
    for text in [TEXT, &TEXT.repeat(20)] {
        for parse_special in [false, true] {
            if let Ok(ids) = tokenizer.encode(text, EncodeOptions { add_special: true, parse_special }) {
                assert!(ids.iter().all(|&id| id < size), "an id outside the vocabulary");
                let _ = tokenizer.decode(&ids, false);
            }
        }
    }
    assert!(started.elapsed() < Duration::from_secs(60), "a tokenizer without end");
});
