//! Every golden: encoding, decoding, invalid UTF-8, streams; from `tokenizer.json` and from GGUF.

use ruvllm_text::{
    TokenId,
    tokenizer::{EncodeOptions, Tokenizer},
};

use super::{FROM_GGUF, FROM_JSON, Failure, PARSED, cases, expected, from_gguf, from_json, ids, text};

#[test]
fn tokenizer_json_encodes_as_the_goldens() -> Result<(), Failure> {
    for folder in FROM_JSON {
        let tokenizer = from_json(folder)?;
        for case in cases(&expected(folder)?["cases"]) {
            let input = text(&case["text"]);
            assert_eq!(tokenizer.encode(input, PARSED)?, ids(&case["ids"]), "{folder} {input:?}");
            let with_special = tokenizer.encode(input, EncodeOptions::default())?;
            assert_eq!(with_special, ids(&case["ids_with_special"]), "{folder} {input:?}");
        }
    }
    Ok(())
}

#[test]
fn gguf_vocabularies_encode_as_the_goldens() -> Result<(), Failure> {
    for folder in FROM_GGUF {
        let tokenizer = from_gguf(folder)?;
        for case in cases(&expected(folder)?["cases"]) {
            let input = text(&case["text"]);
            let plain = if case["llama_cpp_ids"].is_array() { &case["llama_cpp_ids"] } else { &case["ids"] };
            assert_eq!(tokenizer.encode(input, PARSED)?, ids(plain), "{folder} {input:?}");
            let added = ids(&case["ids_with_special"]).len() - ids(&case["ids"]).len();
            let with_special = tokenizer.encode(input, EncodeOptions::default())?;
            assert_eq!(with_special[added..], ids(plain), "{folder} {input:?}");
            assert_eq!(with_special[..added], ids(&case["ids_with_special"])[..added], "{folder}");
        }
    }
    Ok(())
}

#[test]
fn a_unigram_vocabulary_encodes_as_sentencepiece() -> Result<(), Failure> {
    let tokenizer = from_gguf("spm_unigram")?;
    // SentencePiece reads special tokens as text.
    let raw = EncodeOptions { add_special: false, parse_special: false };
    for case in cases(&expected("spm_unigram")?["cases"]) {
        let input = text(&case["text"]);
        let (golden, options) = match &case["sentencepiece_ids"] {
            own if own.is_array() => (own, raw),
            // The library adds no space after a special token, readers of GGUF do.
            _ if input.contains("<s>") || input.contains("</s>") => continue,
            _ => (&case["ids"], PARSED),
        };
        let ids = tokenizer.encode(input, options)?;
        assert_eq!(ids, super::ids(golden), "{input:?}");
        assert_eq!(tokenizer.decode(&ids, false)?, input.replace('▁', " "), "{input:?}");
        let (chunks, rest) = streamed(&tokenizer, &ids)?;
        assert_eq!(chunks.concat() + &rest, tokenizer.decode(&ids, false)?, "{input:?}");
    }
    Ok(())
}

#[test]
fn decoding_gives_the_goldens() -> Result<(), Failure> {
    let from_json = FROM_JSON.map(|folder| (folder, from_json(folder)));
    let from_gguf = FROM_GGUF.map(|folder| (folder, from_gguf(folder)));
    for (folder, tokenizer) in from_json.into_iter().chain(from_gguf) {
        let tokenizer = tokenizer?;
        let expected = expected(folder)?;
        for case in cases(&expected["cases"]) {
            let tokens = ids(&case["ids"]);
            assert_eq!(tokenizer.decode(&tokens, false)?, text(&case["decoded"]), "{folder} {tokens:?}");
            let skipped = tokenizer.decode(&tokens, true)?;
            assert_eq!(skipped, text(&case["decoded_skip_special"]), "{folder} {tokens:?}");
        }
        for case in cases(&expected["invalid_utf8"]) {
            let decoded = tokenizer.decode(&ids(&case["ids"]), false)?;
            assert_eq!(decoded, text(&case["decoded"]), "{folder} {}", case["name"]);
        }
    }
    Ok(())
}

/// Output of a stream: one chunk per token, and the end.
fn streamed(tokenizer: &Tokenizer, tokens: &[TokenId]) -> Result<(Vec<String>, String), Failure> {
    let mut stream = tokenizer.stream();
    let mut chunks = Vec::new();
    for &id in tokens {
        chunks.push(stream.push(id)?.to_owned());
    }
    Ok((chunks, stream.finish()))
}

#[test]
fn streams_join_to_the_decoded_text() -> Result<(), Failure> {
    let from_json = FROM_JSON.map(|folder| (folder, from_json(folder)));
    let from_gguf = FROM_GGUF.map(|folder| (folder, from_gguf(folder)));
    for (folder, tokenizer) in from_json.into_iter().chain(from_gguf) {
        let tokenizer = tokenizer?;
        let expected = expected(folder)?;
        for case in cases(&expected["streaming"]) {
            let (chunks, rest) = streamed(&tokenizer, &ids(&case["ids"]))?;
            let joined = chunks.concat();
            if case["chunks_join_to_full"] == true {
                assert_eq!(joined, text(&case["full"]), "{folder} {}", case["ids"]);
                assert_eq!(rest, "", "{folder} {}", case["ids"]);
            } else {
                // A stream may have returned characters before the rest of their run turned out to
                // be invalid.
                assert!(rest.chars().all(|c| c == '\u{FFFD}'), "{folder} {rest:?}");
            }
        }
        for case in cases(&expected["cases"]) {
            let tokens = ids(&case["ids"]);
            let (chunks, rest) = streamed(&tokenizer, &tokens)?;
            assert_eq!(chunks.concat() + &rest, text(&case["decoded"]), "{folder} {tokens:?}");
        }
    }
    Ok(())
}
