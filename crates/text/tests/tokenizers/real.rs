//! Real vocabularies, reduced to the tokens that their texts need (`tests/data/vocab`).

use std::{
    fs,
    path::{Path, PathBuf},
};

use gguf_rs_lite::Gguf;
use ruvllm_text::{
    TokenId,
    tokenizer::{EncodeOptions, Tokenizer},
};

use super::Failure;

const SEPARATOR: &str = "\n__ggml_vocab_test__\n";

const RAW: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };

fn vocabularies() -> Result<Vec<PathBuf>, Failure> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/vocab");
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "gguf") {
            paths.push(path);
        }
    }
    assert!(paths.len() >= 6);
    Ok(paths)
}

/// Texts of a vocabulary with their ids.
fn cases(path: &Path) -> Result<Vec<(String, Vec<TokenId>)>, Failure> {
    let texts = fs::read_to_string(path.with_extension("gguf.inp"))?;
    let texts: Vec<&str> =
        texts.strip_suffix(SEPARATOR).ok_or("no separator at the end")?.split(SEPARATOR).collect();
    let ids = fs::read_to_string(path.with_extension("gguf.out"))?;
    let ids = ids.lines().map(|line| line.split_whitespace().map(str::parse).collect());
    let ids: Vec<Vec<TokenId>> = ids.collect::<Result<_, _>>()?;
    assert_eq!(texts.len(), ids.len());
    Ok(texts.into_iter().map(str::to_owned).zip(ids).collect())
}

#[test]
fn reduced_vocabularies_encode_as_the_models_own_tokenizers() -> Result<(), Failure> {
    for path in vocabularies()? {
        let tokenizer = Tokenizer::from_gguf(Gguf::open(&path)?.metadata())?;
        for (text, expected) in cases(&path)? {
            assert_eq!(tokenizer.encode(&text, RAW)?, expected, "{} {text:?}", path.display());
        }
    }
    Ok(())
}

#[test]
fn their_ids_decode_to_the_texts_at_once_and_as_a_stream() -> Result<(), Failure> {
    for path in vocabularies()? {
        let tokenizer = Tokenizer::from_gguf(Gguf::open(&path)?.metadata())?;
        // WordPiece keeps neither case nor white space.
        let is_exact = !path.ends_with("bert-bge.gguf");
        for (text, ids) in cases(&path)? {
            let decoded = tokenizer.decode(&ids, false)?;
            if is_exact {
                assert_eq!(decoded, text, "{}", path.display());
            }
            let mut stream = tokenizer.stream();
            let mut joined = String::new();
            for &id in &ids {
                joined.push_str(stream.push(id)?);
            }
            joined.push_str(&stream.finish());
            assert_eq!(joined, decoded, "{} {text:?}", path.display());
        }
    }
    Ok(())
}
