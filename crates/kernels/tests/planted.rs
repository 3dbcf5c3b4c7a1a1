//! Faults on purpose, one per run: `RUVLLM_PLANT` names it. `cargo xtask sanitize` demands that the
//! sanitizer reports each, so that a gate which lets everything pass is found out.
//!
//! No test harness: a fault that is not asked for is no test that passes.

use std::cell::UnsafeCell;
use std::hint::black_box;

struct Shared(UnsafeCell<u32>);

// SAFETY: not sound, which is the point; it is only touched when the fault is asked for.
unsafe impl Sync for Shared {}

fn race() {
    let shared = Shared(UnsafeCell::new(0));
    let shared = &shared;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            // SAFETY: not sound, on purpose: two threads write one word.
            scope.spawn(move || unsafe { *black_box(shared.0.get()) += 1 });
        }
    });
}

fn overflow() {
    let values = black_box(vec![1_u8; 40]);
    // SAFETY: not sound, on purpose: one byte behind the allocation is read.
    black_box(unsafe { *values.as_ptr().add(values.len()) });
}

fn main() {
    match std::env::var("RUVLLM_PLANT").as_deref() {
        Ok("race") => race(),
        Ok("overflow") => overflow(),
        Ok(other) => panic!("no fault is named {other}"),
        Err(_) => {}
    }
}
