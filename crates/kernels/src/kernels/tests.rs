//! The choice of an instruction set, as a whole process sees it.

use super::*;

/// Prints what it found: `cargo xtask cross-test` reads the line.
#[test]
fn detection_obeys_the_environment() {
    let chosen = Kernels::detect().unwrap().isa();
    let available: Vec<_> = Kernels::available().iter().map(|kernels| kernels.isa().name()).collect();
    println!("instruction set: {chosen} (available: {})", available.join(", "));
    match std::env::var(ISA_VARIABLE) {
        Ok(name) if !name.is_empty() => assert_eq!(chosen.name(), name),
        _ => assert_eq!(chosen, Isa::best()),
    }
}
