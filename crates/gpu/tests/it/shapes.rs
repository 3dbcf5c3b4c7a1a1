//! Error bounds and bits of every kernel on random shapes.

use ruvllm_gpu::self_test::{self, Check, Part};
use ruvllm_testkit::is_full_run;

use crate::gpu;

/// Small shapes of all parts: a thousand in a full run.
fn count() -> usize {
    if is_full_run() { 1000 } else { 40 }
}

/// Prints the checks, of which none may fail.
fn check(checks: &[Check], what: &str, least: usize) {
    for check in checks {
        println!("{check}");
    }
    assert!(checks.len() >= least, "{what}: {} checks", checks.len());
    assert!(checks.iter().all(Check::passed), "{what}: a check failed, see above");
}

/// Checks a part on small shapes, and in a full run on large ones too. `least`: number of
/// properties. Parts are tests of their own, so that drivers compile their kernels at the same
/// time.
fn part(part: Part, least: usize) {
    let Some(gpu) = gpu() else { return };
    let found = self_test::shapes(&gpu, 11, count(), Some(part)).unwrap();
    println!("{part:?}: {} small shapes, {} kernels", found.shapes, gpu.compiled());
    check(&found.checks, &format!("{part:?}"), least);
    assert!(found.shapes >= count() / 10, "{part:?}: {} shapes", found.shapes);
    if is_full_run() {
        check(&self_test::part(&gpu, part, 20, 6).unwrap(), &format!("{part:?}, large"), least);
    }
}

#[test]
fn products_are_within_their_bounds() {
    part(Part::Products, 30);
}

#[test]
fn operations_on_rows_are_within_their_bounds() {
    part(Part::Rows, 20);
}

#[test]
fn attention_is_within_its_bounds() {
    part(Part::Attention, 10);
}

#[test]
fn latent_attention_is_within_its_bounds() {
    part(Part::Latent, 8);
}

#[test]
fn experts_are_within_their_bounds() {
    part(Part::Experts, 15);
}

#[test]
fn low_rank_updates_are_within_their_bounds() {
    part(Part::LowRank, 12);
}

#[test]
fn residual_streams_are_within_their_bounds() {
    part(Part::Streams, 8);
}

#[test]
fn layers_with_a_state_are_within_their_bounds() {
    part(Part::States, 15);
}
