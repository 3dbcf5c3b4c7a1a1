//! Intentional faults, one per run, selected by `RUVLLM_PLANT`. `cargo xtask sanitize` requires
//! that the sanitizer reports each, which proves that the gate works.
//!
//! Without a test harness: a fault that was not requested must not count as a passed test.

use std::cell::UnsafeCell;
use std::hint::black_box;

struct Shared(UnsafeCell<u32>);

// SAFETY: unsound on purpose; only used when the fault is requested.
unsafe impl Sync for Shared {}

fn race() {
    let shared = Shared(UnsafeCell::new(0));
    let shared = &shared;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            // SAFETY: unsound on purpose: two threads write one word.
            scope.spawn(move || unsafe { *black_box(shared.0.get()) += 1 });
        }
    });
}

fn overflow() {
    let values = black_box(vec![1_u8; 40]);
    // SAFETY: unsound on purpose: one byte behind the allocation is read.
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
