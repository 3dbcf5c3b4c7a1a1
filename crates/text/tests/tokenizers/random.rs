//! Random texts: encoders of GGUF vocabularies against the tokenizers library, and invariants.

use proptest::prelude::*;
use ruvllm_text::{
    TokenId,
    tokenizer::{EncodeOptions, Tokenizer},
};
use tokenizers::{NormalizedString, Normalizer, normalizers::NFC};

use super::{FROM_GGUF, FROM_JSON, Failure, PARSED, from_gguf, from_json};

const RAW: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };

/// Words of several scripts, control characters, emoji sequences, whole and truncated special
/// tokens.
const WORDS: &[&str] = &[
    "the",
    " knots",
    "Ropes",
    "don't",
    "IT'S",
    "naïve",
    "你好世界",
    "привет",
    "مرحبا",
    "नमस्ते",
    "한국어",
    "日本語の",
    "สวัสดี",
    "e\u{301}",
    "ﬁ",
    "ǅ",
    "½",
    "²",
    "Ⅷ",
    "👩‍💻",
    "🏳️‍🌈",
    "👍🏽",
    "🇩🇪",
    "\0",
    "\u{7f}",
    "\u{fdd0}",
    "\u{ffff}",
    "\u{10ffff}",
    "\u{feff}",
    "\u{200b}",
    "\u{202e}",
    "\u{fffd}",
    "▁",
    "▁▁a",
    "\r\n",
    "<s>",
    "</s>",
    "<unk>",
    "<pad>",
    "<bos>",
    "<0x0A>",
    "<|im_start|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|user|>",
    "<|end|>",
    "<end_of_turn>",
    "[INST]",
    "[/INST]",
    "<|im_",
    "<|",
    "end|>",
    "Ġthe",
    "Ċ",
];

/// Pieces of texts: the words above, white space of all kinds, numbers, long runs, any character.
fn part() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => prop::sample::select(WORDS).prop_map(str::to_owned),
        2 => "[ \t\n\r]{1,6}",
        1 => "[\u{a0}\u{3000}\u{2028}\u{85}\u{1c} ]{1,4}",
        2 => "[a-z]{1,12}",
        1 => "[0-9]{1,8}",
        1 => "[!-/:-@\\[-`{-~]{1,6}",
        1 => any::<char>().prop_map(String::from),
        1 => (any::<char>(), 1usize..80).prop_map(|(c, n)| String::from(c).repeat(n)),
    ]
}

fn input() -> impl Strategy<Value = String> {
    prop::collection::vec(part(), 0..14).prop_map(|parts| parts.concat())
}

fn composed(input: &str) -> Result<String, TestCaseError> {
    let mut normalized = NormalizedString::from(input);
    NFC.normalize(&mut normalized).map_err(|error| TestCaseError::fail(error.to_string()))?;
    Ok(normalized.get().to_owned())
}

fn fail(error: impl ToString) -> TestCaseError {
    TestCaseError::fail(error.to_string())
}

/// Checks a property on random texts.
fn check(cases: u32, property: impl Fn(&str) -> Result<(), TestCaseError>) -> Result<(), Failure> {
    let config = ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(cases * ProptestConfig::default().cases / 256)
    };
    let rng = proptest::test_runner::TestRng::deterministic_rng(config.rng_algorithm);
    let mut runner = proptest::test_runner::TestRunner::new_with_rng(config, rng);
    runner.run(&input(), |text| property(&text)).map_err(|error| error.to_string().into())
}

fn pairs() -> Result<Vec<(&'static str, Tokenizer, Tokenizer)>, Failure> {
    FROM_GGUF.into_iter().map(|folder| Ok((folder, from_json(folder)?, from_gguf(folder)?))).collect()
}

#[test]
fn gguf_and_json_agree() -> Result<(), Failure> {
    let pairs = pairs()?;
    check(1500, |input| {
        for (folder, json, gguf) in &pairs {
            // Two known differences: GGUF contains neither the NFC rule nor the rule that only the
            // first part of a text gets a space.
            let text = if *folder == "bpe_qwen2" { composed(input)? } else { input.to_owned() };
            let first_only = *folder == "spm_bpe_metaspace";
            if first_only && (text.starts_with([' ', '▁']) || text.contains('<')) {
                continue;
            }
            for options in [PARSED, RAW, EncodeOptions::default()] {
                let (a, b) =
                    (json.encode(&text, options).map_err(fail)?, gguf.encode(&text, options).map_err(fail)?);
                prop_assert_eq!(&a, &b, "{} {:?} {:?}", folder, options, text);
            }
        }
        Ok(())
    })
}

#[test]
fn decoding_gives_the_text_back() -> Result<(), Failure> {
    let pairs = pairs()?;
    check(500, |input| {
        for (folder, json, gguf) in &pairs {
            for (tokenizer, normalizes) in [(json, *folder == "bpe_qwen2"), (gguf, false)] {
                let ids = tokenizer.encode(input, RAW).map_err(fail)?;
                let text = if normalizes { composed(input)? } else { input.to_owned() };
                // SentencePiece cannot distinguish its mark from a space.
                let text = if folder.starts_with("spm") { text.replace('▁', " ") } else { text };
                let decoded = tokenizer.decode(&ids, false).map_err(fail)?;
                if *folder == "spm_bpe_metaspace" && text.starts_with(' ') {
                    prop_assert_eq!(decoded.trim_start(), text.trim_start(), "{}", folder);
                } else {
                    prop_assert_eq!(decoded, text, "{}", folder);
                }
            }
        }
        Ok(())
    })
}

#[test]
fn raw_text_gives_no_special_token() -> Result<(), Failure> {
    let tokenizers: Vec<Tokenizer> = FROM_JSON
        .iter()
        .map(|f| from_json(f))
        .chain(FROM_GGUF.iter().map(|f| from_gguf(f)))
        .collect::<Result<_, _>>()?;
    check(500, |input| {
        for tokenizer in &tokenizers {
            let ids = tokenizer.encode(input, RAW).map_err(fail)?;
            prop_assert!(!ids.iter().any(|&id| tokenizer.is_special(id)), "{:?}", input);
        }
        Ok(())
    })
}

#[test]
fn streams_of_random_tokens_join_to_the_decoded_text() -> Result<(), Failure> {
    let tokenizers: Vec<(bool, Tokenizer)> = FROM_JSON
        .iter()
        .map(|folder| Ok((folder.starts_with("spm"), from_json(folder)?)))
        .chain(FROM_GGUF.iter().map(|folder| Ok((folder.starts_with("spm"), from_gguf(folder)?))))
        .collect::<Result<_, Failure>>()?;
    let tokens = prop::collection::vec(any::<u32>(), 0..40);
    let config = ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(300 * ProptestConfig::default().cases / 256)
    };
    let rng = proptest::test_runner::TestRng::deterministic_rng(config.rng_algorithm);
    let mut runner = proptest::test_runner::TestRunner::new_with_rng(config, rng);
    runner
        .run(&(tokens, any::<bool>()), |(tokens, skip)| {
            for (byte_runs, tokenizer) in &tokenizers {
                let size = tokenizer.vocab_size() as TokenId;
                let ids: Vec<TokenId> = tokens.iter().map(|id| id % size).collect();
                let mut stream = tokenizer.stream();
                if skip {
                    stream = stream.skip_special();
                }
                let mut joined = String::new();
                for &id in &ids {
                    joined.push_str(stream.push(id).map_err(fail)?);
                }
                joined.push_str(&stream.finish());
                let decoded = tokenizer.decode(&ids, skip).map_err(fail)?;
                let is_byte =
                    |id: &TokenId| tokenizer.id_to_token(*id).is_some_and(|text| text.starts_with("<0x"));
                if !(*byte_runs && ids.iter().any(is_byte)) {
                    prop_assert_eq!(joined, decoded, "{:?}", ids);
                }
            }
            Ok(())
        })
        .map_err(|error| error.to_string().into())
}
