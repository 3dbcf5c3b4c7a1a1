//! Compiled modules on disk.

use std::fs;
use std::path::{Path, PathBuf};

use ruvllm_witness::Digest;
use serde_json::json;

use super::{ECHO, call, entry, load_in, pack, plain, sandbox};
use crate::sandbox::{CacheCounts, Kernel, Sandbox, SandboxOptions};
use crate::{Error, Result};

/// Bytes before the code.
const HEADER: usize = 112;

fn options(folder: &Path) -> SandboxOptions {
    SandboxOptions { cache: Some(folder.to_owned()), ..Default::default() }
}

fn load(sandbox: &Sandbox) -> Result<Kernel> {
    load_in(sandbox, &plain(), ECHO)
}

/// Counts of hits, misses and rejected files.
fn counts(sandbox: &Sandbox) -> (u64, u64, u64) {
    let CacheCounts { hits, misses, rejected } = sandbox.cache_counts();
    (hits, misses, rejected)
}

/// The only file of a folder.
fn only_file(folder: &Path) -> PathBuf {
    let files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files.into_iter().next().unwrap()
}

fn assert_works(kernel: &Kernel) {
    assert_eq!(call(kernel, &[1.0, 2.0]).unwrap(), [1.0, 2.0]);
}

/// Folder with one compiled module.
fn filled() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("code");
    load(&sandbox(options(&cache))).unwrap();
    let file = only_file(&cache);
    (folder, file)
}

#[test]
fn modules_are_compiled_once() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("a/code");
    let first = sandbox(options(&cache));
    assert_works(&load(&first).unwrap());
    assert_works(&load(&first).unwrap());
    assert_eq!(counts(&first), (1, 1, 0));
    let second = sandbox(options(&cache));
    assert_works(&load(&second).unwrap());
    assert_eq!(counts(&second), (1, 0, 0));
    assert_eq!(second.cache_folder(), Some(&*cache));
    load_in(&second, &plain(), &entry("")).unwrap();
    assert_eq!((counts(&second), fs::read_dir(&cache).unwrap().count()), ((1, 1, 0), 2));
}

#[test]
fn settings_that_change_no_code_share_files() {
    let (_folder, file) = filled();
    let other = sandbox(SandboxOptions { stack_bytes: 256 << 10, ..options(file.parent().unwrap()) });
    assert_works(&load(&other).unwrap());
    assert_eq!(counts(&other), (1, 0, 0));
}

#[test]
fn a_file_that_is_altered_at_any_byte_is_replaced() {
    let (_folder, file) = filled();
    let cache = file.parent().unwrap();
    let original = fs::read(&file).unwrap();
    let sandbox = sandbox(options(cache));
    // All of the header, and each part of the code: every byte goes through the same digest.
    let places = (0..HEADER).chain((HEADER..original.len()).step_by(original.len() / 60));
    let mut rejected = 0;
    for place in places.chain([original.len() - 1]) {
        let mut altered = original.clone();
        altered[place] ^= 1;
        fs::write(&file, altered).unwrap();
        assert_works(&load(&sandbox).unwrap());
        rejected += 1;
        assert_eq!(counts(&sandbox), (0, 0, rejected), "byte {place}");
        assert_eq!(fs::read(&file).unwrap().len(), original.len());
    }
    assert_works(&load(&sandbox).unwrap());
    assert_eq!(counts(&sandbox), (1, 0, rejected));
}

#[test]
fn no_altered_byte_passes_the_check() {
    let (_folder, file) = filled();
    let mut bytes = fs::read(&file).unwrap();
    for place in 0..bytes.len() {
        bytes[place] ^= 0x80;
        assert!(!crate::sandbox::cache::passes(&bytes), "byte {place}");
        bytes[place] ^= 0x80;
    }
    assert!(crate::sandbox::cache::passes(&bytes));
}

#[test]
fn files_that_are_cut_or_longer_are_replaced() {
    let (_folder, file) = filled();
    let original = fs::read(&file).unwrap();
    let sandbox = sandbox(options(file.parent().unwrap()));
    let longer = [&original[..], &[0]].concat();
    for bytes in
        [&[][..], &original[..HEADER - 1], &original[..HEADER], &original[..original.len() - 1], &longer]
    {
        fs::write(&file, bytes).unwrap();
        assert_works(&load(&sandbox).unwrap());
    }
    assert_eq!(counts(&sandbox), (0, 0, 5));
}

/// The file with another code, and a header that fits it.
fn with_code(file: &[u8], code: &[u8]) -> Vec<u8> {
    let mut header = file[..72].to_vec();
    header.extend((code.len() as u64).to_le_bytes());
    let sum = [Digest::of(&header).0, Digest::of(code).0].concat();
    header.extend(Digest::of(&sum).0);
    header.extend(code);
    header
}

#[test]
fn code_of_another_architecture_is_replaced() {
    let (_folder, file) = filled();
    let original = fs::read(&file).unwrap();
    let mut code = original[HEADER..].to_vec();
    assert_eq!(code[..4], *b"\x7fELF");
    assert_eq!(with_code(&original, &code), original);
    // The target in the metadata of wasmtime, in a file whose digest is right.
    let target = std::env::consts::ARCH.as_bytes();
    let places: Vec<usize> =
        (0..code.len() - target.len()).filter(|&at| code[at..].starts_with(target)).collect();
    assert!(!places.is_empty());
    for at in places {
        code[at..at + target.len()].copy_from_slice(&b"riscv64gc"[..target.len()]);
    }
    fs::write(&file, with_code(&original, &code)).unwrap();
    let sandbox = sandbox(options(file.parent().unwrap()));
    assert_works(&load(&sandbox).unwrap());
    assert_eq!(counts(&sandbox), (0, 0, 1));
}

#[test]
fn code_of_other_settings_under_this_name_is_replaced() {
    let (_folder, file) = filled();
    let mut bytes = fs::read(&file).unwrap();
    bytes[8] ^= 1;
    let code = bytes[HEADER..].to_vec();
    fs::write(&file, with_code(&bytes, &code)).unwrap();
    let sandbox = sandbox(options(file.parent().unwrap()));
    assert_works(&load(&sandbox).unwrap());
    assert_eq!(counts(&sandbox), (0, 0, 1));
}

#[test]
fn code_of_another_module_under_this_name_is_replaced() {
    let (_folder, file) = filled();
    let cache = file.parent().unwrap();
    let sandbox = sandbox(options(cache));
    load_in(&sandbox, &plain(), &entry("(unreachable)")).unwrap();
    let other = fs::read_dir(cache).unwrap().map(|entry| entry.unwrap().path()).find(|path| *path != file);
    fs::copy(other.unwrap(), &file).unwrap();
    assert_works(&load(&sandbox).unwrap());
    assert_eq!(counts(&sandbox), (0, 1, 1));
}

#[test]
fn packs_bring_no_compiled_code() {
    let (_folder, file) = filled();
    let code = fs::read(&file).unwrap()[HEADER..].to_vec();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("kernel.wasm"), code).unwrap();
    let manifest = json!({
        "schema_version": 1, "name": "test", "version": "1.0.0", "description": "Test",
        "min_runtime_version": "0.1.0", "created": "2026-11-27",
        "author": {"name": "Acme", "email": "kernels@acme.example"}, "kernels": [plain()]
    });
    fs::write(folder.path().join("kernels.json"), manifest.to_string()).unwrap();
    let built = crate::Contents::build(folder.path(), Some(&super::key()));
    assert!(matches!(built, Err(Error::NotWasm { .. })));
}

#[test]
fn modules_that_cannot_be_compiled_leave_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let sandbox = sandbox(options(folder.path()));
    assert!(sandbox.load(&pack(&plain(), b"\0asm\x01\0\0\0\x01"), "kernel").is_err());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[cfg(unix)]
mod permissions {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn folder_and_files_are_private() {
        let (_folder, file) = filled();
        assert_eq!((mode(file.parent().unwrap()), mode(&file)), (0o700, 0o600));
    }

    #[test]
    fn folders_that_others_may_change_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        for bits in [0o720, 0o702, 0o777, 0o1777] {
            set_mode(folder.path(), bits);
            let opened = Sandbox::new(options(folder.path()));
            assert!(matches!(opened, Err(Error::Writable { .. })), "{bits:o}");
        }
        set_mode(folder.path(), 0o700);
        let sandbox = sandbox(options(folder.path()));
        set_mode(folder.path(), 0o777);
        assert!(matches!(load(&sandbox), Err(Error::Writable { .. })), "also later");
        set_mode(folder.path(), 0o700);
        assert_works(&load(&sandbox).unwrap());
    }

    #[test]
    fn files_that_others_may_change_are_replaced() {
        let (_folder, file) = filled();
        set_mode(&file, 0o666);
        let sandbox = sandbox(options(file.parent().unwrap()));
        assert_works(&load(&sandbox).unwrap());
        assert_eq!((counts(&sandbox), mode(&file)), ((0, 0, 1), 0o600));
    }

    #[test]
    fn links_are_refused() {
        let (folder, file) = filled();
        let link = folder.path().join("link");
        symlink(file.parent().unwrap(), &link).unwrap();
        assert!(matches!(Sandbox::new(options(&link)), Err(Error::NotRegular { .. })));
        let other = folder.path().join("other");
        fs::rename(&file, &other).unwrap();
        symlink(&other, &file).unwrap();
        let sandbox = sandbox(options(file.parent().unwrap()));
        assert_works(&load(&sandbox).unwrap());
        assert_eq!(counts(&sandbox), (0, 0, 1));
        assert!(!file.is_symlink());
    }
}
