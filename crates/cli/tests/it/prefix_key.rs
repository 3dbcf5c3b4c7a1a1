//! `--prefix-key`: a prefix folder that others may write to.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::program::{Run, argument, run};

/// A folder that is writable by everybody, and keys beside it.
struct Place {
    parent: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { parent: tempfile::tempdir().unwrap() };
        fs::create_dir(place.folder()).unwrap();
        fs::set_permissions(place.folder(), Permissions::from_mode(0o777)).unwrap();
        place
    }

    fn folder(&self) -> PathBuf {
        self.parent.path().join("prefixes")
    }

    fn key(&self, name: &str, bytes: &[u8], mode: u32) -> PathBuf {
        let path = self.parent.path().join(name);
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    }

    /// A run with this prompt, with and without a key.
    fn generate(&self, key: Option<&Path>, word: &str) -> Run {
        let prompt = format!("{word} upon a time there was ").repeat(12);
        let folder = self.folder();
        let mut arguments = vec!["generate", "--temperature", "0", "-n", "4", "--json"];
        arguments.extend(["--prefix-cache", "on", "--prefix-dir", argument(&folder)]);
        arguments.extend(key.iter().flat_map(|path| ["--prefix-key", argument(path)]));
        run(&[&arguments[..], &[prompt.as_str()]].concat())
    }

    fn cached(&self, key: &Path, word: &str) -> u64 {
        self.generate(Some(key), word).json()["cached_tokens"].as_u64().unwrap()
    }

    fn entries(&self) -> Vec<PathBuf> {
        fs::read_dir(self.folder()).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

#[test]
fn a_shared_folder_takes_a_key() {
    let place = Place::new();
    place.generate(None, "Once").fails_with(1, &["other users can write", "mode 0777", "key"]);
    let key = place.key("key", &[7; 32], 0o600);
    let first = place.generate(Some(&key), "Once").json();
    assert_eq!(first["cached_tokens"], 0);
    let second = place.generate(Some(&key), "Once").json();
    assert!(second["cached_tokens"].as_u64().unwrap() >= 32, "{second}");
    assert_eq!(second["tokens"], first["tokens"]);
    // Entries of another key are neither used nor removed.
    let other = place.key("other", &[8; 32], 0o600);
    assert_eq!(place.cached(&other, "Once"), 0);
    assert!(place.cached(&key, "Once") >= 32);
    // Nor are entries without a key, which only a private folder can have.
    fs::set_permissions(place.folder(), Permissions::from_mode(0o700)).unwrap();
    let plain = place.generate(None, "Twice").json();
    assert_eq!(place.cached(&key, "Twice"), 0);
    assert_eq!(place.generate(None, "Once").json()["cached_tokens"], 0);
    assert_eq!(place.generate(None, "Twice").json()["tokens"], plain["tokens"]);
}

#[test]
fn forged_and_swapped_entries_are_computed_again() {
    let place = Place::new();
    let key = place.key("key", &[7; 32], 0o600);
    let truth = place.generate(Some(&key), "Once").json();
    let again = |fault: &str| {
        let run = place.generate(Some(&key), "Once");
        let (document, warnings) = run.json_and_warnings();
        assert!(warnings.starts_with("warning: ignored") && warnings.contains(fault), "{warnings}");
        assert_eq!((&document["cached_tokens"], &document["tokens"]), (&0.into(), &truth["tokens"]));
    };
    // Another payload with a valid checksum: without a key it would be used.
    let forge = |path: &Path| {
        use sha2::Digest;
        let mut bytes = fs::read(path).unwrap();
        let n_tokens = u32::from_le_bytes(*bytes[12..].first_chunk().unwrap());
        let payload = 120 + 4 * n_tokens as usize + 32;
        bytes[payload..].fill(0);
        let digest = sha2::Sha256::digest(&bytes[payload..]);
        bytes[88..120].copy_from_slice(&digest);
        fs::write(path, bytes).unwrap();
    };
    place.entries().iter().for_each(|path| forge(path));
    again("has no tag of the folder's key");
    // Entries of one prompt under the names of another.
    let own = place.entries();
    place.generate(Some(&key), "Twice").json();
    let others: Vec<PathBuf> = place.entries().into_iter().filter(|path| !own.contains(path)).collect();
    assert!(!others.is_empty());
    for (path, other) in own.iter().zip(others.iter().cycle()) {
        fs::copy(other, path).unwrap();
    }
    again("holds another prefix than its name says");
}

#[test]
fn files_of_keys_are_private() {
    let place = Place::new();
    for (name, bytes, mode, pieces) in [
        ("open", 32, 0o644, &["mode 0644", "chmod 600"][..]),
        ("group", 32, 0o640, &["mode 0640", "chmod 600"]),
        ("short", 31, 0o600, &["31 bytes", "32 to 1024"]),
        ("long", 1025, 0o600, &["1025 bytes", "32 to 1024"]),
        ("empty", 0, 0o600, &["0 bytes", "32 to 1024"]),
    ] {
        let path = place.key(name, &vec![7; bytes], mode);
        let pieces = [&["--prefix-key", argument(&path)], pieces].concat();
        place.generate(Some(&path), "Once").fails_with(2, &pieces);
    }
    place.generate(Some(&place.folder()), "Once").fails_with(2, &["not a regular file"]);
    place.generate(Some(Path::new("/nonexistent")), "Once").fails_with(2, &["No such file"]);
    assert!(place.entries().is_empty());
}
