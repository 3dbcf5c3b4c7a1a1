//! Packs, keys and folders of the tests.

mod archives;
mod callables;
mod documents;
mod folders;
mod manifests;
#[cfg(feature = "sandbox")]
mod sandbox;
mod schemas;
mod signatures;
mod stores;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use ruvllm_witness::{PrivateKey, Timestamp};
use semver::Version;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{Contents, Host, Pack, Policy, Result, TrustedKey, TrustedKeys};

/// A module: its header, and a custom section with a payload of less than 64 bytes.
fn wasm(payload: &[u8]) -> Vec<u8> {
    let mut module = b"\0asm\x01\0\0\0".to_vec();
    module.extend([0, payload.len() as u8 + 1, 0]);
    module.extend(payload);
    module
}

fn key() -> PrivateKey {
    PrivateKey::from_bytes(&[7; 32])
}

fn other_key() -> PrivateKey {
    PrivateKey::from_bytes(&[8; 32])
}

fn trust(keys: &[&PrivateKey]) -> TrustedKeys {
    let keys = keys.iter().map(|key| TrustedKey::new("Acme", key.public_key())).collect();
    TrustedKeys::new(keys, None).unwrap()
}

fn host() -> Host {
    Host::new(Version::new(0, 1, 0))
}

fn now() -> Option<Timestamp> {
    Some("2026-11-27".parse().unwrap())
}

/// Both engines, with what the kernels of the tests use.
fn platforms() -> Value {
    json!({
        "wasmtime": {"min_version": "48.0.0", "features": ["simd128"]}, "wasmi": {"min_version": "2.0.0"}
    })
}

/// Draft with every field, and two modules.
fn draft(version: &str) -> Value {
    json!({
        "$schema": "kernel-pack.json",
        "schema_version": 1,
        "name": "core",
        "version": version,
        "description": "Norm and rotary embedding",
        "min_runtime_version": "0.1.0",
        "max_runtime_version": "0.2.0",
        "author": {"name": "Acme", "email": "kernels@acme.example"},
        "created": "2026-11-27T10:00:00.000Z",
        "kernels": [
            {
                "id": "rms-norm-f32",
                "name": "RMSNorm of rows",
                "category": "rms_norm",
                "path": "kernels/norm.wasm",
                "entry_point": "rms_norm",
                "inputs": [
                    {"name": "x", "dtype": "f32", "shape": ["rows", "dim"]},
                    {"name": "weight", "dtype": "f32", "shape": ["dim"]}
                ],
                "outputs": [{"name": "y", "dtype": "f32", "shape": ["rows", "dim"]}],
                "parameters": [{"name": "eps", "type": "f32", "default": 1e-6}],
                "limits": {"memory_pages": 64, "epoch_ticks": 100, "table_elements": 16},
                "platforms": {
                    "wasmtime": {"min_version": "48.0.0", "features": ["simd128"]},
                    "wasmi": {"min_version": "2.0.0", "aot_available": false}
                },
                "benchmarks": [{"name": "4096 values", "machine": "one core", "median_us": 2.5}],
                "fallback": "rms-norm-plain"
            },
            {
                "id": "rms-norm-plain",
                "name": "RMSNorm without vectors",
                "category": "rms_norm",
                "path": "kernels/norm.wasm",
                "inputs": [{"name": "x", "dtype": "f32", "shape": ["n"]}],
                "outputs": [{"name": "y", "dtype": "f32", "shape": ["n"]}],
                "platforms": {"wasmtime": {"min_version": "48.0.0"}}
            },
            {
                "id": "rope-f32",
                "name": "Rotary embedding",
                "category": "rope",
                "path": "rope.wasm",
                "inputs": [{"name": "x", "dtype": "f32", "shape": ["seq", 128]}],
                "outputs": [{"name": "y", "dtype": "f32", "shape": ["seq", 128]}],
                "parameters": [{"name": "position", "type": "u32"}],
                "platforms": {"wasmtime": {"min_version": "48.0.0"}}
            }
        ],
        "fallbacks": [{"category": "rms_norm", "fallback": "native"}]
    })
}

/// Folder with a manifest and the two modules of [`draft`].
fn source(manifest: &Value) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("kernels")).unwrap();
    fs::write(folder.path().join("kernels/norm.wasm"), wasm(b"norm")).unwrap();
    fs::write(folder.path().join("rope.wasm"), wasm(b"rope")).unwrap();
    fs::write(folder.path().join("kernels.json"), manifest.to_string()).unwrap();
    folder
}

/// Signed pack of a version.
fn signed(version: &str) -> Contents {
    signed_by(&draft(version), &key())
}

fn signed_by(manifest: &Value, key: &PrivateKey) -> Contents {
    Contents::build(source(manifest).path(), Some(key)).unwrap()
}

/// Complete manifest with the id of the key.
fn complete() -> Value {
    serde_json::from_slice(&signed("1.0.0").manifest_bytes).unwrap()
}

/// Pack of a manifest that was changed after it was built, signed again whatever it says.
fn resigned(change: impl FnOnce(&mut crate::Manifest)) -> Contents {
    let mut contents = signed("1.0.0");
    change(&mut contents.manifest);
    contents.manifest_bytes = contents.manifest.to_bytes().unwrap();
    contents.signature = Some(format!("{}\n", key().sign(&contents.manifest_bytes)).into_bytes());
    contents
}

/// Files of a pack in a folder.
fn write(contents: &Contents, folder: &Path) {
    for (path, bytes) in contents.files() {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

/// Verifies with the key of the tests.
fn verify(contents: Contents) -> Result<Pack> {
    contents.verify(Policy { keys: &trust(&[&key()]), host: &host(), now: now() })
}

/// Replaces a module, with its length and hash in the manifest left alone.
fn replace(contents: &mut Contents, path: &str, bytes: Vec<u8>) {
    contents.kernels.insert(path.to_owned(), Arc::from(bytes));
}
