//! Long texts: no quadratic path. No time is asserted; a quadratic encoder would take minutes.

use ruvllm_text::tokenizer::Tokenizer;

use super::{FROM_GGUF, FROM_JSON, Failure, PARSED, cases, expected, from_gguf, from_json, text};

fn long_texts() -> Result<Vec<String>, Failure> {
    let golden = expected("bpe_gpt2")?;
    let sentence: String = cases(&golden["cases"]).iter().map(|case| text(&case["text"])).collect();
    Ok(vec![
        sentence.repeat(1_000_000 / sentence.len() + 1),
        "abcdefghij".repeat(20_000),
        "a".repeat(200_000),
        " ".repeat(200_000) + "x",
        "\n".repeat(200_000),
        "你".repeat(70_000),
        "👩‍💻".repeat(20_000),
        "1234567890".repeat(20_000),
        "<|im_".repeat(40_000),
        " \t\u{3000}".repeat(40_000) + "x",
    ])
}

fn round_trip(tokenizer: &Tokenizer, input: &str) -> Result<(), Failure> {
    let ids = tokenizer.encode(input, PARSED)?;
    let decoded = tokenizer.decode(&ids, false)?;
    if decoded.contains('\u{fffd}') {
        // The unigram model reads `<0x80>` as that byte; streams of invalid runs may differ.
        return Ok(());
    }
    let mut stream = tokenizer.stream();
    let mut len = 0;
    for &id in &ids {
        len += stream.push(id)?.len();
    }
    len += stream.finish().len();
    assert_eq!(len, decoded.len());
    Ok(())
}

#[test]
fn gguf_vocabularies_take_long_texts() -> Result<(), Failure> {
    let texts = long_texts()?;
    for folder in FROM_GGUF {
        let tokenizer = from_gguf(folder)?;
        texts.iter().try_for_each(|text| round_trip(&tokenizer, text))?;
    }
    let unigram = from_gguf("spm_unigram")?;
    texts.iter().try_for_each(|text| round_trip(&unigram, text))
}

#[test]
fn tokenizer_json_takes_long_texts() -> Result<(), Failure> {
    let texts = long_texts()?;
    for folder in FROM_JSON {
        let tokenizer = from_json(folder)?;
        // The library is an order of magnitude slower: only a part of the first text.
        round_trip(&tokenizer, texts[0].get(..200_000).unwrap_or(&texts[1]))?;
        texts[1..].iter().try_for_each(|text| round_trip(&tokenizer, text))?;
    }
    Ok(())
}

/// The library's regex engine gave up on these, which was taken for the end of the matches.
#[test]
fn texts_beyond_a_million_characters_are_cut_as_short_ones() -> Result<(), Failure> {
    for folder in ["bpe_gpt2", "bpe_qwen2", "bpe_llama3"] {
        let (json, gguf) = (from_json(folder)?, from_gguf(folder)?);
        for text in ["a".repeat(1_300_000) + " b c", " ".repeat(1_300_000) + "b  c"] {
            let ids = json.encode(&text, PARSED)?;
            assert_eq!(ids, gguf.encode(&text, PARSED)?, "{folder} {:?}", &text[..1]);
            assert!(ids.ends_with(&json.encode(" c", PARSED)?));
        }
    }
    Ok(())
}
