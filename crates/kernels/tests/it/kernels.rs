//! Choice of an instruction set.

use ruvllm_kernels::{Isa, Kernels};

/// Run by `cargo xtask cross-test` on each emulated CPU, which quotes the message.
#[test]
fn detection_obeys_the_environment() {
    let chosen = Kernels::detect().unwrap().isa();
    let available: Vec<_> = Kernels::available().iter().map(|kernels| kernels.isa().name()).collect();
    let found = format!("instruction set: {chosen} (available: {})", available.join(", "));
    match std::env::var(Isa::VARIABLE).ok().filter(|name| !name.is_empty()) {
        Some(name) => assert_eq!(chosen.name(), name, "{found}"),
        None => assert_eq!(chosen, Isa::best(), "{found}"),
    }
}
