//! Keys, signatures, hashes, hosts and versions.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use ruvllm_witness::{Digest, PrivateKey};
use serde_json::json;

use super::{
    draft, host, key, now, other_key, replace, resigned, signed, signed_by, source, trust, verify, wasm,
};
use crate::manifest::WasmFeature;
use crate::{Contents, Engine, EngineKind, Error, Host, Policy, TrustedKey, TrustedKeys};

/// Result of a verification with these keys at a time.
fn verify_with(contents: Contents, keys: &TrustedKeys, now: Option<&str>) -> Result<crate::Pack, Error> {
    let now = now.map(|time| time.parse().unwrap());
    contents.verify(Policy { keys, host: &host(), now })
}

#[test]
fn a_signed_pack_hands_out_its_modules() {
    let pack = verify(signed("1.0.0")).unwrap();
    assert_eq!((pack.signer(), pack.key_id()), ("Acme", key().public_key().id()));
    assert_eq!(pack.modules().count(), 3);
    let [norm, plain, rope] =
        ["rms-norm-f32", "rms-norm-plain", "rope-f32"].map(|id| pack.module(id).unwrap().bytes.clone());
    assert!(Arc::ptr_eq(&norm, &plain), "kernels of one file share it");
    assert_eq!((&*norm, &*rope), (&*wasm(b"norm"), &*wasm(b"rope")));
    assert!(pack.module("other").is_none());
    assert_eq!(pack.release().manifest_sha256, pack.contents().manifest_sha256());
}

#[test]
fn packs_without_a_signature_are_refused() {
    let mut contents = signed("1.0.0");
    contents.signature = None;
    assert!(!contents.is_signed());
    assert!(matches!(verify(contents), Err(Error::Unsigned)));
}

#[test]
fn signatures_of_other_keys_are_refused() {
    let mut contents = signed("1.0.0");
    contents.signature = Some(format!("{}\n", other_key().sign(&contents.manifest_bytes)).into_bytes());
    let keys = trust(&[&key(), &other_key()]);
    assert!(matches!(verify_with(contents, &keys, None), Err(Error::BadSignature { .. })));
}

#[test]
fn signatures_of_other_packs_are_refused() {
    let mut contents = signed("1.0.0");
    contents.signature = signed("1.0.1").signature;
    assert!(matches!(verify(contents), Err(Error::BadSignature { .. })));
}

#[test]
fn signatures_have_one_text() {
    let original = signed("1.0.0").signature.unwrap();
    let text = String::from_utf8(original.clone()).unwrap();
    for other in [
        text.trim().to_owned(),
        format!("{text}\n"),
        format!(" {text}"),
        text.to_uppercase(),
        text.replace('\n', "\r\n"),
        String::new(),
        "\n".to_owned(),
        "0".repeat(128) + "\n",
    ] {
        let mut contents = signed("1.0.0");
        contents.signature = Some(other.into_bytes());
        assert!(matches!(verify(contents), Err(Error::BadSignature { .. })));
    }
    let mut contents = signed("1.0.0");
    contents.signature = Some(vec![0xff; 129]);
    assert!(matches!(verify(contents), Err(Error::BadSignature { .. })));
}

#[test]
fn every_byte_of_the_signature_counts() {
    let original = signed("1.0.0");
    for at in 0..129 {
        let mut contents = original.clone();
        if let Some(byte) = contents.signature.as_mut().and_then(|bytes| bytes.get_mut(at)) {
            *byte = if *byte == b'0' { b'1' } else { b'0' };
        }
        assert!(matches!(verify(contents), Err(Error::BadSignature { .. })), "{at}");
    }
}

#[test]
fn nobody_is_trusted_without_keys() {
    let keys = TrustedKeys::new(Vec::new(), None).unwrap();
    assert!(matches!(verify_with(signed("1.0.0"), &keys, None), Err(Error::NoTrustedKey)));
}

#[test]
fn unknown_keys_are_refused() {
    let contents = signed_by(&draft("1.0.0"), &other_key());
    let id = other_key().public_key().id();
    assert!(matches!(verify(contents), Err(Error::UnknownKey { key }) if key == id));
}

#[test]
fn revoked_keys_are_refused_with_the_reason() {
    let mut revoked = TrustedKey::new("Acme", key().public_key());
    revoked.revoked = Some("laptop stolen".to_owned());
    let keys = TrustedKeys::new(vec![revoked], None).unwrap();
    for now in [None, Some("2020-01-01")] {
        let refused = verify_with(signed("1.0.0"), &keys, now);
        assert!(matches!(refused, Err(Error::RevokedKey { reason, .. }) if reason == "laptop stolen"));
    }
}

#[test]
fn keys_are_valid_between_their_bounds() {
    let mut bounded = TrustedKey::new("Acme", key().public_key());
    bounded.valid_from = Some("2026-01-01".parse().unwrap());
    bounded.valid_until = Some("2027-01-01".parse().unwrap());
    let keys = TrustedKeys::new(vec![bounded], None).unwrap();
    for (now, is_valid) in [
        (Some("2025-12-31T23:59:59.999Z"), false),
        (Some("2026-01-01"), true),
        (Some("2026-12-31T23:59:59.999Z"), true),
        (Some("2027-01-01"), false),
        (None, true),
    ] {
        let verified = verify_with(signed("1.0.0"), &keys, now);
        assert_eq!(verified.is_ok(), is_valid, "{now:?}");
        assert!(is_valid || matches!(verified, Err(Error::KeyNotValid { .. })));
    }
}

#[test]
fn keys_rotate() {
    let (old, new) = (key(), other_key());
    let both = trust(&[&old, &new]);
    for signer in [&old, &new] {
        assert!(verify_with(signed_by(&draft("1.0.0"), signer), &both, None).is_ok());
    }
    let mut revoked = TrustedKey::new("Acme", old.public_key());
    revoked.revoked = Some("replaced".to_owned());
    let keys = TrustedKeys::new(vec![revoked, TrustedKey::new("Acme", new.public_key())], None).unwrap();
    assert!(verify_with(signed_by(&draft("1.0.0"), &new), &keys, None).is_ok());
    assert!(matches!(verify_with(signed("1.0.0"), &keys, None), Err(Error::RevokedKey { .. })));
}

#[test]
fn a_manifest_that_names_another_key_is_not_signed() {
    let mut contents = signed("1.0.0");
    assert!(matches!(contents.sign(&other_key()), Err(Error::OtherKey { .. })));
    let mut manifest = draft("1.0.0");
    manifest["author"]["signing_key"] = json!(other_key().public_key().id());
    let built = Contents::build(source(&manifest).path(), Some(&key()));
    assert!(matches!(built, Err(Error::OtherKey { .. })));
}

#[test]
fn altered_kernels_are_named_with_both_hashes() {
    let mut contents = signed("1.0.0");
    replace(&mut contents, "rope.wasm", wasm(b"ropf"));
    let expected = Digest::of(&wasm(b"rope"));
    match verify(contents) {
        Err(Error::HashMismatch { kernel, expected: stated, found }) => {
            assert_eq!((kernel.as_str(), stated), ("rope-f32", expected));
            assert_eq!(found, Digest::of(&wasm(b"ropf")));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn longer_and_shorter_kernels_are_refused() {
    for payload in [&b"rop"[..], b"", b"ropes"] {
        let mut contents = signed("1.0.0");
        replace(&mut contents, "rope.wasm", wasm(payload));
        assert!(matches!(verify(contents), Err(Error::Length { .. })));
    }
}

#[test]
fn a_kernel_in_the_place_of_another_is_refused() {
    let mut contents = signed("1.0.0");
    replace(&mut contents, "rope.wasm", wasm(b"norm"));
    assert!(matches!(verify(contents), Err(Error::HashMismatch { kernel, .. }) if kernel == "rope-f32"));
}

#[test]
fn the_signature_does_not_help_a_wrong_hash() {
    let contents = resigned(|manifest| manifest.kernels[2].sha256 = Digest::of(b"other"));
    assert!(matches!(verify(contents), Err(Error::HashMismatch { .. })));
}

#[test]
fn compiled_code_and_components_are_no_kernels() {
    for module in
        [&b"\x7fELF\x01\x01\x01\0"[..], b"\0asm\x0d\0\x01\0", b"(module)", b"\0asm", b"\0asm\x02\0\0\0"]
    {
        let folder = source(&draft("1.0.0"));
        std::fs::write(folder.path().join("rope.wasm"), module).unwrap();
        assert!(matches!(Contents::build(folder.path(), Some(&key())), Err(Error::NotWasm { .. })));
        let mut contents = resigned(|manifest| {
            manifest.kernels[2].sha256 = Digest::of(module);
            manifest.kernels[2].bytes = module.len() as u64;
        });
        replace(&mut contents, "rope.wasm", module.to_vec());
        assert!(matches!(verify(contents), Err(Error::NotWasm { .. })));
    }
}

#[test]
fn kernels_that_the_allow_list_lacks_are_refused() {
    let allow = |kernels: &[&[u8]]| {
        let allowed: BTreeSet<Digest> = kernels.iter().map(|kernel| Digest::of(&wasm(kernel))).collect();
        TrustedKeys::new(vec![TrustedKey::new("Acme", key().public_key())], Some(allowed)).unwrap()
    };
    assert!(verify_with(signed("1.0.0"), &allow(&[b"norm", b"rope"]), None).is_ok());
    let refused = verify_with(signed("1.0.0"), &allow(&[b"norm"]), None);
    assert!(matches!(refused, Err(Error::NotAllowed { kernel, .. }) if kernel == "rope-f32"));
    assert!(matches!(verify_with(signed("1.0.0"), &allow(&[]), None), Err(Error::NotAllowed { .. })));
}

#[test]
fn packs_are_for_runtimes_within_their_bounds() {
    let keys = trust(&[&key()]);
    for (version, expected) in [
        ("0.0.9", "too old"),
        ("0.1.0-rc.1", "too old"),
        ("0.1.0", "fits"),
        ("0.1.0+build", "fits"),
        ("0.1.99", "fits"),
        ("0.2.0-rc.1", "fits"),
        ("0.2.0", "too new"),
        ("1.0.0", "too new"),
    ] {
        let host = Host::new(version.parse().unwrap());
        let found = match signed("1.0.0").verify(Policy { keys: &keys, host: &host, now: now() }) {
            Ok(_) => "fits",
            Err(Error::RuntimeTooOld { .. }) => "too old",
            Err(Error::RuntimeTooNew { .. }) => "too new",
            Err(other) => panic!("{other}"),
        };
        assert_eq!(found, expected, "{version}");
    }
}

#[test]
fn kernels_are_for_their_engines_and_features() {
    let keys = trust(&[&key()]);
    let verify = |kind, version: &str, features: &[WasmFeature]| {
        let features = features.iter().copied().collect();
        let engine = Some(Engine { kind, version: version.parse().unwrap(), features });
        let host = Host { engine, ..host() };
        signed("1.0.0").verify(Policy { keys: &keys, host: &host, now: now() })
    };
    let simd = [WasmFeature::Simd128];
    assert!(verify(EngineKind::Wasmtime, "48.0.8", &simd).is_ok());
    let missing = verify(EngineKind::Wasmtime, "48.0.8", &[WasmFeature::BulkMemory]);
    assert!(matches!(missing, Err(Error::MissingFeature { feature: "simd128", engine: "wasmtime", .. })));
    assert!(matches!(verify(EngineKind::Wasmtime, "47.9.0", &simd), Err(Error::EngineTooOld { .. })));
    let platform = verify(EngineKind::Wasmi, "2.0.0", &simd);
    assert!(matches!(platform, Err(Error::NoPlatform { kernel, .. }) if kernel == "rms-norm-plain"));
    assert!(matches!(verify(EngineKind::Wasmi, "1.9.0", &simd), Err(Error::EngineTooOld { .. })));
}

#[test]
fn older_and_changed_versions_are_below_the_floor() {
    let keys = trust(&[&key()]);
    let policy = Policy { keys: &keys, host: &host(), now: now() };
    let floor = verify(signed("1.2.0")).unwrap().release();
    for (version, is_refused) in [("1.2.0-rc.1", true), ("1.1.9", true), ("1.2.0", false), ("1.10.0", false)]
    {
        let verified = signed(version).verify_above(policy, Some(&floor));
        assert_eq!(matches!(verified, Err(Error::Downgrade { .. })), is_refused, "{version}");
        assert_eq!(verified.is_ok(), !is_refused);
    }
    let mut manifest = draft("1.2.0");
    manifest["description"] = json!("Another text");
    let changed = signed_by(&manifest, &key()).verify_above(policy, Some(&floor));
    assert!(matches!(changed, Err(Error::SameVersion { .. })));
}

#[test]
fn the_key_is_judged_before_anything_else() {
    // Everything is wrong: the first error says that nobody vouches for the pack.
    let mut contents = signed_by(&draft("1.0.0"), &other_key());
    replace(&mut contents, "rope.wasm", Vec::new());
    contents.signature = None;
    assert!(matches!(verify(contents), Err(Error::UnknownKey { .. })));
}

#[test]
fn trusted_keys_are_checked() {
    let (first, second) =
        (TrustedKey::new("a", key().public_key()), TrustedKey::new("b", key().public_key()));
    assert!(matches!(TrustedKeys::new(vec![first, second], None), Err(Error::Duplicate { .. })));
    let mut other = TrustedKey::new("a", key().public_key());
    other.id = other_key().public_key().id();
    assert!(matches!(TrustedKeys::new(vec![other], None), Err(Error::Field { .. })));
    let mut bounds = TrustedKey::new("a", key().public_key());
    (bounds.valid_from, bounds.valid_until) = ("2026-01-02".parse().ok(), "2026-01-01".parse().ok());
    assert!(matches!(TrustedKeys::new(vec![bounds], None), Err(Error::Field { .. })));
    let hidden = TrustedKey::new("a\u{1b}", key().public_key());
    assert!(TrustedKeys::new(vec![hidden], None).is_err());
    let many = (0..1025u32).map(|n| {
        let mut secret = [1; 32];
        secret[..4].copy_from_slice(&n.to_le_bytes());
        TrustedKey::new("a", PrivateKey::from_bytes(&secret).public_key())
    });
    assert!(matches!(TrustedKeys::new(many.collect(), None), Err(Error::Limit { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_altered_byte_of_the_manifest_is_found(at: prop::sample::Index, mask in 1u8..) {
        let mut contents = signed("1.0.0");
        let at = at.index(contents.manifest_bytes.len());
        contents.manifest_bytes[at] ^= mask;
        // Also if the text parses: the parsed manifest is that of the original here.
        let found = matches!(verify(contents), Err(Error::BadSignature { .. }));
        prop_assert!(found);
    }

    #[test]
    fn any_altered_byte_of_a_kernel_is_found(at: prop::sample::Index, mask in 1u8..) {
        let mut contents = signed("1.0.0");
        let mut module = wasm(b"rope");
        let at = at.index(module.len());
        module[at] ^= mask;
        replace(&mut contents, "rope.wasm", module);
        let found = matches!(verify(contents), Err(Error::HashMismatch { .. }));
        prop_assert!(found);
    }
}
