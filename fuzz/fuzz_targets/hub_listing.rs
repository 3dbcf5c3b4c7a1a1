//! Parses any bytes as a hub's list of files, and selects models from it.

#![no_main]

use std::collections::HashSet;
use std::path::{Component, Path};
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use ruvllm_hub::{Listing, ModelReference};

/// A repository, a quantization, a file.
static REFERENCES: LazyLock<Vec<ModelReference>> = LazyLock::new(|| {
    let texts = ["hf://a/b", "hf://a/b/Q4_K_M", "hf://a/b/m.gguf"];
    texts.map(|text| text.parse().expect("a reference")).into()
});

fuzz_target!(|text: &[u8]| {
    let Ok(listing) = Listing::from_json(text) else { return };
    let listed: HashSet<&str> = listing.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(listed.len(), listing.files.len());
    for reference in REFERENCES.iter() {
        let Ok(files) = listing.model_files(reference) else { continue };
        assert!(!files.is_empty());
        let mut names = HashSet::new();
        for file in &files {
            assert!(listed.contains(file.path.as_str()));
            assert!(Path::new(&file.path).components().all(|part| matches!(part, Component::Normal(_))));
            assert!(!file.path.contains(|c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}')));
            assert!(!file.path.split('/').any(|part| part.ends_with(['.', ' '])));
            assert!(names.insert(file.path.to_lowercase()));
        }
    }
});
