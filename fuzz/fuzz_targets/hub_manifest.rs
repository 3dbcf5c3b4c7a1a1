//! Opens a store with any bytes as one manifest beside a valid one. The valid model stays, the
//! damaged one can be removed, and nothing outside the store changes.

#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use ruvllm_fuzz::FOLDER;
use ruvllm_hub::{Error, Store};

static ROOT: LazyLock<PathBuf> = LazyLock::new(|| FOLDER.join("store"));

const SOUND: &str = r#"{"version": 1, "name": "n", "source": "hf://a/b", "endpoint": "http://h", "commit": "c0",
    "model": "n.gguf", "pulled_unix": 1, "files": [{"path": "n.gguf", "bytes": 1, "sha256": null}]}"#;

fuzz_target!(|text: &[u8]| {
    let folder = ROOT.join("files/a--b/c0");
    for path in [&folder, &ROOT.join("manifests")] {
        fs::create_dir_all(path).expect("a folder");
    }
    let victim = FOLDER.join("victim");
    for path in [&victim, &folder.join("m.gguf"), &folder.join("n.gguf")] {
        fs::write(path, "x").expect("written");
    }
    fs::write(ROOT.join("manifests/n.json"), SOUND).expect("written");
    fs::write(ROOT.join("manifests/m.json"), text).expect("written");

    let store = Store::new(&*ROOT);
    let (models, damaged) = (store.list().expect("a list"), store.damaged().expect("a list"));
    assert_eq!(models.len() + damaged.len(), 2);
    match store.get("m") {
        Ok(model) => {
            assert!(model.path.starts_with(ROOT.join("files")) && damaged.is_empty());
            assert!(!model.endpoint.contains('@') || model.endpoint.contains('/'));
        }
        Err(Error::Manifest { .. }) => assert_eq!(damaged[0].name, "m"),
        Err(other) => panic!("{other}"),
    }
    let sound = store.get("n").expect("the other model");
    store.remove("m").expect("it can be removed");
    assert!(matches!(store.get("m"), Err(Error::UnknownModel { .. })));
    assert!(sound.path.exists() && victim.exists());
    // One lock per repository that an input names.
    fs::remove_dir_all(ROOT.join("locks")).expect("removed");
});
