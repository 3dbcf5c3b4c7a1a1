//! Prefix folders prepared by an attacker.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Expected::{self, Error, Success};
use super::Files;
use crate::program::argument;

#[track_caller]
fn generate(case: &str, folder: &Path, expected: Expected) -> String {
    let prompt = "Once upon a time there was ".repeat(12);
    let folder = ["--prefix-cache", "on", "--prefix-dir", argument(folder)];
    let arguments = ["generate", "--temperature", "0", "-n", "4", "--json", "--kv", "tiered:target=0.02"];
    let output = super::check(case, &[&arguments[..], &folder, &[&prompt]].concat(), expected);
    let document: serde_json::Value = serde_json::from_str(&output).unwrap_or_default();
    document["tokens"].to_string()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Creates a hostile entry at a path.
type Put<'a> = &'a dyn Fn(&Path);

#[test]
fn entries_of_others_are_computed_again() {
    let files = Files::new();
    let folder = files.path("prefixes");
    let truth = generate("an empty folder", &folder, Success(""));
    let victim = files.write("victim", "victim");
    let names = entries(&folder);
    assert!(names.iter().any(|path| path.extension().is_some_and(|extension| extension == "kv")));
    let pipe = |path: &Path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    let link = |path: &Path| symlink(&victim, path).unwrap();
    let sparse = |path: &Path| File::create(path).unwrap().set_len(1 << 42).unwrap();
    let zeros = |path: &Path| fs::write(path, [0; 100]).unwrap();
    let header = |path: &Path| {
        let tokens = [&b"KVPREFIX"[..], &1u32.to_le_bytes(), &u32::MAX.to_le_bytes(), &[0xff; 200]].concat();
        fs::write(path, tokens).unwrap();
    };
    let cases: [(&str, Put<'_>, &str); 5] = [
        ("pipes", &pipe, "warning: ignored"),
        ("links", &link, "warning: ignored"),
        // Above the limit of the folder: deleted when it is opened.
        ("sparse files", &sparse, ""),
        ("zeros", &zeros, "warning: ignored"),
        ("headers", &header, "warning: ignored"),
    ];
    for (name, put, warning) in cases {
        for path in &names {
            let _ = fs::remove_file(path);
            put(path);
        }
        assert_eq!(generate(name, &folder, Success(warning)), truth, "{name}");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "victim");
        assert_eq!(generate(name, &folder, Success("")), truth, "{name}: written again");
    }
}

#[test]
fn folders_of_others_are_refused() {
    let files = Files::new();
    let folder = files.path("prefixes");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
    generate("everybody may write", &folder, Error("chmod go-w"));
    assert!(entries(&folder).is_empty());
    let file = files.write("file", "");
    generate("a file", &file, Error("file"));
}
