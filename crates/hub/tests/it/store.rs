//! A store that somebody else has written to: links, pipes, damaged manifests.

use std::fs;
use std::path::PathBuf;

use ruvllm_hub::Error;

use crate::server::{Faults, noise};
use crate::{Place, contents};

const SOURCE: &str = "hf://org/repo";

/// A store with the models `m` and `n` of one repository.
fn place() -> Place {
    let place = Place::new(&[("m.gguf", noise(20_000, 1)), ("n.gguf", noise(30_000, 2))]);
    place.pull("hf://org/repo/m.gguf").unwrap();
    place.pull("hf://org/repo/n.gguf").unwrap();
    place
}

fn manifest(place: &Place, name: &str) -> PathBuf {
    place.store.root().join("manifests").join(format!("{name}.json"))
}

/// Texts that are no manifests, each with a word of the reason.
fn damages(text: &str) -> [(String, &'static str); 7] {
    [
        (String::new(), "EOF"),
        (text[..text.len() / 2].to_owned(), "EOF"),
        (text.replace("\"m.gguf\"", "\"../../../../victim\""), "path"),
        (text.replace("\"c0ffee\"", "\"../..\""), "source"),
        (text.replace("\"name\": \"m\"", "\"name\": \"n\""), "name"),
        (text.replace("\"version\": 1", "\"version\": 2"), "version"),
        (text.replace("hf://org/repo", "hf://org/../repo"), "source"),
    ]
}

#[test]
fn a_damaged_manifest_is_one_model_alone() {
    let text = fs::read_to_string(manifest(&place(), "m")).unwrap();
    for (damage, reason) in damages(&text) {
        assert_ne!(damage, text);
        let place = place();
        fs::write(manifest(&place, "m"), &damage).unwrap();
        let store = &place.store;
        let names: Vec<String> = store.list().unwrap().into_iter().map(|model| model.name).collect();
        assert_eq!(names, ["n"]);
        let [damaged] = &store.damaged().unwrap()[..] else { panic!("one") };
        assert_eq!((damaged.name.as_str(), &damaged.path), ("m", &manifest(&place, "m")));
        assert!(damaged.reason.contains(reason), "{}", damaged.reason);
        for result in [store.get("m").map(drop), store.inspect("m").map(drop)] {
            assert!(matches!(result, Err(Error::Manifest { .. })), "{result:?}");
        }
        // The name is taken: a newer program may be able to read it.
        assert!(matches!(place.pull("hf://org/repo/m.gguf"), Err(Error::Manifest { .. })));

        assert!(store.get("n").is_ok() && store.get("hf://org/repo/n.gguf").is_ok());
        assert!(matches!(store.get("o"), Err(Error::UnknownModel { .. })));
        place.pull_as("hf://org/repo/n.gguf", "o").unwrap();
        assert_eq!(store.remove("o").unwrap(), 0);
        store.remove("n").unwrap();

        store.remove("m").unwrap();
        assert!(place.files().is_empty() && store.damaged().unwrap().is_empty());
        place.pull("hf://org/repo/m.gguf").unwrap();
    }
}

#[test]
fn files_of_a_manifest_that_tells_where_they_are_stay() {
    let place = place();
    let text = fs::read_to_string(manifest(&place, "m")).unwrap();
    fs::write(manifest(&place, "m"), text.replace("\"version\": 1", "\"version\": 2")).unwrap();
    place.store.remove("n").unwrap();
    assert_eq!(place.files(), ["org--repo/c0ffee/m.gguf", "org--repo/c0ffee/n.gguf"]);
    assert_eq!(place.store.remove("m").unwrap(), 50_000);
    assert!(place.files().is_empty());
}

#[test]
fn the_damaged_manifest_of_an_interrupted_pull_is_replaced() {
    let place = Place::new(&[("m.gguf", noise(20_000, 1))]);
    place.hub.set(Faults { wrong_bytes: true, ..Faults::default() });
    assert!(place.pull(SOURCE).is_err());
    let pending = place.store.root().join("pending/m.json");
    fs::write(&pending, "{").unwrap();
    assert!(place.store.list().unwrap().is_empty());
    assert_eq!(place.store.damaged().unwrap().len(), 1);
    place.hub.set(Faults::default());
    place.pull(SOURCE).unwrap();
    assert!(!pending.exists() && place.store.damaged().unwrap().is_empty());
    // Beside a complete model it is not even looked at.
    fs::write(&pending, "{").unwrap();
    assert!(place.store.get("m").is_ok() && place.pull(SOURCE).is_ok());
}

#[test]
fn files_with_other_names_are_no_manifests() {
    let place = place();
    for name in ["a b.json", ".json", "x.txt", "-.json", "m.json.new"] {
        fs::write(place.store.root().join("manifests").join(name), "{").unwrap();
    }
    assert!(place.store.damaged().unwrap().is_empty());
    assert_eq!(place.store.list().unwrap().len(), 2);
}

#[cfg(unix)]
mod links {
    use std::os::unix::fs::symlink;
    use std::path::Path;
    use std::process::Command;

    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::*;

    /// Files that must not be touched, in the form of a store's.
    fn outside() -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        for path in ["victim", "c0ffee/m.gguf", "c0ffee/other", "org--repo/c0ffee/x", "m.json", "m.new"] {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "keep").unwrap();
        }
        folder
    }

    #[track_caller]
    fn untouched(outside: &TempDir) {
        for path in ["victim", "c0ffee/m.gguf", "c0ffee/other", "org--repo/c0ffee/x", "m.json", "m.new"] {
            let text = fs::read_to_string(outside.path().join(path));
            assert_eq!(text.ok().as_deref(), Some("keep"), "{path}");
        }
    }

    fn replace(path: &Path, target: &Path) {
        if path.is_dir() && !path.is_symlink() {
            fs::remove_dir_all(path).unwrap();
        } else {
            let _ = fs::remove_file(path);
        }
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    #[test]
    fn what_links_lead_to_is_not_deleted() {
        for link in [
            "files/org--repo",
            "files/org--repo/c0ffee",
            "files/org--repo/old",
            "files/org--repo/c0ffee/sub",
            "files/org--repo/c0ffee/m.gguf",
        ] {
            let (place, outside) = (place(), outside());
            let link = place.store.root().join(link);
            replace(
                &link,
                if link.ends_with("m.gguf") { Path::new("/etc/hostname") } else { outside.path() },
            );
            place.store.remove("m").unwrap();
            place.store.remove("n").unwrap();
            untouched(&outside);
            assert!(!link.is_symlink() && place.store.list().unwrap().is_empty());
        }
    }

    #[test]
    fn folders_of_the_store_are_no_links() {
        for link in ["files", "manifests", "pending", "locks"] {
            let (place, outside) = (place(), outside());
            let text = fs::read(manifest(&place, "m")).unwrap();
            fs::write(outside.path().join("n.json"), &text).unwrap();
            replace(&place.store.root().join(link), outside.path());
            let removed = place.store.remove("m");
            assert!(matches!(removed, Err(Error::Link { .. })), "{link}: {removed:?}");
            untouched(&outside);
        }
        // The store itself may lie elsewhere.
        let (place, elsewhere) = (place(), tempfile::tempdir().unwrap());
        let moved = elsewhere.path().join("moved");
        fs::rename(place.store.root(), &moved).unwrap();
        symlink(&moved, place.store.root()).unwrap();
        assert_eq!(place.store.remove("m").unwrap(), 20_000);
        place.pull("hf://org/repo/m.gguf").unwrap();
    }

    #[test]
    fn nothing_is_written_through_links() {
        let names = ["files", "files/org--repo", "files/org--repo/c0ffee", "manifests", "pending", "locks"];
        for link in names {
            let outside = outside();
            let place = Place::new(&[("m.gguf", noise(20_000, 1))]);
            replace(&place.store.root().join(link), outside.path());
            let error = place.pull(SOURCE).unwrap_err();
            assert!(matches!(error, Error::Link { .. }), "{link}: {error}");
            untouched(&outside);
        }
        for link in ["manifests/m.new", "pending/m.new", "files/org--repo/c0ffee/m.gguf.part"] {
            let outside = outside();
            let place = Place::new(&[("m.gguf", noise(20_000, 1))]);
            replace(&place.store.root().join(link), &outside.path().join("victim"));
            assert_eq!(contents(&place.pull(SOURCE).unwrap().model.path), noise(20_000, 1));
            untouched(&outside);
        }
    }

    #[test]
    fn links_and_pipes_are_no_manifests() {
        let place = place();
        let path = manifest(&place, "m");
        fs::remove_file(&path).unwrap();
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert_eq!(place.store.damaged().unwrap().len(), 1);
        assert_eq!(place.store.list().unwrap().len(), 1);
        place.store.remove("m").unwrap();
        symlink("/dev/zero", &path).unwrap();
        assert!(place.store.damaged().unwrap()[0].reason.contains("link"));
        place.store.remove("m").unwrap();
        assert!(!path.is_symlink());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]
        #[test]
        fn removing_all_models_leaves_all_else(
            links in prop::collection::vec(
                (r"(files|files/org--repo|files/org--repo/c0ffee|files/org--repo/[ab]|files/[ab]--[ab]/[ab]|manifests)/[abm]{1,2}(\.json|\.gguf)?", 0usize..4),
                0..6,
            ),
        ) {
            let (place, outside) = (place(), outside());
            for (path, target) in &links {
                let (root, target) = (place.store.root(), ["", "victim", "c0ffee", "m.json"][*target]);
                let path = root.join(path);
                // A path through an earlier link is outside the store.
                let mut folders = path.ancestors().skip(1).take_while(|folder| *folder != root);
                if !folders.any(Path::is_symlink) {
                    replace(&path, &outside.path().join(target));
                }
            }
            for model in place.store.list().unwrap() {
                place.store.remove(&model.name).unwrap();
            }
            for model in place.store.damaged().unwrap() {
                place.store.remove(&model.name).unwrap();
            }
            prop_assert!(place.store.list().unwrap().is_empty() && place.store.damaged().unwrap().is_empty());
            untouched(&outside);
        }
    }
}
