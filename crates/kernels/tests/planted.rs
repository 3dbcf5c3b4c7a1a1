//! Faults on purpose. They do nothing unless `RUVLLM_PLANT` names one of them; `cargo xtask sanitize` sets it and demands
//! that the sanitizer sees the fault, so that a gate which lets everything pass is found out.

use std::cell::UnsafeCell;
use std::hint::black_box;

fn planted(fault: &str) -> bool {
    std::env::var("RUVLLM_PLANT").is_ok_and(|name| name == fault)
}

struct Shared(UnsafeCell<u32>);

// SAFETY: not sound, which is the point; it is only touched when the fault is asked for.
unsafe impl Sync for Shared {}

#[test]
fn race() {
    if !planted("race") {
        return;
    }
    let shared = Shared(UnsafeCell::new(0));
    let shared = &shared;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            // SAFETY: not sound, on purpose: two threads write one word.
            scope.spawn(move || unsafe { *black_box(shared.0.get()) += 1 });
        }
    });
}

#[test]
fn overflow() {
    if !planted("overflow") {
        return;
    }
    let values = black_box(vec![1_u8; 40]);
    // SAFETY: not sound, on purpose: one byte behind the allocation is read.
    black_box(unsafe { *values.as_ptr().add(values.len()) });
}
