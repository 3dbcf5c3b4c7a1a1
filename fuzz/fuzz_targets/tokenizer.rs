//! Parses any bytes as the header of a GGUF file; encodes and decodes with its tokenizer, if any.

#![no_main]

use gguf_rs_lite::Header;
use libfuzzer_sys::fuzz_target;
use ruvllm_text::{
    TokenId,
    chat::{ChatTemplate, Message},
    tokenizer::{EncodeOptions, Tokenizer},
};

const TEXT: &str = "Hello  wörld's 12345\n\n\t你好 👩‍💻<s></s>[CLS] <0x0A>▁▁a\u{0}\u{FFFD}";

fuzz_target!(|file: &[u8]| {
    let Ok(header) = Header::parse(file) else { return };
    let Ok(tokenizer) = Tokenizer::from_gguf(&header.metadata) else { return };
    let size = tokenizer.vocab_size() as TokenId;
    for add_special in [false, true] {
        for parse_special in [false, true] {
            if let Ok(ids) = tokenizer.encode(TEXT, EncodeOptions { add_special, parse_special }) {
                assert!(ids.iter().all(|&id| id < size), "an id outside the vocabulary");
                tokenizer.decode(&ids, false).expect("encoded ids can be decoded");
            }
        }
    }
    let mut stream = tokenizer.stream().skip_special();
    for id in (0..size.min(300)).chain([size, TokenId::MAX]) {
        assert_eq!(stream.push(id).is_ok(), id < size);
    }
    let _ = stream.finish();
    if let Ok(template) = ChatTemplate::from_gguf(&header.metadata, &tokenizer) {
        let _ = tokenizer.encode_chat(&template, &[Message::user(TEXT)], None, true);
    }
});
