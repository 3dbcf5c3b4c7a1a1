//! Pulls: files, names, updates and reuse of what is there.

use std::fs;
use std::ops::ControlFlow;

use ruvllm_hub::{Error, PullStage, Token};

use crate::server::{Faults, REPO, noise, sha256};
use crate::{Place, contents};

const SOURCE: &str = "hf://org/repo";

#[test]
fn a_file_is_pulled_in_ranges_verified_and_found_by_its_name() {
    let bytes = noise(950_001, 1);
    let mut place = Place::new(&[("README.md", noise(10, 2)), ("m.Q4_K_M.gguf", bytes.clone())]);
    place.settings.token = Token::new("hf_secret");
    let pulled = place.pull(SOURCE).unwrap();
    assert_eq!((pulled.downloaded_bytes, pulled.freed_bytes), (950_001, 0));
    assert_eq!(contents(&pulled.model.path), bytes);

    let model = place.store.get("m.Q4_K_M").unwrap();
    assert_eq!(model, pulled.model);
    assert_eq!((model.source.as_str(), model.commit.as_str(), model.bytes()), (SOURCE, "c0ffee", 950_001));
    assert_eq!(model.files[0].sha256, Some(sha256(&bytes)));
    assert!(model.is_complete && model.pulled_unix > 1_700_000_000);
    assert_eq!(place.store.get(SOURCE).unwrap(), model);
    assert_eq!(place.store.list().unwrap(), [model]);
    assert_eq!(place.files(), ["org--repo/c0ffee/m.Q4_K_M.gguf"]);

    let requests = place.hub.take_requests();
    let ranges =
        requests.iter().filter(|request| request.to_storage && request.headers.contains_key("range"));
    assert_eq!(ranges.count(), 10);
    for request in requests {
        let token = request.headers.get("authorization").map(String::as_str);
        assert_eq!(token, (!request.to_storage).then_some("Bearer hf_secret"), "{request:?}");
        assert_eq!(request.headers["accept-encoding"], "identity");
    }
}

#[test]
fn files_and_revisions_are_named_and_encoded() {
    let bytes = noise(20_000, 1);
    let place = Place::new(&[("sub/m x.gguf", bytes.clone()), ("other.gguf", noise(20_000, 2))]);
    let pulled = place.pull("hf://org/repo/sub/m x.gguf@refs/pr/1").unwrap();
    assert_eq!(pulled.model.name, "m-x");
    assert_eq!(contents(&pulled.model.path), bytes);
    let targets: Vec<String> = place.hub.take_requests().into_iter().map(|request| request.target).collect();
    assert!(
        targets.contains(&format!("/api/models/{REPO}/revision/refs%2Fpr%2F1?blobs=true")),
        "{targets:?}"
    );
    assert!(targets.contains(&format!("/{REPO}/resolve/c0ffee/sub/m%20x.gguf")), "{targets:?}");
}

#[test]
fn an_empty_file_and_one_of_a_single_byte_are_files() {
    let place = Place::new(&[("empty.gguf", Vec::new()), ("one.gguf", vec![7])]);
    assert!(contents(&place.pull("hf://org/repo/empty.gguf").unwrap().model.path).is_empty());
    assert_eq!(contents(&place.pull("hf://org/repo/one.gguf").unwrap().model.path), [7]);
}

#[test]
fn a_folder_of_safetensors_is_one_model() {
    let files = [
        ("config.json", noise(500, 1)),
        ("model-00001-of-00002.safetensors", noise(150_000, 2)),
        ("model-00002-of-00002.safetensors", noise(120_000, 3)),
        ("model.safetensors.index.json", noise(900, 4)),
        ("pytorch_model.bin", noise(100_000, 5)),
        ("tokenizer.json", noise(30_000, 6)),
    ];
    let mut place = Place::new(&files);
    place.hub.set(Faults { token: Some("hf_secret"), ..Faults::default() });
    place.settings.token = Token::new("hf_secret");
    let pulled = place.pull(SOURCE).unwrap();
    assert_eq!(pulled.model.name, "repo");
    assert_eq!(pulled.model.files.len(), 5);
    for (path, bytes) in files.iter().filter(|(path, _)| *path != "pytorch_model.bin") {
        assert_eq!(contents(&pulled.model.path.join(path)), *bytes);
    }
    assert!(pulled.model.files.iter().all(|file| file.sha256.is_some()));
    assert_eq!(place.store.remove("repo").unwrap(), pulled.model.bytes());
    assert!(place.files().is_empty());
}

#[test]
fn a_split_model_is_one_model() {
    let (first, second) = (noise(90_000, 1), noise(80_000, 2));
    let place =
        Place::new(&[("m-00002-of-00002.gguf", second.clone()), ("m-00001-of-00002.gguf", first.clone())]);
    let pulled = place.pull(SOURCE).unwrap();
    assert_eq!((pulled.model.name.as_str(), pulled.model.files.len()), ("m", 2));
    assert_eq!(contents(&pulled.model.path), first);
    assert_eq!(contents(&pulled.model.path.with_file_name("m-00002-of-00002.gguf")), second);
}

#[test]
fn names_share_files_and_the_last_one_frees_them() {
    let place = Place::new(&[("m.gguf", noise(100_000, 1))]);
    let first = place.pull_as(SOURCE, "first").unwrap();
    place.hub.take_requests();
    let second = place.pull_as("hf://org/repo/m.gguf", "second").unwrap();
    assert_eq!((second.downloaded_bytes, &second.model.path), (0, &first.model.path));
    assert!(place.hub.take_requests().iter().all(|request| request.method == "GET" && !request.to_storage));

    assert_eq!(place.store.remove("first").unwrap(), 0);
    assert_eq!(contents(&second.model.path).len(), 100_000);
    assert_eq!(place.store.remove("second").unwrap(), 100_000);
    assert!(place.files().is_empty() && place.store.list().unwrap().is_empty());
    assert!(!place.store.root().join("files/org--repo").exists());
}

#[test]
fn another_revision_replaces_the_former_one() {
    let place = Place::new(&[("m.gguf", noise(100_000, 1))]);
    let former = place.pull(SOURCE).unwrap().model;
    place.hub.replace(&[("m.gguf", noise(120_000, 2))], Some("beef"));
    let pulled = place.pull("hf://org/repo/m.gguf").unwrap();
    assert_eq!((pulled.downloaded_bytes, pulled.freed_bytes), (120_000, 100_000));
    assert_eq!(pulled.model.commit, "beef");
    assert!(!former.path.exists());
    assert_eq!(place.files(), ["org--repo/beef/m.gguf"]);
    assert_eq!(place.store.list().unwrap(), [pulled.model]);
}

#[test]
fn what_a_killed_process_left_behind_is_swept() {
    let place = Place::new(&[("m.gguf", noise(100_000, 1)), ("n.gguf", noise(50_000, 2))]);
    let first = place.pull("hf://org/repo/m.gguf").unwrap().model;
    // As after a kill between the removal of a manifest and that of its files.
    fs::remove_file(place.store.root().join("manifests/m.json")).unwrap();
    let former = place.store.root().join("files/org--repo/former/sub");
    fs::create_dir_all(&former).unwrap();
    fs::write(former.join("x.gguf.part.new"), [0; 1000]).unwrap();
    let pulled = place.pull("hf://org/repo/n.gguf").unwrap();
    assert_eq!(pulled.freed_bytes, 101_000);
    assert!(!first.path.exists() && !former.exists());
    assert_eq!(place.files(), ["org--repo/c0ffee/n.gguf"]);
}

#[test]
fn a_name_belongs_to_one_model() {
    let place = Place::new(&[("a.gguf", noise(20_000, 1)), ("b.gguf", noise(20_000, 2))]);
    place.pull_as("hf://org/repo/a.gguf", "mine").unwrap();
    let error = place.pull_as("hf://org/repo/b.gguf", "mine").unwrap_err();
    assert!(
        matches!(&error, Error::NameTaken { source_text, .. } if source_text == "hf://org/repo/a.gguf"),
        "{error}"
    );
    for name in ["", "a/b", "..", "-x", "a b", "x\n", &"x".repeat(101)] {
        assert!(matches!(place.pull_as("hf://org/repo/a.gguf", name), Err(Error::Name { .. })), "{name:?}");
    }
    assert_eq!(place.store.list().unwrap().len(), 1);
}

#[test]
fn without_network_there_is_what_was_pulled_before() {
    let mut place = Place::new(&[("m.gguf", noise(20_000, 1))]);
    let pulled = place.pull(SOURCE).unwrap();
    place.settings.offline = true;
    place.hub.take_requests();
    assert_eq!(place.pull(SOURCE).unwrap().model, pulled.model);
    assert!(matches!(place.pull("hf://org/other"), Err(Error::Offline { .. })));
    assert!(place.hub.take_requests().is_empty());
}

#[test]
fn progress_goes_from_nothing_to_everything() {
    let place = Place::new(&[("m.gguf", noise(500_000, 1))]);
    let mut steps = Vec::new();
    let reference = SOURCE.parse().unwrap();
    let watched = place.store.pull(&place.client(), &reference, None, &mut |step| {
        assert_eq!((step.file, step.bytes_total), ("m.gguf", 500_000));
        steps.push((step.stage == PullStage::Verify, step.bytes_done));
        ControlFlow::Continue(())
    });
    watched.unwrap();
    assert!(steps.is_sorted(), "{steps:?}");
    assert_eq!(steps.last(), Some(&(true, 500_000)));
}

#[test]
fn unknown_names_come_with_near_ones() {
    let place = Place::new(&[("llama-3-8b.gguf", noise(20_000, 1))]);
    let message = |name| place.store.get(name).unwrap_err().to_string();
    assert!(message("x").contains("empty"));
    place.pull(SOURCE).unwrap();
    assert!(message("lama-3-8b").contains("near to it is llama-3-8b"));
    assert!(message("../../etc/passwd").contains("there is llama-3-8b"));
    assert!(message("hf://org/other").contains("pull it first"));
    assert!(matches!(place.store.remove("mistral"), Err(Error::UnknownModel { .. })));
}

#[test]
fn damaged_manifests_are_refused_and_lead_nowhere() {
    let place = Place::new(&[("m.gguf", noise(20_000, 1))]);
    place.pull(SOURCE).unwrap();
    let path = place.store.root().join("manifests/m.json");
    let text = fs::read_to_string(&path).unwrap();
    let outside = place.store.root().join("../victim");
    fs::write(&outside, "keep").unwrap();
    for (from, to) in [("\"m.gguf\"", "\"../../../../victim\""), ("\"c0ffee\"", "\"../..\"")] {
        let damaged = text.replace(from, to);
        assert_ne!(damaged, text);
        fs::write(&path, damaged).unwrap();
        assert!(matches!(place.store.get("m"), Err(Error::Manifest { .. })));
        place.store.remove("m").unwrap();
        assert_eq!(fs::read_to_string(&outside).unwrap(), "keep");
    }
}
