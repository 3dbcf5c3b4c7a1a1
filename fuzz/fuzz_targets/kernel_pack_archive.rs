//! Reads any bytes as the archive of a kernel pack. One that is read is written with the same
//! bytes, verifies if the key of the seeds signs it, and does not with a changed signature.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use ruvllm_kernel_packs::{Contents, Host, Policy, PrivateKey, TrustedKey, TrustedKeys, Version};

static KEY: LazyLock<PrivateKey> = LazyLock::new(|| PrivateKey::from_bytes(&[7; 32]));
static KEYS: LazyLock<TrustedKeys> = LazyLock::new(|| {
    TrustedKeys::new(vec![TrustedKey::new("seeds", KEY.public_key())], None).expect("a key")
});

fuzz_target!(|archive: &[u8]| {
    let Ok(mut contents) = Contents::from_archive(archive) else { return };
    assert_eq!(contents.to_archive().expect("an archive"), archive);
    let host = Host::new(Version::new(0, 1, 0));
    let policy = Policy { keys: &KEYS, host: &host, now: None };
    let verifies = contents.clone().verify(policy).is_ok();
    if contents.sign(&KEY).is_err() {
        // A key that is not trusted, or modules that are not those of the manifest.
        assert!(!verifies);
        return;
    }
    let archive = contents.to_archive().expect("an archive");
    let again = Contents::from_archive(&archive).expect("the form of packs");
    match again.verify(policy) {
        Ok(pack) => assert_eq!(pack.modules().count(), contents.manifest().kernels.len()),
        // Packs for other versions of the runtime.
        Err(error) => assert!(!verifies && error.to_string().contains("ruvllm"), "{error}"),
    }
});
