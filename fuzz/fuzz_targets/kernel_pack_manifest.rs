//! Reads any bytes as the manifest of a kernel pack. One that is accepted can be written and read
//! again, its paths stay below the pack, and its fallbacks end.

#![no_main]

use std::path::{Component, Path};

use libfuzzer_sys::fuzz_target;
use ruvllm_kernel_packs::Manifest;
use ruvllm_kernel_packs::manifest::Fallback;

fuzz_target!(|text: &[u8]| {
    let Ok(manifest) = Manifest::parse(text) else { return };
    let again = serde_json::to_vec(&manifest).expect("JSON");
    let again = Manifest::parse(&again).expect("an accepted manifest");
    assert_eq!(again.title(), manifest.title());
    for kernel in &manifest.kernels {
        assert!(Path::new(&kernel.path).components().all(|part| matches!(part, Component::Normal(_))));
        let mut next = manifest.fallback(kernel);
        for _ in 0..manifest.kernels.len() {
            let Fallback::Kernel(id) = &next else { break };
            next = manifest.fallback(manifest.kernel(id).expect("a kernel of the pack"));
        }
        assert!(!matches!(next, Fallback::Kernel(_)));
    }
});
