//! Top-level documents: links and paths resolve, copied code matches its source.

use std::fs;
use std::path::{Path, PathBuf};

use regex_lite::Regex;

const DOCUMENTS: [&str; 17] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/adr/README.md",
    "docs/adr/template.md",
    "docs/performance.md",
    "docs/performance/amd-epyc-zen5.md",
    "docs/performance/intel-xeon.md",
    "docs/glossary.md",
    "docs/kv-cache.md",
    "docs/models.md",
    "docs/security.md",
    "docs/performance-gpu.md",
    "docs/testing.md",
    "models/README.md",
    "models/SOURCES.md",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn the_readme_shows_the_example_as_it_is() {
    assert!(read("README.md").contains(&read("crates/runtime/examples/generate.rs")));
}

#[test]
fn the_readme_and_the_ci_script_name_the_same_command() {
    let readme = read("README.md");
    let commands: Vec<&str> = readme
        .split("```sh\n")
        .nth(1)
        .and_then(|block| block.split("```").next())
        .expect("the README begins with a block of commands")
        .lines()
        .collect();
    assert_eq!(commands.len(), 2, "one command to see it work, one to check it");
    assert!(read(".ci/run").trim_end().ends_with(commands[1]), "{}", commands[1]);
}

#[test]
fn links_lead_to_files() {
    let link = Regex::new(r"\]\(([^)#]+)(?:#[^)]*)?\)").expect("a constant pattern");
    for document in DOCUMENTS {
        let folder = root().join(document).parent().expect("a folder").to_owned();
        for found in link.captures_iter(&read(document)) {
            let target = &found[1];
            assert!(target.starts_with("https://") || folder.join(target).exists(), "{document}: {target}");
        }
    }
}

#[test]
fn paths_in_the_documents_exist() {
    let path = Regex::new(r"`((?:crates|docs|benches|xtask|fuzz|models)/[A-Za-z0-9_./-]+)`")
        .expect("a constant pattern");
    for document in DOCUMENTS {
        for found in path.captures_iter(&read(document)) {
            let path = found[1].trim_end_matches('/');
            assert!(root().join(path).exists(), "{document}: {path}");
        }
    }
}

/// Words that the glossary replaces.
const OTHER_WORDS: [(&str, &str); 8] = [
    ("beginning-of-text", "BOS"),
    ("go down", "move to a lower-precision tier"),
    ("goes down", "moves to a lower-precision tier"),
    ("going down", "moving to a lower-precision tier"),
    ("rotary base", "RoPE base"),
    ("rotary embedding", "RoPE"),
    ("stop string", "stop sequence"),
    ("time to the first token", "time to first token (TTFT)"),
];

#[test]
fn documents_use_the_words_of_the_glossary() {
    // Changelog and titles of decisions are historical.
    let is_old = |document: &&&str| **document == "CHANGELOG.md" || document.starts_with("docs/adr/");
    for document in DOCUMENTS.iter().filter(|document| !is_old(document)) {
        let text = read(document).to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ");
        for (other, word) in OTHER_WORDS {
            assert!(!text.contains(other), "{document}: \"{other}\", in the glossary: {word}");
        }
    }
}

#[test]
fn every_outside_crate_has_its_reason() {
    let record = read("docs/adr/0005-dependency-policy.md");
    let names = |line: &str| line.split(" = ").next().map(str::to_owned);
    let manifest = read("Cargo.toml");
    let table = manifest.split("[workspace.dependencies]").nth(1).expect("the table");
    let lines = table.lines().skip(1).take_while(|line| !line.starts_with('['));
    let outside = lines.filter(|line| line.contains(" = ") && !line.contains("path = "));
    let rows: Vec<&str> = record.lines().filter(|line| line.starts_with("| ")).collect();
    for name in outside.filter_map(names) {
        let word = Regex::new(&format!(r"^\|[^|]*(^|[ ,]){name}([ ,(]|$)")).expect("crate names are plain");
        assert!(rows.iter().any(|row| word.is_match(row)), "{name} has no row in the table");
    }
}
