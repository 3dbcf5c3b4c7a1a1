//! Kernels that are stopped while they run.

use std::time::Instant;

use super::{
    GOOD, assert_deadline, assert_serving, attack, call, entry, fault_of, load, load_in, out_of_bounds,
    plain, sandbox, trap, with_entry,
};
use crate::sandbox::{Fault, SandboxOptions, Trap};

const ENDLESS: &str = "(loop $forever (br $forever))";

#[test]
fn an_endless_loop_in_the_entry_point_is_stopped() {
    assert_deadline(&entry(ENDLESS));
}

#[test]
fn an_endless_loop_in_the_start_function_is_stopped() {
    let module = with_entry(&format!("(func $start {ENDLESS}) (start $start)"), "");
    assert_deadline(&module);
}

#[test]
fn an_endless_loop_in_kernel_init_is_stopped() {
    let init = format!(r#"(func (export "kernel_init") (result i32) {ENDLESS} (i32.const 0))"#);
    assert_deadline(&with_entry(&init, ""));
}

#[test]
fn an_endless_loop_in_kernel_info_is_stopped() {
    let info = format!(r#"(func (export "kernel_info") (result i32) {ENDLESS} (i32.const 0))"#);
    assert_deadline(&with_entry(&info, ""));
}

#[test]
fn an_endless_loop_in_kernel_cleanup_is_stopped() {
    let kernel = load(&with_entry(&format!(r#"(func (export "kernel_cleanup") {ENDLESS})"#), "")).unwrap();
    call(&kernel, &[1.0]).unwrap();
    assert_eq!(kernel.close_idle(), 1);
    assert_eq!(kernel.idle_instances(), 0);
    call(&kernel, &[1.0]).unwrap();
    assert_serving();
}

#[test]
fn endless_recursion_without_a_loop_is_stopped() {
    let module = with_entry(
        "(func $f (param i32) (result i32) (call $f (i32.add (local.get 0) (i32.const 1))))",
        "(drop (call $f (i32.const 0)))",
    );
    assert_eq!(trap(&module), Trap::StackOverflow);
}

#[test]
fn mutual_recursion_with_many_locals_is_stopped() {
    let locals = "(local v128 v128 v128 v128)".repeat(16);
    let module =
        with_entry(&format!("(func $f {locals} (call $g)) (func $g {locals} (call $f))"), "(call $f)");
    assert_eq!(trap(&module), Trap::StackOverflow);
}

#[test]
fn memory_that_grows_page_by_page_is_stopped_at_the_limit() {
    let module = entry("(loop $l (br_if $l (i32.ne (memory.grow (i32.const 1)) (i32.const -1))))");
    assert_eq!(trap(&module), Trap::MemoryLimit { asked: 17 << 16, most: 16 << 16 });
}

#[test]
fn memory_that_grows_at_once_is_stopped() {
    let module = entry("(drop (memory.grow (i32.const 65000)))");
    assert_eq!(trap(&module), Trap::MemoryLimit { asked: 65_002 << 16, most: 16 << 16 });
}

#[test]
fn memory_that_grows_in_the_start_function_is_stopped() {
    let start = "(func $start (drop (memory.grow (i32.const 16)))) (start $start)";
    assert_eq!(trap(&with_entry(start, "")), Trap::MemoryLimit { asked: 17 << 16, most: 16 << 16 });
}

#[test]
fn tables_that_grow_are_stopped_at_the_limit() {
    let module = with_entry(
        "(table $t 1 funcref)",
        "(loop $l (br_if $l (i32.ne (table.grow $t (ref.null func) (i32.const 1)) (i32.const -1))))",
    );
    assert_eq!(trap(&module), Trap::TableLimit { asked: 65, most: 64 });
}

#[test]
fn all_tables_count_together() {
    let module = with_entry("(table 40 funcref) (table 40 funcref)", "");
    assert_eq!(trap(&module), Trap::TableLimit { asked: 80, most: 64 });
}

#[test]
fn a_load_outside_of_the_memory_has_its_place() {
    let module = entry("(drop (i32.load (i32.const 0x7fff0000)))");
    assert_eq!(trap(&module), out_of_bounds(0x7fff_0000, 2 << 16));
}

#[test]
fn a_store_outside_of_the_memory_has_its_place() {
    let module = entry("(i64.store offset=0x100 (i32.const 0xfffffff0) (i64.const 1))");
    assert_eq!(trap(&module), out_of_bounds(0x1_0000_00f0, 2 << 16));
}

#[test]
fn a_store_over_the_end_of_the_memory_is_stopped() {
    let module = entry(
        "(v128.store (i32.sub (i32.shl (memory.size) (i32.const 16)) (i32.const 8)) (v128.const i64x2 1 1))",
    );
    assert!(matches!(trap(&module), Trap::OutOfBounds { .. }));
}

#[test]
fn fills_and_copies_outside_of_the_memory_are_stopped() {
    for body in [
        "(memory.fill (i32.const 0) (i32.const 255) (i32.const -1))",
        "(memory.copy (i32.const -16) (i32.const 0) (i32.const 64))",
        "(memory.copy (i32.const 0) (i32.const -16) (i32.const 64))",
    ] {
        assert!(matches!(trap(&entry(body)), Trap::OutOfBounds { .. }), "{body}");
    }
}

#[test]
fn data_segments_outside_of_the_memory_are_stopped() {
    let module = with_entry(r#"(data (i32.const 65530) "0123456789")"#, "");
    assert!(matches!(trap(&module), Trap::OutOfBounds { .. }));
}

#[test]
fn elements_outside_of_a_table_are_stopped() {
    let table = "(table 4 funcref) (type $t (func))";
    let module = with_entry(table, "(call_indirect (type $t) (i32.const 4))");
    assert_eq!(trap(&module), Trap::TableOutOfBounds);
    let module = with_entry("(table 1 funcref) (func $f) (elem (i32.const 1) $f)", "");
    assert_eq!(trap(&module), Trap::TableOutOfBounds);
}

#[test]
fn an_indirect_call_of_another_type_is_stopped() {
    let items =
        "(table 4 funcref) (type $t (func (param i64))) (func $f (param i32)) (elem (i32.const 0) $f)";
    let module = with_entry(items, "(call_indirect (type $t) (i64.const 1) (i32.const 0))");
    assert_eq!(trap(&module), Trap::BadIndirectCall);
}

#[test]
fn a_call_of_an_empty_element_is_stopped() {
    let module = with_entry("(table 4 funcref) (type $t (func))", "(call_indirect (type $t) (i32.const 1))");
    assert_eq!(trap(&module), Trap::NullCall);
}

#[test]
fn integer_division_by_zero_is_stopped() {
    assert_eq!(
        trap(&entry("(drop (i32.div_u (i32.const 1) (i32.sub (local.get $n) (i32.const 1))))")),
        Trap::DivisionByZero
    );
}

#[test]
fn integer_overflow_is_stopped() {
    let body = "(drop (i64.div_s (i64.const 0x8000000000000000) (i64.extend_i32_s (i32.sub (local.get $n) (i32.const 2)))))";
    assert_eq!(trap(&entry(body)), Trap::IntegerOverflow);
    let body = "(drop (i32.trunc_f32_s (f32.load (local.get $d))))";
    let large = with_entry("", &format!("(f32.store (local.get $d) (f32.const 1e30)) {body}"));
    assert_eq!(trap(&large), Trap::IntegerOverflow);
}

#[test]
fn conversion_of_nan_to_an_integer_is_stopped() {
    let body =
        "(f32.store (local.get $d) (f32.const nan)) (drop (i32.trunc_f32_s (f32.load (local.get $d))))";
    assert_eq!(trap(&entry(body)), Trap::BadConversion);
}

#[test]
fn unreachable_code_is_stopped() {
    assert_eq!(trap(&entry("(unreachable)")), Trap::Unreachable);
}

#[test]
fn a_panic_in_the_start_function_is_stopped() {
    assert_eq!(trap(&with_entry("(func $start (unreachable)) (start $start)", "")), Trap::Unreachable);
}

#[test]
fn a_budget_is_of_one_call_alone() {
    // Each call takes some of the 200 ms; all of them together take more.
    let mut manifest = plain();
    manifest["limits"]["epoch_ticks"] = 20.into();
    let kernel = load_in(&super::SANDBOX, &manifest, &entry("(local $i i32) (loop $l (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 100000))))")).unwrap();
    let start = Instant::now();
    let mut calls = 0;
    while start.elapsed().as_millis() < 500 {
        call(&kernel, &[1.0]).unwrap();
        calls += 1;
    }
    assert!(calls > 0);
    assert_eq!(kernel.counts().failed, 0);
}

#[test]
fn a_kernel_that_writes_all_of_its_memory_changes_no_other_instance() {
    // Descriptors, inputs and outputs of its own requests: everything that it can reach.
    let module = entry("(memory.fill (i32.const 0) (i32.const 0xff) (i32.shl (memory.size) (i32.const 16)))");
    let kernel = load(&module).unwrap();
    let binding = GOOD.bind(&[("n", 4)], &[]).unwrap();
    let seen = GOOD
        .call_with(
            &[&binding],
            |guest| {
                guest.input_mut::<f32>(0, 0)?.copy_from_slice(&[1.0, 2.0, 3.0, 4.0]);
                // While the inputs of another instance are written.
                let output = call(&kernel, &[1.0; 8]).expect("it returns 0");
                assert!(output.iter().all(|value| value.to_bits() == u32::MAX));
                Ok(())
            },
            |guest| Ok(guest.output::<f32>(0, 0)?.to_vec()),
        )
        .unwrap();
    assert_eq!(seen, [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(call(&kernel, &[1.0; 8]).unwrap().len(), 8, "the host lays descriptors out again");
    assert_serving();
}

#[test]
fn changed_descriptors_mean_nothing_to_the_host() {
    // The output is said to be at 2 GiB, with 1 GiB; the real one has 7.0.
    let body = "(f32.store (i32.load offset=16 (local.get $d)) (f32.const 7))
        (i32.store offset=16 (local.get $d) (i32.const 0x7fffffff))
        (i32.store offset=20 (local.get $d) (i32.const 0x40000000))";
    let kernel = load(&entry(body)).unwrap();
    assert_eq!(call(&kernel, &[1.0]).unwrap(), [7.0]);
    assert_serving();
}

#[test]
fn nan_outputs_have_one_form() {
    // 0/0 and the square root of a negative number differ in sign and payload between CPUs.
    let body = "(f32.store (i32.load offset=16 (local.get $d)) (f32.div (f32.load (i32.load (local.get $d))) (f32.const 0)))
        (f32.store offset=4 (i32.load offset=16 (local.get $d)) (f32.sqrt (f32.const -1)))";
    let kernel = load(&entry(body)).unwrap();
    let output = call(&kernel, &[0.0, 0.0]).unwrap();
    assert!(output.iter().all(|value| value.to_bits() == 0x7fc0_0000), "{output:?}");
    assert_serving();
}

#[test]
fn outputs_that_are_not_finite_can_be_refused() {
    let strict = sandbox(SandboxOptions { refuse_non_finite: true, ..Default::default() });
    let body = "(f32.store offset=4 (i32.load offset=16 (local.get $d)) (f32.div (f32.load (i32.load (local.get $d))) (f32.const 0)))";
    let kernel = load_in(&strict, &plain(), &entry(body)).unwrap();
    for (x, text) in [(1.0, "inf"), (0.0, "NaN")] {
        let fault = fault_of(call(&kernel, &[x, 0.0, 0.0]));
        let expected = Fault::NotFinite { tensor: "y".to_owned(), index: 1, value: text.to_owned() };
        assert_eq!(fault, expected);
    }
    assert_eq!(kernel.counts().all_traps(), 2);
    assert_serving();
}

#[test]
fn random_bytes_as_code_are_refused() {
    for seed in 0..64u32 {
        let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
        let mut bytes = b"\0asm\x01\0\0\0".to_vec();
        for _ in 0..200 {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            bytes.push(state as u8);
        }
        let loaded = super::SANDBOX.load(&super::pack(&plain(), &bytes), "kernel");
        assert!(matches!(fault_of(loaded), Fault::Malformed { .. }), "seed {seed}");
    }
    assert_serving();
}

#[test]
fn faults_name_kernel_and_remedy() {
    let kernel = load_in(&super::SANDBOX, &super::hasty(), &entry(ENDLESS));
    let text = kernel.and_then(|kernel| call(&kernel, &[1.0])).unwrap_err().to_string();
    assert_eq!(
        text,
        "the kernel kernel failed: it ran for more than its 3 ticks of 10 ms (limits.epoch_ticks)"
    );
    let text = attack(&entry("(drop (i32.load (i32.const 0x7fff0000)))")).to_string();
    let place = match out_of_bounds(0, 0) {
        Trap::OutOfBounds { offset: Some(_), .. } => ": at 2147418112, the memory has 131072 bytes",
        _ => "",
    };
    assert_eq!(text, format!("it read or wrote outside of its memory{place}"));
}
