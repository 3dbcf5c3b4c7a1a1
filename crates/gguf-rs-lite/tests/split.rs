//! Split models open by any part; parts that do not match are rejected.

mod common;

use std::{fs, path::PathBuf};

use common::{build, tensor};
use gguf_rs_lite::{Error, Gguf, Metadata, TensorInfo, TensorType};
use tempfile::TempDir;

type Part = (Metadata, Vec<(TensorInfo, Vec<u8>)>);

/// Three parts: metadata only, then two parts with tensors and alignments of their own.
fn parts() -> Vec<Part> {
    let split = |no: u16| -> Metadata {
        let mut metadata = Metadata::new();
        metadata.insert("split.no", no);
        metadata.insert("split.count", 3u16);
        metadata.insert("split.tensors.count", 3i32);
        metadata
    };
    let mut first = split(0);
    first.insert("general.architecture", "llama");
    let mut last = split(2);
    last.insert("general.alignment", 128u32);
    vec![
        (first, vec![]),
        (split(1), vec![tensor("a", &[3, 2], TensorType::F16), tensor("b", &[32], TensorType::Q8_0)]),
        (last, vec![tensor("c", &[64], TensorType::Q4_0)]),
    ]
}

/// Writes parts into a new folder under their proper names.
fn write(parts: &[Part]) -> (TempDir, Vec<PathBuf>) {
    let dir = tempfile::tempdir().expect("folder");
    let write = |(i, (metadata, tensors)): (usize, &Part)| {
        let path = dir.path().join(format!("my-model-{:05}-of-{:05}.gguf", i + 1, 3));
        fs::write(&path, build(metadata, tensors)).expect("written");
        path
    };
    let paths = parts.iter().enumerate().map(write).collect();
    (dir, paths)
}

fn open_changed(change: impl FnOnce(&mut Vec<Part>)) -> Error {
    let mut parts = parts();
    change(&mut parts);
    let (_dir, paths) = write(&parts);
    Gguf::open(&paths[0]).expect_err("parts that do not fit")
}

#[test]
fn any_part_opens_the_whole_model() {
    let (_dir, paths) = write(&parts());
    for path in &paths {
        let model = Gguf::open(path).expect("all parts are there");
        assert_eq!(model.parts(), 3);
        assert_eq!(model.metadata().get_str("general.architecture").expect("string"), Some("llama"));
        assert_eq!(model.tensors().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
        for (info, data) in parts().iter().flat_map(|(_, tensors)| tensors) {
            assert_eq!(model.data(info).expect("data").as_ref(), data);
        }
        assert_eq!(model.headers().map(|h| h.alignment).collect::<Vec<_>>(), [32, 32, 128]);
        let on_disk: u64 = paths.iter().map(|path| fs::metadata(path).expect("file").len()).sum();
        assert_eq!(model.file_bytes(), on_disk);
    }
}

#[test]
fn data_outlive_the_model() {
    let (_dir, paths) = write(&parts());
    let data = Gguf::open(&paths[0]).and_then(|model| model.data("c")).expect("data");
    assert_eq!(data.as_bytes(), parts()[2].1[0].1);
}

#[test]
fn a_missing_part_is_named() {
    let (_dir, paths) = write(&parts());
    fs::remove_file(&paths[1]).expect("removed");
    let error = Gguf::open(&paths[2]).expect_err("a part is missing");
    assert!(matches!(&error, Error::SplitPart { path, source }
        if *path == paths[1] && matches!(**source, Error::File { action: "open", .. })));
}

#[test]
fn a_damaged_part_is_named() {
    let (_dir, paths) = write(&parts());
    fs::write(&paths[2], b"GGUF").expect("written");
    let error = Gguf::open(&paths[0]).expect_err("a part is damaged");
    assert!(matches!(&error, Error::SplitPart { path, source }
        if *path == paths[2] && matches!(**source, Error::Truncated { .. })));
}

#[test]
fn a_renamed_part_is_refused() {
    let (dir, paths) = write(&parts());
    let renamed = dir.path().join("model.gguf");
    fs::rename(&paths[0], &renamed).expect("renamed");
    let error = Gguf::open(&renamed).expect_err("the other parts cannot be found");
    assert!(matches!(error, Error::SplitName { part: 1, count: 3, .. }));
    assert!(error.to_string().contains("-00001-of-00003.gguf"), "{error}");
    // A part under another part's name.
    fs::copy(&paths[1], &paths[0]).expect("copied");
    assert!(matches!(Gguf::open(&paths[0]), Err(Error::SplitName { part: 2, .. })));
    assert!(matches!(Gguf::open(&paths[1]), Err(Error::SplitMismatch { key: "split.no", expected: 0, .. })));
}

#[test]
fn parts_that_do_not_fit_together_are_refused() {
    let error = open_changed(|parts| drop(parts[1].0.insert("split.count", 4u16)));
    assert!(matches!(error, Error::SplitMismatch { key: "split.count", expected: 3, .. }), "{error}");
    let error = open_changed(|parts| drop(parts[2].0.remove("split.no")));
    assert!(matches!(error, Error::SplitMismatch { key: "split.no", expected: 2, .. }), "{error}");
    let error = open_changed(|parts| drop(parts[2].1.pop()));
    assert!(matches!(error, Error::SplitMismatch { key: "split.tensors.count", .. }), "{error}");
    let error = open_changed(|parts| parts[2].1[0].0.name = "a".to_owned());
    assert!(matches!(error, Error::DuplicateTensor { .. }), "{error}");
    let error = open_changed(|parts| drop(parts[0].0.insert("split.no", 3u16)));
    assert!(matches!(error, Error::MetadataRange { .. }), "{error}");
    let error = open_changed(|parts| drop(parts[0].0.insert("split.count", u64::MAX)));
    assert!(matches!(error, Error::SplitName { .. }), "{error}");
    let error = open_changed(|parts| drop(parts[0].0.insert("split.count", "three")));
    assert!(matches!(error, Error::MetadataType { .. }), "{error}");
}

#[test]
fn one_part_in_memory_is_refused() {
    let (metadata, tensors) = &parts()[1];
    let file = build(metadata, tensors);
    assert!(matches!(Gguf::from_owner(file), Err(Error::SplitInMemory { count: 3 })));
}

#[test]
fn a_split_into_one_is_a_plain_file() {
    let metadata = [("split.no", 0u16), ("split.count", 1)].into_iter().collect();
    let model =
        Gguf::from_owner(build(&metadata, &[tensor("t", &[1], TensorType::F32)])).expect("a plain file");
    assert_eq!(model.parts(), 1);
}
