//! A process that is killed while it installs leaves a pack that verifies.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use ruvllm_kernel_packs::{
    Contents, Error, Host, Pack, Policy, PrivateKey, Store, TrustedKey, TrustedKeys, Version,
};

const FOLDER: &str = "PACKS_KILL_FOLDER";
const TEST: &str = "killed_installations_leave_a_pack_that_verifies";

/// Calls `work` with a policy that trusts the key of the packs.
fn with_policy<T>(work: impl FnOnce(Policy<'_>) -> T) -> T {
    let keys = TrustedKeys::new(vec![TrustedKey::new("Acme", key().public_key())], None).expect("keys");
    let host = Host::new(Version::new(0, 1, 0));
    work(Policy { keys: &keys, host: &host, now: None })
}

fn key() -> PrivateKey {
    PrivateKey::from_bytes(&[7; 32])
}

/// Signed pack of a version with 16 modules.
fn pack(folder: &Path, patch: u64) -> Contents {
    let source = folder.join("source");
    fs::create_dir_all(&source).expect("a folder");
    let kernel = |n: u64| {
        let module = [&b"\0asm\x01\0\0\0"[..], &patch.to_le_bytes(), &vec![n as u8; 20_000]].concat();
        fs::write(source.join(format!("k{n}.wasm")), module).expect("a module");
        format!(
            r#"{{"id": "k{n}", "name": "k", "category": "rope", "path": "k{n}.wasm",
            "inputs": [{{"name": "x", "dtype": "f32", "shape": ["n"]}}],
            "outputs": [{{"name": "y", "dtype": "f32", "shape": ["n"]}}],
            "platforms": {{"wasmtime": {{"min_version": "48.0.0"}}}}}}"#
        )
    };
    let kernels: Vec<String> = (0..16).map(kernel).collect();
    let manifest = format!(
        r#"{{"schema_version": 1, "name": "core", "version": "1.0.{patch}", "description": "d",
        "min_runtime_version": "0.1.0", "author": {{"name": "a", "email": "e"}}, "created": "2026-11-27",
        "kernels": [{}]}}"#,
        kernels.join(",")
    );
    fs::write(source.join("kernels.json"), manifest).expect("a manifest");
    Contents::build(&source, Some(&key())).expect("a pack")
}

fn open(folder: &Path) -> Result<Pack, Error> {
    with_policy(|policy| Store::new(folder.join("packs")).open("core", policy))
}

/// Work of the killed process: one version after the other, with a removal and a rollback between.
fn install_until_killed(folder: &Path) -> ! {
    let store = Store::new(folder.join("packs"));
    let first = open(folder).map_or(0, |_| {
        let (packs, _) = store.list().expect("a list");
        packs[0].floor.version.patch + 1
    });
    for patch in first.. {
        let contents = pack(folder, patch);
        with_policy(|policy| {
            store.install(contents, policy).expect("installed");
            if patch % 3 == 2 {
                store.prune("core").expect("removed");
                store.rollback("core", policy).expect("rolled back");
            }
        });
    }
    unreachable!("killed before")
}

#[test]
fn killed_installations_leave_a_pack_that_verifies() {
    if let Some(folder) = env::var_os(FOLDER) {
        install_until_killed(folder.as_ref());
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut floor = Version::new(0, 0, 0);
    for round in 0..12u64 {
        let mut child = Command::new(env::current_exe().expect("this program"))
            .args(["--exact", TEST, "--nocapture"])
            .env(FOLDER, folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a process");
        thread::sleep(Duration::from_millis(120 + round * 17));
        assert!(child.try_wait().expect("its state").is_none(), "the process ended by itself");
        child.kill().expect("a process to kill");
        child.wait().expect("its end");
        match open(folder.path()) {
            Ok(pack) => assert_eq!(pack.modules().count(), 16),
            Err(error) => assert!(matches!(error, Error::NotInstalled { .. }), "{error}"),
        }
        let (packs, damaged) = Store::new(folder.path().join("packs")).list().expect("a list");
        assert!(damaged.is_empty());
        if let Some(pack) = packs.first() {
            assert!(pack.floor.version >= floor, "the floor never goes back");
            floor = pack.floor.version.clone();
        }
    }
    assert!(floor.patch > 0, "nothing was installed");
}
