//! Selection of the repository's files that make up the model.

use std::collections::{BTreeMap, HashSet};

use crate::error::{Error, Result, listed};
use crate::limits::MAX_MODEL_FILES;
use crate::listing::{Listing, RemoteFile};
use crate::names::path_fault;
use crate::near::nearest;
use crate::reference::{ModelReference, is_name};

/// Quantizations, the one that is taken first when a repository offers several: the usual
/// compromise of size and quality first, then larger ones before smaller ones, unquantized ones
/// last.
const PREFERENCE: [&str; 20] = [
    "Q4_K_M", "Q4_K_S", "Q5_K_M", "Q5_K_S", "IQ4_XS", "IQ4_NL", "Q4_0", "Q4_1", "Q6_K", "Q8_0", "Q5_0",
    "Q5_1", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K", "BF16", "F16", "FP16", "F32",
];

/// Endings of files with weights.
const GGUF: &str = ".gguf";
const SAFETENSORS: &str = ".safetensors";

/// Files beside the weights that belong to a model in the form of `transformers`, or of
/// `sentence-transformers`.
const COMPANIONS: [&str; 17] = [
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "modules.json",
    "sentence_bert_config.json",
    "1_Pooling/config.json",
    "1_LogitScore/config.json",
];

/// The files of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Selection {
    /// All of them.
    pub(crate) files: Vec<RemoteFile>,
    /// Path of what a program opens: a file, or nothing for the folder of all files.
    pub(crate) model: String,
    /// The name that the model gets when it is given none.
    pub(crate) name: String,
}

/// One model in GGUF: a file, or all parts of a split one.
struct Candidate<'a> {
    /// Path of the first part.
    first: &'a str,
    /// Path without number of the part and ending.
    stem: &'a str,
    /// The stem in upper case, in which words are looked for.
    words: String,
    parts: Vec<&'a RemoteFile>,
}

impl Listing {
    /// The files of the model that a reference means: those that
    /// [`Store::pull`](crate::Store::pull) would fetch.
    ///
    /// # Errors
    /// Nothing that fits, more than one thing that fits, a part that is missing, too many parts, a
    /// name that is not safe to store.
    pub fn model_files(&self, reference: &ModelReference) -> Result<Vec<RemoteFile>> {
        Ok(select(self, reference)?.files)
    }
}

/// Chooses the files that the reference means.
///
/// # Errors
/// Nothing that fits, more than one thing that fits, a part that is missing, more than
/// [`MAX_MODEL_FILES`], a name that is not safe to store.
pub(crate) fn select(listing: &Listing, reference: &ModelReference) -> Result<Selection> {
    let repo = reference.repo();
    let candidates = gguf_models(listing, repo)?;
    let selection = match reference.file() {
        Some(file) => named(listing, repo, file, &candidates)?,
        None if candidates.is_empty() => folder(listing, repo)?,
        None => preferred(repo, &candidates)?,
    };
    if selection.files.len() > MAX_MODEL_FILES {
        let (found, limit) = (selection.files.len(), MAX_MODEL_FILES);
        return Err(Error::TooManyFiles { repo: repo.to_owned(), found, limit });
    }
    let mut lower = HashSet::with_capacity(selection.files.len());
    for file in &selection.files {
        let fault = path_fault(&file.path).or_else(|| {
            let is_new = lower.insert(file.path.to_lowercase());
            (!is_new).then_some("another file has the same name but for upper and lower case")
        });
        if let Some(reason) = fault {
            return Err(Error::UnsafeName { name: crate::error::shortened(&file.path), reason });
        }
    }
    Ok(selection)
}

/// All models in GGUF, but for projections of pictures and statistics, which are no models by
/// themselves.
fn gguf_models<'a>(listing: &'a Listing, repo: &str) -> Result<Vec<Candidate<'a>>> {
    let mut groups: BTreeMap<&str, Vec<&RemoteFile>> = BTreeMap::new();
    for file in &listing.files {
        let name = file_name(&file.path).to_ascii_lowercase();
        let is_model = name.ends_with(GGUF) && !name.starts_with("mmproj") && !name.contains("imatrix");
        if is_model {
            groups
                .entry(split(&file.path, GGUF).map_or(file.path.as_str(), |part| part.stem))
                .or_default()
                .push(file);
        }
    }
    groups.into_values().map(|parts| candidate(parts, repo)).collect()
}

/// Puts the parts of a model in order and checks that there are all of them.
fn candidate<'a>(mut parts: Vec<&'a RemoteFile>, repo: &str) -> Result<Candidate<'a>> {
    parts.sort_by(|a, b| a.path.cmp(&b.path));
    let first = parts[0].path.as_str();
    let Some(part) = split(first, GGUF) else {
        let stem = &first[..first.len() - GGUF.len()];
        return Ok(Candidate { first, stem, words: stem.to_ascii_uppercase(), parts });
    };
    for number in 1..=part.count {
        let file = part.part(number, GGUF);
        // The list is sorted and as long as the numbers, unless one is missing.
        if parts.get(number as usize - 1).is_none_or(|found| found.path != file) {
            return Err(Error::MissingPart { repo: repo.to_owned(), file });
        }
    }
    Ok(Candidate { first, stem: part.stem, words: part.stem.to_ascii_uppercase(), parts })
}

/// A path of the form `STEM-00001-of-00003.gguf`.
struct Split<'a> {
    stem: &'a str,
    count: u32,
}

impl Split<'_> {
    /// The path of one part, counted from 1.
    fn part(&self, number: u32, ending: &str) -> String {
        format!("{}-{number:05}-of-{:05}{ending}", self.stem, self.count)
    }
}

fn split<'a>(path: &'a str, ending: &str) -> Option<Split<'a>> {
    let (rest, count) = path.strip_suffix(ending)?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    let count = count.parse().ok().filter(|_| is_number(count) && is_number(number))?;
    Some(Split { stem, count })
}

/// The model that a file's path or a quantization names.
fn named(listing: &Listing, repo: &str, file: &str, candidates: &[Candidate<'_>]) -> Result<Selection> {
    if let Some(candidate) = candidates.iter().find(|model| model.parts.iter().any(|part| part.path == file))
    {
        return Ok(of_candidate(candidate));
    }
    if let Some(found) = listing.files.iter().find(|found| found.path == file) {
        let name = store_name(file_name(file).trim_end_matches(GGUF));
        return Ok(Selection { files: vec![found.clone()], model: file.to_owned(), name });
    }
    let of_quantization: Vec<&Candidate<'_>> =
        candidates.iter().filter(|model| has_quantization(model, file)).collect();
    match of_quantization[..] {
        [candidate] => Ok(of_candidate(candidate)),
        [] => {
            let near = nearest(file, listing.files.iter().map(|file| file.path.as_str()));
            let there_is = match near.is_empty() {
                true => format!("there is {}", listed(listing.files.iter().map(|file| file.path.as_str()))),
                false => format!("near to it is {}", listed(near.into_iter())),
            };
            Err(Error::NoSuchFile { repo: repo.to_owned(), file: crate::error::shortened(file), there_is })
        }
        _ => Err(ambiguous(repo, of_quantization.into_iter())),
    }
}

/// The model with the preferred quantization.
fn preferred(repo: &str, candidates: &[Candidate<'_>]) -> Result<Selection> {
    if let [only] = candidates {
        return Ok(of_candidate(only));
    }
    for quantization in PREFERENCE {
        let mut fitting = candidates.iter().filter(|model| has_quantization(model, quantization));
        match (fitting.next(), fitting.next()) {
            (None, _) => {}
            (Some(candidate), None) => return Ok(of_candidate(candidate)),
            // Several models, not several sizes of one.
            _ => return Err(ambiguous(repo, candidates.iter())),
        }
    }
    Err(ambiguous(repo, candidates.iter()))
}

fn ambiguous<'a>(repo: &str, candidates: impl Iterator<Item = &'a Candidate<'a>>) -> Error {
    Error::Ambiguous { repo: repo.to_owned(), choices: listed(candidates.map(|model| model.first)) }
}

fn of_candidate(candidate: &Candidate<'_>) -> Selection {
    Selection {
        files: candidate.parts.iter().map(|&part| part.clone()).collect(),
        model: candidate.first.to_owned(),
        name: store_name(file_name(candidate.stem)),
    }
}

/// True if the model's path has `quantization` as one of its words, in upper or lower case.
fn has_quantization(model: &Candidate<'_>, quantization: &str) -> bool {
    let (path, wanted) = (model.words.as_str(), quantization.to_ascii_uppercase());
    // `_` belongs to words: Q4_K_M does not contain the word Q4_K.
    let is_border = |c: Option<char>| c.is_none_or(|c| !c.is_ascii_alphanumeric() && c != '_');
    path.match_indices(&wanted).any(|(start, found)| {
        is_border(path[..start].chars().next_back()) && is_border(path[start + found.len()..].chars().next())
    })
}

/// The files of a model in the form of `transformers`: configuration, weights, tokenizer.
fn folder(listing: &Listing, repo: &str) -> Result<Selection> {
    let at_root = || listing.files.iter().filter(|file| !file.path.contains('/'));
    let has = |name: &str| at_root().any(|file| file.path == name);
    let weights: Vec<&RemoteFile> = if has("model.safetensors") {
        at_root().filter(|file| file.path == "model.safetensors").collect()
    } else {
        at_root()
            .filter(|file| file.path.ends_with(SAFETENSORS) && !file.path.starts_with("consolidated"))
            .collect()
    };
    if weights.is_empty() || !has("config.json") {
        let there_is = match listing.files.is_empty() {
            true => "it is empty".to_owned(),
            false => format!("there is {}", listed(listing.files.iter().map(|file| file.path.as_str()))),
        };
        return Err(Error::NoModel { repo: repo.to_owned(), there_is });
    }
    if let Some(file) = missing_shard(&weights) {
        return Err(Error::MissingPart { repo: repo.to_owned(), file });
    }
    let companions = listing.files.iter().filter(|file| COMPANIONS.contains(&file.path.as_str()));
    let files = companions.chain(weights).cloned().collect();
    Ok(Selection { files, model: String::new(), name: store_name(file_name(repo)) })
}

/// The first file that the numbers in the names of the others (`model-00001-of-00002.safetensors`)
/// promise.
fn missing_shard(weights: &[&RemoteFile]) -> Option<String> {
    let shard = weights.iter().find_map(|file| split(&file.path, SAFETENSORS))?;
    let paths: HashSet<&str> = weights.iter().map(|file| file.path.as_str()).collect();
    // Ends with the first that is missing: a hostile count cannot keep this busy.
    (1..=shard.count)
        .map(|number| shard.part(number, SAFETENSORS))
        .find(|name| !paths.contains(name.as_str()))
}

/// The last part of a path.
fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// `text` as a name of the store: what is not allowed there becomes a dash.
fn store_name(text: &str) -> String {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let replaced: String = text.chars().take(100).map(|c| if is_allowed(c) { c } else { '-' }).collect();
    let name = replaced.trim_start_matches(['.', '-']).trim_end_matches('.');
    if is_name(name) { name.to_owned() } else { "model".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(paths: &[&str]) -> Listing {
        let file = |path: &&str| RemoteFile { path: (*path).to_owned(), bytes: Some(1), sha256: None };
        Listing { commit: "c0".to_owned(), files: paths.iter().map(file).collect() }
    }

    fn chosen(paths: &[&str], reference: &str) -> Result<(Vec<String>, String, String)> {
        let selection = select(&listing(paths), &reference.parse().unwrap())?;
        let files = selection.files.into_iter().map(|file| file.path).collect();
        Ok((files, selection.model, selection.name))
    }

    #[track_caller]
    fn check(paths: &[&str], reference: &str, files: &[&str], model: &str, name: &str) {
        let found = chosen(paths, reference).unwrap();
        assert_eq!(
            found,
            (files.iter().map(|&file| file.to_owned()).collect(), model.to_owned(), name.to_owned())
        );
    }

    const SIZES: [&str; 5] =
        ["README.md", "m.Q8_0.gguf", "m.Q4_K_S.gguf", "m.Q4_K_M.gguf", "mmproj-f16.gguf"];

    #[test]
    fn the_usual_quantization_is_preferred() {
        check(&SIZES, "hf://a/b", &["m.Q4_K_M.gguf"], "m.Q4_K_M.gguf", "m.Q4_K_M");
        check(&["x/only.gguf", "config.json"], "hf://a/b", &["x/only.gguf"], "x/only.gguf", "only");
        check(&["m-f16.gguf", "m-q8_0.gguf"], "hf://a/b", &["m-q8_0.gguf"], "m-q8_0.gguf", "m-q8_0");
    }

    #[test]
    fn files_and_quantizations_are_named() {
        check(&SIZES, "hf://a/b/m.Q8_0.gguf", &["m.Q8_0.gguf"], "m.Q8_0.gguf", "m.Q8_0");
        check(&SIZES, "hf://a/b/q4_k_s", &["m.Q4_K_S.gguf"], "m.Q4_K_S.gguf", "m.Q4_K_S");
        check(&SIZES, "hf://a/b/mmproj-f16.gguf", &["mmproj-f16.gguf"], "mmproj-f16.gguf", "mmproj-f16");
        let error = chosen(&SIZES, "hf://a/b/m.Q4_K_L.gguf").unwrap_err().to_string();
        assert!(error.contains("m.Q4_K_M.gguf"), "{error}");
        // Q4_K is not the beginning of Q4_K_M.
        assert!(matches!(chosen(&SIZES, "hf://a/b/Q4_K"), Err(Error::NoSuchFile { .. })));
    }

    #[test]
    fn split_models_are_one() {
        let paths = ["q8/m-00002-of-00002.gguf", "q8/m-00001-of-00002.gguf", "z.gguf"];
        let parts = ["q8/m-00001-of-00002.gguf", "q8/m-00002-of-00002.gguf"];
        check(&paths, "hf://a/b/q8/m-00002-of-00002.gguf", &parts, parts[0], "m");
        let error = chosen(&["m-00001-of-00003.gguf", "m-00003-of-00003.gguf"], "hf://a/b").unwrap_err();
        assert!(matches!(error, Error::MissingPart { file, .. } if file == "m-00002-of-00003.gguf"));
        assert!(matches!(chosen(&["m-00001-of-99999.gguf"], "hf://a/b"), Err(Error::MissingPart { .. })));
        assert!(chosen(&["m-00000-of-00000.gguf"], "hf://a/b").is_ok());
    }

    #[test]
    fn models_have_a_number_of_files() {
        for (ending, others) in [("gguf", &[][..]), ("safetensors", &["config.json".to_owned()])] {
            let model = |count: usize| {
                let parts = (1..=count).rev().map(|part| format!("m-{part:05}-of-{count:05}.{ending}"));
                let paths: Vec<String> = parts.chain(others.iter().cloned()).collect();
                chosen(&paths.iter().map(String::as_str).collect::<Vec<_>>(), "hf://a/b")
            };
            let most = MAX_MODEL_FILES - others.len();
            assert_eq!(model(most).unwrap().0.len(), MAX_MODEL_FILES);
            let many = model(99_999).unwrap_err();
            assert!(matches!(many, Error::TooManyFiles { limit: MAX_MODEL_FILES, .. }), "{many}");
        }
    }

    #[test]
    fn several_models_are_ambiguous() {
        let error =
            chosen(&["a.Q4_K_M.gguf", "b.Q4_K_M.gguf", "b.Q8_0.gguf"], "hf://a/b").unwrap_err().to_string();
        for piece in ["a.Q4_K_M.gguf", "b.Q4_K_M.gguf", "b.Q8_0.gguf", "hf://a/b/FILE"] {
            assert!(error.contains(piece), "{error}");
        }
        assert!(matches!(chosen(&["a.gguf", "b.gguf"], "hf://a/b"), Err(Error::Ambiguous { .. })));
    }

    #[test]
    fn a_folder_of_safetensors_is_one_model() {
        let paths = [
            ".gitattributes",
            "1_LogitScore/config.json",
            "1_Pooling/config.json",
            "README.md",
            "config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "modules.json",
            "onnx/config.json",
            "onnx/model.onnx",
            "pytorch_model.bin",
            "tokenizer.json",
        ];
        let files = [
            "1_LogitScore/config.json",
            "1_Pooling/config.json",
            "config.json",
            "model.safetensors.index.json",
            "modules.json",
            "tokenizer.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
        ];
        check(&paths, "hf://a/Tiny-1.5B", &files, "", "Tiny-1.5B");
        check(
            &[
                "chat_template.json",
                "config.json",
                "model.safetensors",
                "consolidated.safetensors",
                "x.safetensors",
            ],
            "hf://a/b",
            &["chat_template.json", "config.json", "model.safetensors"],
            "",
            "b",
        );
        let missing = chosen(&["config.json", "model-00001-of-00002.safetensors"], "hf://a/b");
        assert!(
            matches!(missing, Err(Error::MissingPart { file, .. }) if file == "model-00002-of-00002.safetensors")
        );
        for paths in
            [&[][..], &["config.json"], &["model.safetensors"], &["config.json", "sub/model.safetensors"]]
        {
            assert!(matches!(chosen(paths, "hf://a/b"), Err(Error::NoModel { .. })), "{paths:?}");
        }
    }

    #[test]
    fn names_that_leave_the_store_are_refused() {
        for path in [
            "con.gguf",
            "a./m.gguf",
            "m\u{202e}.gguf",
            "../m.gguf",
            "/etc/m.gguf",
            "a/../../m.gguf",
            "C:\\m.gguf",
            "a//m.gguf",
            "m\n.gguf",
        ] {
            assert!(matches!(chosen(&[path], "hf://a/b"), Err(Error::UnsafeName { .. })), "{path:?}");
        }
    }

    #[test]
    fn names_differ_in_more_than_their_case() {
        let paths = ["config.json", "A.safetensors", "a.safetensors"];
        let error = chosen(&paths, "hf://a/b").unwrap_err().to_string();
        assert!(error.contains("`a.safetensors`") && error.contains("upper and lower case"), "{error}");
    }

    #[test]
    fn default_names_are_names() {
        for (text, name) in [
            ("a b+c", "a-b-c"),
            ("..x.", "x"),
            ("nul.q4", "model"),
            ("", "model"),
            ("---", "model"),
            ("\u{e9}1", "1"),
        ] {
            assert_eq!(store_name(text), name);
        }
    }
}
