//! Files of trusted keys.

use std::fs;

use ruvllm_witness::KeyId;
use serde_json::{Value, json};

use super::{key, trust};
use crate::limits::MAX_TRUST_BYTES;
use crate::{Error, TrustedKeys};

fn parse(value: &Value) -> Result<TrustedKeys, Error> {
    TrustedKeys::parse(value.to_string().as_bytes(), "keys")
}

fn document() -> Value {
    json!(trust(&[&key()]))
}

#[test]
fn a_file_of_keys_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trusted-keys.json");
    fs::write(&path, document().to_string()).unwrap();
    let keys = TrustedKeys::load(&path).unwrap();
    assert_eq!(keys.keys()[0].id, key().public_key().id());
    assert!(keys.find(KeyId::default(), None).is_err());
}

#[test]
fn unknown_and_repeated_fields_are_refused() {
    let mut more = document();
    more["more"] = json!(1);
    assert!(matches!(parse(&more), Err(Error::Json { .. })));
    let mut more = document();
    more["keys"][0]["valid_til"] = json!("2026-01-01");
    assert!(matches!(parse(&more), Err(Error::Json { .. })), "a mistyped bound is no bound");
    let twice = document().to_string().replacen("\"keys\"", "\"keys\":[],\"keys\"", 1);
    assert!(matches!(TrustedKeys::parse(twice.as_bytes(), "keys"), Err(Error::Json { .. })));
}

#[test]
fn weak_and_short_keys_are_refused() {
    for public_key in [format!("01{}", "0".repeat(62)), "0".repeat(64), "ab".to_owned(), "f".repeat(64)] {
        let mut document = document();
        document["keys"][0]["public_key"] = json!(public_key);
        assert!(parse(&document).is_err(), "{public_key}");
    }
}

#[test]
fn other_versions_and_long_files_are_refused() {
    let mut newer = document();
    newer["schema_version"] = json!(2);
    assert!(matches!(parse(&newer), Err(Error::SchemaVersion { .. })));
    let long = " ".repeat(MAX_TRUST_BYTES as usize + 1);
    assert!(matches!(TrustedKeys::parse(long.as_bytes(), "keys"), Err(Error::Limit { .. })));
}

#[cfg(unix)]
#[test]
fn files_that_others_may_change_are_refused() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trusted-keys.json");
    fs::write(&path, document().to_string()).unwrap();
    for (mode, is_read) in [(0o600, true), (0o644, true), (0o660, false), (0o602, false)] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(TrustedKeys::load(&path).is_ok(), is_read, "{mode:o}");
    }
    // Mounted secrets are links; the file behind counts.
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(matches!(TrustedKeys::load(&link), Err(Error::Writable { mode: 0o602, .. })));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(TrustedKeys::load(&link).is_ok());
    assert!(matches!(TrustedKeys::load(folder.path()), Err(Error::NotRegular { .. })));
}
