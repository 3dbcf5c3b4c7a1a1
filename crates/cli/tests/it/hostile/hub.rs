//! Hubs with arbitrary responses, and stores that an attacker has written to.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::Expected::{self, Error, Success};
use super::{Files, check_command};
use crate::program::{argument, tiny_model};
use crate::server::Faults;
use crate::store::{Place, SOURCE};

fn place() -> Place {
    Place::new(&[("tiny.gguf", fs::read(tiny_model()).unwrap())])
}

#[track_caller]
fn check(place: &Place, case: &str, arguments: &[&str], expected: Expected) -> String {
    check_command(case, &place.command(arguments), Path::new("/dev/null"), expected)
}

/// Response that lists a repository's files, as names and sizes.
fn listing(files: impl Iterator<Item = (String, Option<u64>)>) -> String {
    let siblings: Vec<String> = files
        .map(|(name, bytes)| match bytes {
            Some(bytes) => format!(r#"{{"rfilename":"{name}","size":{bytes}}}"#),
            None => format!(r#"{{"rfilename":"{name}"}}"#),
        })
        .collect();
    format!(r#"{{"sha":"c0ffee","siblings":[{}]}}"#, siblings.join(","))
}

#[test]
fn lists_of_files_are_bounded() {
    let place = place();
    let others = |n: u64| (0..n).map(|i| (format!("{i:06}.x"), Some(1)));
    let folder = |n: u64| {
        let shards = (1..=n).map(move |i| (format!("model-{i:05}-of-{n:05}.safetensors"), Some(1)));
        [("config.json".to_owned(), Some(2))].into_iter().chain(shards)
    };
    let shard = |i: usize, n: usize| format!("m-{i:05}-of-{n:05}.gguf");
    for (name, text, piece) in [
        (
            "600,000 files",
            listing((0..600_000).map(|i| (format!("{i:06}.gguf"), None))),
            "more than 100000 files",
        ),
        (
            "99,999 shards of a folder in 500,000 files",
            listing(others(400_000).chain(folder(99_999))),
            "more than 100000 files",
        ),
        ("50,000 shards of a folder in 99,000 files", listing(others(49_000).chain(folder(50_000))), "4096"),
        ("99,999 shards", listing((1..=99_999).map(|i| (shard(i, 99_999), Some(1)))), "4096"),
        ("99,999 shards of unknown size", listing((1..=99_999).map(|i| (shard(i, 99_999), None))), "4096"),
        ("40 MiB", listing((0..9).map(|i| (format!("{}{i}", "a".repeat(40 << 17)), None))), "longer than"),
        ("a file of 2^64 bytes", listing([("m.gguf".to_owned(), Some(u64::MAX))].into_iter()), "are needed"),
        ("a file of 8 TiB", listing([("m.gguf".to_owned(), Some(1 << 43))].into_iter()), "are needed"),
        (
            "a name that leaves the store",
            listing([("../../m.gguf".to_owned(), Some(1))].into_iter()),
            "m.gguf",
        ),
        ("a device of Windows", listing([("nul.gguf".to_owned(), Some(1))].into_iter()), "nul.gguf"),
        (
            "a name that reads backwards",
            listing([("a\u{202e}fugg.gguf".to_owned(), Some(1))].into_iter()),
            "gguf",
        ),
        ("deep JSON", "[".repeat(1_000_000), "list"),
        ("no JSON", "\u{1b}[2J".to_owned(), "list"),
    ] {
        place.hub.set(Faults { listing: Some(text), ..Faults::default() });
        check(&place, name, &["pull", SOURCE], Error(piece));
    }
    assert!(!place.home.path().join("models/files").exists(), "something was kept");
}

#[test]
fn stores_of_others_lose_one_model_at_most() {
    let (place, files) = (place(), Files::new());
    check(&place, "a pull", &["pull", SOURCE, "--as", "good"], Success(""));
    check(&place, "a pull", &["pull", SOURCE, "--as", "bad"], Success(""));
    let manifest = place.home.path().join("models/manifests/bad.json");
    let sound = fs::read_to_string(&manifest).unwrap();
    for (name, text) in [
        ("an escape", "{\"a\u{1b}".to_owned()),
        ("deep JSON", "[".repeat(1_000_000)),
        ("a path outside", sound.replace("tiny.gguf", "../../../../victim")),
        ("a commit outside", sound.replace("c0ffee", "../../..")),
    ] {
        fs::write(&manifest, text).unwrap();
        check(&place, name, &["list"], Success(""));
        check(&place, name, &["info", "good"], Success(""));
        check(&place, name, &["info", "bad"], Error("bad"));
    }
    fs::File::create(&manifest).unwrap().set_len(1 << 40).unwrap();
    check(&place, "a sparse manifest", &["list"], Success(""));
    check(&place, "a sparse manifest", &["rm", "bad"], Success(""));
    // A link in place of a folder: removing a model removes nothing behind the link.
    let victim = files.write("elsewhere/c0ffee/tiny.gguf", "victim");
    let folder = place.home.path().join("models/files/org--repo");
    fs::remove_dir_all(&folder).unwrap();
    symlink(files.path("elsewhere"), &folder).unwrap();
    check(&place, "a link", &["rm", "good"], Success(""));
    assert_eq!(fs::read_to_string(victim).unwrap(), "victim");
}

#[test]
fn passwords_of_endpoints_are_refused_and_not_shown() {
    let place = place();
    let endpoint = place.hub.endpoint().replace("http://", "http://me:SECRET@");
    let mut command = place.command(&["pull", SOURCE]);
    command.env("HF_ENDPOINT", endpoint);
    check_command("a password", &command, Path::new("/dev/null"), Error("HF_ENDPOINT"));
    let manifests = place.home.path().join("models/manifests");
    assert!(
        !manifests.exists() || fs::read_dir(&manifests).unwrap().count() == 0,
        "{}",
        argument(&manifests)
    );
}
