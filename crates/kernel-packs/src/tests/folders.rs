//! Packs in folders.

use std::fs;

use serde_json::json;
use tempfile::TempDir;

use super::{complete, draft, key, signed, source, verify, wasm, write};
use crate::limits::{MAX_KERNEL_BYTES, MAX_MANIFEST_BYTES};
use crate::{Contents, Error};

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    write(&signed("1.0.0"), folder.path());
    folder
}

#[test]
fn a_folder_is_the_pack_of_its_archive() {
    let folder = folder();
    let contents = Contents::open(folder.path()).unwrap();
    assert_eq!(contents.to_archive().unwrap(), signed("1.0.0").to_archive().unwrap());
    let elsewhere = tempfile::tempdir().unwrap();
    let path = elsewhere.path().join("pack.tar");
    fs::write(&path, contents.to_archive().unwrap()).unwrap();
    assert_eq!(Contents::open(&path).unwrap().manifest(), contents.manifest());
    #[cfg(unix)]
    for (target, link) in [(path.as_path(), "archive"), (folder.path(), "folder")] {
        let link = elsewhere.path().join(link);
        std::os::unix::fs::symlink(target, &link).unwrap();
        assert!(Contents::open(&link).is_ok(), "the named path may be a link");
    }
    verify(contents).unwrap();
}

#[test]
fn unlisted_files_are_refused() {
    for name in ["extra.wasm", "kernels/extra.wasm"] {
        let folder = folder();
        fs::write(folder.path().join(name), "x").unwrap();
        assert!(matches!(Contents::open(folder.path()), Err(Error::UnlistedFile { path }) if path == name));
    }
}

#[test]
fn missing_files_are_named() {
    for name in ["kernels.json", "rope.wasm", "kernels/norm.wasm"] {
        let folder = folder();
        fs::remove_file(folder.path().join(name)).unwrap();
        assert!(matches!(Contents::open(folder.path()), Err(Error::MissingFile { path }) if path == name));
    }
    let folder = folder();
    fs::remove_file(folder.path().join("kernels.json.sig")).unwrap();
    assert!(matches!(Contents::open(folder.path()).and_then(verify), Err(Error::Unsigned)));
    assert!(matches!(Contents::open(&folder.path().join("absent")), Err(Error::Io { .. })));
}

#[test]
fn long_files_are_refused_before_they_are_read() {
    for (name, bytes) in [
        ("kernels.json", MAX_MANIFEST_BYTES + 1),
        ("kernels.json.sig", 130),
        ("rope.wasm", MAX_KERNEL_BYTES + 1),
        ("kernels/norm.wasm", 1 << 40),
    ] {
        let folder = folder();
        let file = fs::OpenOptions::new().write(true).open(folder.path().join(name)).unwrap();
        if file.set_len(bytes).is_err() {
            continue; // A file system without such long files.
        }
        assert!(matches!(Contents::open(folder.path()), Err(Error::Limit { .. })), "{name}");
    }
}

#[test]
fn deep_and_crowded_folders_are_refused() {
    let deep = folder();
    fs::create_dir_all(deep.path().join("a/b/c/d/e/f")).unwrap();
    assert!(matches!(Contents::open(deep.path()), Err(Error::Limit { .. })));
    let crowded = folder();
    (0..300).for_each(|n| fs::write(crowded.path().join(format!("f{n}")), "").unwrap());
    assert!(matches!(Contents::open(crowded.path()), Err(Error::Limit { .. })));
}

#[cfg(unix)]
#[test]
fn links_and_pipes_in_folders_are_refused() {
    use std::os::unix::fs::symlink;
    for name in ["kernels.json", "kernels.json.sig", "rope.wasm", "kernels/norm.wasm"] {
        let (folder, elsewhere) = (folder(), tempfile::tempdir().unwrap());
        let (path, target) = (folder.path().join(name), elsewhere.path().join("target"));
        fs::rename(&path, &target).unwrap();
        symlink(&target, &path).unwrap();
        assert!(matches!(Contents::open(folder.path()), Err(Error::NotRegular { .. })), "{name}");
    }
    let (linked, elsewhere) = (folder(), folder());
    fs::remove_dir_all(linked.path().join("kernels")).unwrap();
    symlink(elsewhere.path().join("kernels"), linked.path().join("kernels")).unwrap();
    assert!(matches!(Contents::open(linked.path()), Err(Error::NotRegular { .. })));
    let built = Contents::build(linked.path(), Some(&key()));
    assert!(matches!(built, Err(Error::NotRegular { .. })));
    let socket = folder();
    let _listener = std::os::unix::net::UnixListener::bind(socket.path().join("s")).unwrap();
    assert!(matches!(Contents::open(socket.path()), Err(Error::NotRegular { .. })));
}

#[cfg(target_os = "linux")]
#[test]
fn names_in_folders_that_are_not_utf_8_are_refused() {
    use std::os::unix::ffi::OsStrExt;
    let folder = folder();
    fs::write(folder.path().join(std::ffi::OsStr::from_bytes(b"\xff.wasm")), "").unwrap();
    assert!(matches!(Contents::open(folder.path()), Err(Error::Path { why: "it is not UTF-8", .. })));
}

#[test]
fn names_in_folders_that_differ_between_systems_are_refused() {
    let folder = folder();
    fs::write(folder.path().join("Upper.wasm"), "").unwrap();
    assert!(matches!(Contents::open(folder.path()), Err(Error::Path { .. })));
}

#[test]
fn builds_refuse_values_that_differ_from_the_files() {
    let mut manifest = complete();
    assert!(Contents::build(source(&manifest).path(), Some(&key())).is_ok());
    manifest["kernels"][2]["bytes"] = json!(1);
    assert!(matches!(Contents::build(source(&manifest).path(), Some(&key())), Err(Error::Length { .. })));
    let folder = source(&complete());
    fs::write(folder.path().join("rope.wasm"), wasm(b"ropf")).unwrap();
    assert!(matches!(Contents::build(folder.path(), Some(&key())), Err(Error::HashMismatch { .. })));
}

#[test]
fn builds_without_a_key_are_signed_later() {
    let mut manifest = draft("1.0.0");
    manifest["author"]["signing_key"] = json!(key().public_key().id());
    let mut contents = Contents::build(source(&manifest).path(), None).unwrap();
    assert!(!contents.is_signed());
    let archive = contents.to_archive().unwrap();
    assert_eq!(Contents::from_archive(&archive).unwrap().to_archive().unwrap(), archive);
    contents.sign(&key()).unwrap();
    assert_eq!(contents.to_archive().unwrap(), signed("1.0.0").to_archive().unwrap());
}
