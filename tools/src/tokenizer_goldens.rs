//! `cargo xtask tokenizer-goldens`: published vocabularies, compared with the token ids of their
//! original tokenizers.
//!
//! The folder is laid out as llama.cpp's `models`: vocabularies `NAME.gguf`, texts `NAME.gguf.inp`
//! and their ids `NAME.gguf.out`, made by the tokenizer that each model was published with. The
//! files are megabytes, so they are not committed; small excerpts are in the tests of
//! `ruvllm-text`.

use std::fs;
use std::path::{Path, PathBuf};

use gguf_rs_lite::Gguf;
use ruvllm_text::TokenId;
use ruvllm_text::tokenizer::{EncodeOptions, Tokenizer};

use crate::{Error, Result};

/// Separator of the texts of a file.
const SEPARATOR: &str = "\n__ggml_vocab_test__\n";

/// Results of one vocabulary.
struct Outcome {
    name: String,
    /// Kind and pre-tokenizer type in the file.
    kind: String,
    tokens: usize,
    cases: usize,
    /// Texts with equal ids.
    equal: usize,
    /// Texts restored by decoding their ids.
    decoded: usize,
    /// First text with different ids, or the error of loading the vocabulary.
    fault: Option<String>,
}

/// Encodes every text of every vocabulary in `folder` and prints a table.
///
/// # Errors
/// A folder without vocabularies, unreadable files, and any text whose ids differ.
pub(crate) fn tokenizer_goldens(folder: &Path) -> Result<()> {
    let mut vocabularies = vocabularies(folder)?;
    vocabularies.sort();
    if vocabularies.is_empty() {
        return Err(Error::NoGoldens { folder: folder.into() });
    }
    println!(
        "| vocabulary | kind | tokens | texts | ids equal | decoded back |\n|---|---|---:|---:|---:|---:|"
    );
    let mut faults = Vec::new();
    for path in vocabularies {
        let Outcome { name, kind, tokens, cases, equal, decoded, fault } = run(&path)?;
        println!("| {name} | {kind} | {tokens} | {cases} | {equal} | {decoded} |");
        faults.extend(fault.map(|fault| format!("{name}: {fault}")));
    }
    if faults.is_empty() { Ok(()) } else { Err(Error::GoldensDiffer { faults: faults.join("; ") }) }
}

/// Vocabularies of a folder with texts and ids.
fn vocabularies(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(Error::io("list", folder))? {
        let path = entry.map_err(Error::io("list", folder))?.path();
        let is_vocabulary = path.extension().is_some_and(|extension| extension == "gguf");
        if is_vocabulary && beside(&path, "inp").is_file() && beside(&path, "out").is_file() {
            paths.push(path);
        }
    }
    Ok(paths)
}

/// `NAME.gguf.EXTENSION` of a vocabulary `NAME.gguf`.
fn beside(vocabulary: &Path, extension: &str) -> PathBuf {
    let mut name = vocabulary.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    name.into()
}

fn run(path: &Path) -> Result<Outcome> {
    let gguf = Gguf::open(path).map_err(|source| Error::ReadModel { path: path.into(), source })?;
    let text = |key: &str| gguf.metadata().get_str(key).ok().flatten().unwrap_or("-").to_owned();
    let kind = format!("{}, {}", text("tokenizer.ggml.model"), text("tokenizer.ggml.pre"));
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let mut outcome = Outcome { name, kind, tokens: 0, cases: 0, equal: 0, decoded: 0, fault: None };
    let tokenizer = match Tokenizer::from_gguf(gguf.metadata()) {
        Ok(tokenizer) => tokenizer,
        Err(error) => {
            outcome.fault = Some(error.to_string());
            return Ok(outcome);
        }
    };
    outcome.tokens = tokenizer.vocab_size();
    // As the golden ids were made: no special tokens added or parsed.
    let options = EncodeOptions { add_special: false, parse_special: false };
    let Some(cases) = cases(&read(&beside(path, "inp"))?, &read(&beside(path, "out"))?) else {
        outcome.fault = Some("the texts are not as many as the lines of ids".to_owned());
        return Ok(outcome);
    };
    for (text, expected) in cases {
        outcome.cases += 1;
        match tokenizer.encode(&text, options) {
            Ok(ids) if ids == expected => outcome.equal += 1,
            Ok(ids) => {
                _ = outcome.fault.get_or_insert(format!("{text:?} gave {ids:?}, expected {expected:?}"));
            }
            Err(error) => _ = outcome.fault.get_or_insert(format!("{text:?}: {error}")),
        }
        outcome.decoded += usize::from(tokenizer.decode(&expected, false).is_ok_and(|back| back == text));
    }
    Ok(outcome)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(Error::io("read", path))
}

/// Texts with their ids; `None` if the counts differ. An id that is not a number becomes one
/// outside of every vocabulary.
fn cases(texts: &str, ids: &str) -> Option<Vec<(String, Vec<TokenId>)>> {
    let texts: Vec<&str> = texts.strip_suffix(SEPARATOR).unwrap_or(texts).split(SEPARATOR).collect();
    let id = |id: &str| id.parse().unwrap_or(TokenId::MAX);
    let ids: Vec<Vec<TokenId>> = ids.lines().map(|line| line.split_whitespace().map(id).collect()).collect();
    (texts.len() == ids.len()).then(|| texts.into_iter().map(str::to_owned).zip(ids).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_ids_belong_together_by_their_place() {
        let expected = [("a\nb", vec![1, 2]), ("", vec![]), (" c", vec![3])];
        let expected = expected.map(|(text, ids)| (text.to_owned(), ids)).to_vec();
        let texts = "a\nb\n__ggml_vocab_test__\n\n__ggml_vocab_test__\n c";
        let ids = " 1 2\n\n 3\n";
        assert_eq!(cases(texts, ids), Some(expected.clone()));
        assert_eq!(cases(&format!("{texts}{SEPARATOR}"), ids), Some(expected));
        assert_eq!(cases(texts, "1\n"), None);
    }
}
