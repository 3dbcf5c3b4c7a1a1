//! Rules around the text, on hand-written vocabularies of a few tokens: BOS and EOS, special and
//! user-defined tokens, end of generation, leading spaces.

use gguf_rs_lite::{Array, Metadata, Value};
use ruvllm_text::{
    Error, TokenId,
    tokenizer::{EncodeOptions, Tokenizer},
};

use super::{Failure, PARSED, data, from_gguf, from_json};

const RAW: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };

pub(crate) fn strings<'a>(values: impl IntoIterator<Item = &'a str>) -> Value {
    Value::Array(Array::String(values.into_iter().map(str::to_owned).collect()))
}

/// `SentencePiece` vocabulary: text, type and score of each token.
pub(crate) fn sentence_piece(tokens: &[(&str, i32, f32)]) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.insert("tokenizer.ggml.model", Value::String("llama".to_owned()));
    metadata.insert("tokenizer.ggml.tokens", strings(tokens.iter().map(|token| token.0)));
    metadata
        .insert("tokenizer.ggml.token_type", Value::Array(Array::I32(tokens.iter().map(|t| t.1).collect())));
    metadata.insert("tokenizer.ggml.scores", Value::Array(Array::F32(tokens.iter().map(|t| t.2).collect())));
    metadata
}

/// Unigram vocabulary that prepends a space and joins spaces.
pub(crate) fn unigram() -> Metadata {
    unigram_of(&[
        ("<unk>", 2, 0.0),
        ("</s>", 3, 0.0),
        ("▁", 1, -2.0),
        ("a", 1, -3.0),
        ("b", 1, -3.0),
        ("▁a", 1, -3.5),
        ("ab", 1, -4.0),
        ("aba", 1, -7.5),
    ])
}

fn unigram_of(tokens: &[(&str, i32, f32)]) -> Metadata {
    let mut metadata = sentence_piece(tokens);
    metadata.insert("tokenizer.ggml.model", Value::String("t5".to_owned()));
    metadata.insert("tokenizer.ggml.add_space_prefix", Value::Bool(true));
    metadata.insert("tokenizer.ggml.remove_extra_whitespaces", Value::Bool(true));
    metadata.insert("tokenizer.ggml.eos_token_id", Value::U32(1));
    metadata.insert("tokenizer.ggml.unknown_token_id", Value::U32(0));
    metadata
}

/// `WordPiece` vocabulary.
pub(crate) fn word_piece() -> Metadata {
    let mut metadata = Metadata::new();
    metadata.insert("tokenizer.ggml.model", Value::String("bert".to_owned()));
    let tokens = [
        "[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁un", "aff", "able", "▁hello", "▁,", "▁你", "▁u", "▁[", "▁]",
        "▁cls",
    ];
    metadata.insert("tokenizer.ggml.tokens", strings(tokens));
    metadata
}

const SMALL: &[(&str, i32, f32)] = &[
    ("<unk>", 2, 0.0),
    ("<s>", 3, 0.0),
    ("</s>", 3, 0.0),
    ("▁", 1, -9.0),
    ("a", 1, -9.0),
    ("b", 1, -9.0),
    ("▁a", 1, -2.0),
    ("ab", 1, -1.0),
    ("▁ab", 1, -3.0),
    ("  ", 4, 0.0),
    ("<|im_end|>", 4, 0.0),
];

#[test]
fn merges_follow_the_scores_and_then_the_place() -> Result<(), Failure> {
    let tokenizer = Tokenizer::from_gguf(&sentence_piece(SMALL))?;
    // ▁ a b: the pair "ab" has the best score, then "▁ab".
    assert_eq!(tokenizer.encode("ab", RAW)?, [8]);
    assert_eq!(tokenizer.encode("ba", RAW)?, [3, 5, 4]);
    assert_eq!(tokenizer.encode("aab", RAW)?, [6, 7]);
    let ties = [("<unk>", 2, 0.0), ("a", 1, -5.0), ("aa", 1, -1.0)];
    let mut metadata = sentence_piece(&ties);
    metadata.insert("tokenizer.ggml.add_space_prefix", Value::Bool(false));
    assert_eq!(Tokenizer::from_gguf(&metadata)?.encode("aaa", RAW)?, [2, 1]);
    Ok(())
}

#[test]
fn the_unigram_model_takes_the_best_sum() -> Result<(), Failure> {
    let mut metadata = unigram();
    let tokenizer = Tokenizer::from_gguf(&metadata)?;
    // ▁ + ab is -6, ▁a + b -6.5.
    assert_eq!(tokenizer.encode("ab", RAW)?, [2, 6]);
    // ▁ + ab + a is -9, ▁ + aba -9.5.
    assert_eq!(tokenizer.encode("aba", RAW)?, [2, 6, 3]);
    assert_eq!(tokenizer.encode("  a \u{3000}  a ", RAW)?, [5, 2, 0, 5]);
    // A run of unknown characters is one token.
    assert_eq!(tokenizer.encode("axyb", RAW)?, [5, 0, 4]);
    assert_eq!(tokenizer.encode("a", EncodeOptions::default())?, [5, 1]);
    assert!(tokenizer.encode(" ", RAW)?.is_empty());
    assert_eq!(tokenizer.decode(&[5, 5, 1], true)?, "a a");
    assert_eq!(tokenizer.encode("a</s>a", PARSED)?, [5, 1, 5]);
    metadata.insert("tokenizer.ggml.remove_extra_whitespaces", Value::Bool(false));
    assert_eq!(Tokenizer::from_gguf(&metadata)?.encode(" a ", RAW)?, [2, 5, 2]);
    Ok(())
}

#[test]
fn equally_good_cuts_differ_by_the_rounding_of_the_library() -> Result<(), Failure> {
    let tokens = [("<unk>", 2, 0.0), ("</s>", 3, 0.0), ("▁", 1, -5.8), ("a", 1, -3.6), ("aaa", 1, -2.2)];
    let tokenizer = Tokenizer::from_gguf(&unigram_of(&tokens))?;
    // Result of the library with the same pieces; float32 sums alone would end in a, aaa.
    assert_eq!(tokenizer.encode("aaaaaaaa", RAW)?, [2, 3, 4, 4, 3]);
    Ok(())
}

#[test]
fn words_are_cut_into_the_longest_pieces() -> Result<(), Failure> {
    let mut metadata = word_piece();
    let tokenizer = Tokenizer::from_gguf(&metadata)?;
    assert_eq!(
        tokenizer.encode("Unaffable,Hélló 你\u{0}", EncodeOptions::default())?,
        [2, 4, 5, 6, 8, 7, 9, 3]
    );
    // No piece begins with the rest of the word, so the whole word is unknown; so is a word of more
    // than 100 characters.
    assert_eq!(tokenizer.encode("unx un", RAW)?, [1, 4]);
    let long = format!("un{}", "aff".repeat(33));
    assert_eq!(tokenizer.encode(&long, RAW)?, [1]);
    assert_eq!(tokenizer.encode(&long[..98], RAW)?.len(), 33);
    assert_eq!(tokenizer.encode("[CLS]", PARSED)?, [2]);
    assert_eq!(tokenizer.encode("[CLS]", RAW)?, [11, 13, 12]);
    assert_eq!(tokenizer.decode(&[2, 4, 5, 6, 8, 7, 3], true)?, "unaffable , hello");
    metadata.insert("tokenizer.ggml.normalizer.lowercase", Value::Bool(false));
    let cased = Tokenizer::from_gguf(&metadata)?;
    assert_eq!(cased.encode("Hello hello héllo", RAW)?, [1, 7, 1]);
    Ok(())
}

#[test]
fn vocabularies_over_characters_merge_within_lines() -> Result<(), Failure> {
    let tokens = [
        ("<bos>", 3, 0.0),
        ("<0xC3>", 6, 0.0),
        ("<0xA9>", 6, 0.0),
        ("a", 1, 0.0),
        ("▁", 1, 0.0),
        ("▁a", 1, 0.0),
        ("\n", 1, 0.0),
        ("\n\n", 1, 0.0),
        ("a▁", 1, 0.0),
    ];
    let mut metadata = sentence_piece(&tokens);
    metadata.insert("tokenizer.ggml.model", Value::String("gemma4".to_owned()));
    metadata.insert("tokenizer.ggml.merges", strings(["a ▁", "▁ a"]));
    metadata.insert("tokenizer.ggml.bos_token_id", Value::U32(0));
    metadata.insert("tokenizer.ggml.add_bos_token", Value::Bool(false));
    let tokenizer = Tokenizer::from_gguf(&metadata)?;
    // "a▁" is merged before "▁a"; é and ü become bytes, of which the second one of ü has no token.
    assert_eq!(tokenizer.encode("a a\n\n aé\nü", RAW)?, [8, 3, 7, 5, 1, 2, 6, 1]);
    assert_eq!(tokenizer.encode("a", EncodeOptions::default())?, [0, 3]);
    assert_eq!(tokenizer.decode(&[5, 1, 2, 6], false)?, " aé\n");
    metadata.insert("tokenizer.ggml.model", Value::String("gpt2".to_owned()));
    metadata.insert("tokenizer.ggml.pre", Value::String("sarvam-moe".to_owned()));
    assert_eq!(Tokenizer::from_gguf(&metadata)?.encode("a a", EncodeOptions::default())?, [8, 3]);
    Ok(())
}

#[test]
fn without_byte_tokens_a_run_of_unknown_characters_is_one_token() -> Result<(), Failure> {
    let tokenizer = Tokenizer::from_gguf(&sentence_piece(SMALL))?;
    assert_eq!(tokenizer.encode("axyzb q", RAW)?, [6, 0, 5, 3, 0]);
    let no_unknown: Vec<_> = SMALL.iter().map(|&(text, kind, score)| (text, kind.max(3), score)).collect();
    let mut metadata = sentence_piece(&no_unknown[1..]);
    metadata.insert("tokenizer.ggml.unknown_token_id", Value::U32(2));
    assert_eq!(Tokenizer::from_gguf(&metadata)?.encode("q", RAW)?.len(), 1);
    Ok(())
}

#[test]
fn a_space_is_prepended_where_the_model_says() -> Result<(), Failure> {
    let mut metadata = sentence_piece(SMALL);
    let with = Tokenizer::from_gguf(&metadata)?;
    assert_eq!(with.encode("a", RAW)?, [6]);
    assert!(with.encode("", RAW)?.is_empty());
    assert_eq!(with.encode("<s>a</s>", PARSED)?, [1, 6, 2]);
    assert_eq!(with.encode("a<s>", RAW)?, [6, 0]);
    // Also after a user-defined token.
    assert_eq!(with.encode("a  a", RAW)?, [6, 9, 6]);
    assert_eq!(with.decode(&[6, 6], false)?, "a a");
    assert_eq!(with.decode(&[1, 6], true)?, "a");
    assert_eq!(with.decode(&[1, 6], false)?, "<s> a");
    assert_eq!(with.decode(&[3], false)?, "");
    metadata.insert("tokenizer.ggml.add_space_prefix", Value::Bool(false));
    let without = Tokenizer::from_gguf(&metadata)?;
    assert_eq!(without.encode("a", RAW)?, [4]);
    assert_eq!(without.decode(&[6], false)?, " a");
    Ok(())
}

#[test]
fn a_stream_that_continues_a_text_keeps_its_first_space() -> Result<(), Failure> {
    let tokenizer = Tokenizer::from_gguf(&sentence_piece(SMALL))?;
    let mut fresh = tokenizer.stream();
    assert_eq!([fresh.push(6)?.to_owned(), fresh.push(6)?.to_owned()], ["a", " a"]);
    let mut continuing = tokenizer.stream().continuing();
    assert_eq!(continuing.push(6)?, " a");
    let mut skipping = tokenizer.stream().skip_special();
    assert_eq!([skipping.push(1)?.to_owned(), skipping.push(6)?.to_owned()], ["", "a"]);
    Ok(())
}

#[test]
fn bos_and_eos_are_added_as_the_metadata_says() -> Result<(), Failure> {
    let mut metadata = sentence_piece(SMALL);
    let all = EncodeOptions::default();
    assert_eq!(Tokenizer::from_gguf(&metadata)?.encode("a", all)?, [1, 6]);
    metadata.insert("tokenizer.ggml.add_eos_token", Value::Bool(true));
    assert_eq!(Tokenizer::from_gguf(&metadata)?.encode("a", all)?, [1, 6, 2]);
    metadata.insert("tokenizer.ggml.add_bos_token", Value::Bool(false));
    let tokenizer = Tokenizer::from_gguf(&metadata)?;
    assert_eq!(tokenizer.encode("a", all)?, [6, 2]);
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.adds_bos()), (Some(1), Some(2), false));
    Ok(())
}

#[test]
fn byte_level_vocabularies_add_bos_only_when_told() -> Result<(), Failure> {
    assert!(from_gguf("bpe_gpt2")?.adds_bos());
    let qwen = from_gguf("bpe_qwen2")?;
    assert!(!qwen.adds_bos() && qwen.bos().is_none());
    Ok(())
}

#[test]
fn answers_end_with_any_known_end_token() -> Result<(), Failure> {
    let ends = |tokenizer: &Tokenizer| {
        let names = tokenizer.end_of_generation().iter().filter_map(|&id| tokenizer.id_to_token(id));
        names.collect::<Vec<_>>()
    };
    assert_eq!(ends(&from_gguf("bpe_llama3")?), ["<|end_of_text|>", "<|eot_id|>"]);
    assert_eq!(ends(&from_gguf("bpe_qwen2")?), ["<|endoftext|>", "<|im_end|>"]);
    assert_eq!(ends(&from_json("bpe_qwen2")?), ["<|endoftext|>", "<|im_end|>"]);
    assert_eq!(ends(&from_gguf("spm_gemma")?), ["<eos>", "<end_of_turn>"]);
    assert_eq!(ends(&from_gguf("spm_bpe")?), ["</s>", "<|endoftext|>", "<|end|>"]);
    let tokenizer = Tokenizer::from_gguf(&sentence_piece(SMALL))?;
    // The end marker is wrongly declared as user-defined, but still special.
    assert!(tokenizer.is_end_of_generation(10) && tokenizer.is_special(10) && !tokenizer.is_special(9));
    assert!(!tokenizer.is_end_of_generation(1) && !tokenizer.is_end_of_generation(TokenId::MAX));
    Ok(())
}

#[test]
fn pieces_of_markup_are_no_end_tokens() -> Result<(), Failure> {
    let tokens = [("<unk>", 2, 0.0), ("<bos>", 3, 0.0), ("<eos>", 3, 0.0), ("</s>", 1, -1.0)];
    let tokenizer = Tokenizer::from_gguf(&sentence_piece(&tokens))?;
    assert_eq!(tokenizer.end_of_generation(), [2]);
    Ok(())
}

#[test]
fn the_end_of_a_part_is_no_end_of_an_answer_in_harmony() -> Result<(), Failure> {
    let mut tokens =
        vec![("<unk>", 2, 0.0), ("<|return|>", 3, 0.0), ("<|end|>", 3, 0.0), ("<|call|>", 3, 0.0)];
    let mut metadata = sentence_piece(&tokens);
    metadata.insert("tokenizer.ggml.eos_token_id", Value::U32(1));
    assert_eq!(Tokenizer::from_gguf(&metadata)?.end_of_generation(), [1, 3]);
    tokens.pop();
    let mut metadata = sentence_piece(&tokens);
    metadata.insert("tokenizer.ggml.eos_token_id", Value::U32(1));
    assert_eq!(Tokenizer::from_gguf(&metadata)?.end_of_generation(), [1, 2]);
    Ok(())
}

#[test]
fn white_space_after_a_marker_of_phi3_belongs_to_it() -> Result<(), Failure> {
    let mut metadata = sentence_piece(SMALL);
    assert_eq!(Tokenizer::from_gguf(&metadata)?.encode("</s>\n a", PARSED)?, [2, 3, 0, 6]);
    metadata.insert("general.name", Value::String("Phi-3 Mini".to_owned()));
    let tokenizer = Tokenizer::from_gguf(&metadata)?;
    assert_eq!(tokenizer.encode("</s>\n a", PARSED)?, [2, 6]);
    assert_eq!(tokenizer.encode("<s> a", PARSED)?, [1, 3, 6]);
    Ok(())
}

#[test]
fn texts_ids_and_bytes_of_tokens() -> Result<(), Failure> {
    let llama = from_gguf("bpe_llama3")?;
    let the = llama.token_to_id("Ġthe").ok_or("Ġthe")?;
    assert_eq!(llama.id_to_token(the).as_deref(), Some("Ġthe"));
    assert_eq!(llama.token_bytes(the).as_deref(), Some(b" the".as_slice()));
    assert_eq!(llama.token_bytes(222).as_deref(), Some([0x80].as_slice()));
    assert_eq!(llama.vocab_size(), 919);
    assert_eq!(llama.token_to_id("<|eot_id|>"), Some(918));
    assert_eq!(llama.token_bytes(918).as_deref(), Some(b"<|eot_id|>".as_slice()));
    assert_eq!((llama.id_to_token(919), llama.token_bytes(919), llama.is_special(919)), (None, None, false));
    let phi = from_gguf("spm_bpe")?;
    assert_eq!(phi.token_bytes(13).as_deref(), Some(b"\n".as_slice()));
    let space = phi.token_to_id("▁").ok_or("▁")?;
    assert_eq!(phi.token_bytes(space).as_deref(), Some(b" ".as_slice()));
    Ok(())
}

#[test]
fn ids_outside_the_vocabulary_are_errors() -> Result<(), Failure> {
    for tokenizer in [from_gguf("bpe_llama3")?, from_json("spm_unigram")?] {
        let size = tokenizer.vocab_size();
        for id in [size as TokenId, TokenId::MAX] {
            let error = tokenizer.decode(&[0, id], true);
            assert!(
                matches!(error, Err(Error::UnknownTokenId { id: found, vocab_size }) if (found, vocab_size) == (id, size))
            );
            let mut stream = tokenizer.stream();
            assert!(stream.push(id).is_err());
            assert!(stream.push(0).is_ok());
        }
    }
    Ok(())
}

#[test]
fn a_file_is_read_with_the_configuration_beside_it() -> Result<(), Failure> {
    let qwen = Tokenizer::from_file(&data("bpe_qwen2", "tokenizer.json"))?;
    assert_eq!(qwen.eos(), qwen.token_to_id("<|im_end|>"));
    let llama = Tokenizer::from_file(&data("bpe_llama3", "tokenizer.json"))?;
    assert_eq!((llama.bos(), llama.eos()), (Some(913), Some(918)));
    let missing = Tokenizer::from_file(&data("bpe_llama3", "absent.json"));
    assert!(matches!(missing, Err(Error::TokenizerIo { path, .. }) if path.ends_with("absent.json")));
    Ok(())
}

/// Definition of a fixture with another decoder.
fn with_decoder(folder: &str, decoder: serde_json::Value) -> Result<Vec<u8>, Failure> {
    let mut json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(data(folder, "tokenizer.json"))?)?;
    json["decoder"] = decoder;
    Ok(serde_json::to_vec(&json)?)
}

#[test]
fn decoders_of_all_kinds_give_what_the_library_gives() -> Result<(), Failure> {
    let decoders = [
        serde_json::json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false}),
        serde_json::json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": false}),
        serde_json::json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
        serde_json::json!({"type": "Fuse"}),
        serde_json::Value::Null,
    ];
    for decoder in decoders {
        let json = with_decoder("spm_bpe", decoder.clone())?;
        let tokenizer = Tokenizer::from_json(&json)?;
        let library = tokenizers::Tokenizer::from_bytes(&json).map_err(|error| error.to_string())?;
        for text in ["Hello world", "a  b\nc  ", "naïve 🙂 x", "<s> the<|end|>", ""] {
            let ids = tokenizer.encode(text, PARSED)?;
            let expected = library.decode(&ids, false).map_err(|error| error.to_string())?;
            assert_eq!(tokenizer.decode(&ids, false)?, expected, "{decoder} {text:?}");
            let mut stream = tokenizer.stream();
            let mut joined = String::new();
            for &id in &ids {
                joined.push_str(stream.push(id)?);
            }
            joined.push_str(&stream.finish());
            assert_eq!(joined, expected, "{decoder} {text:?}");
        }
    }
    Ok(())
}
