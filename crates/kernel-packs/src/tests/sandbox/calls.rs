//! Calls: several requests, views, tenants, the pool.

use serde_json::json;

use super::{ECHO, SANDBOX, call, entry, fault_of, load, load_in, plain, sandbox, with_entry};
use crate::sandbox::{Allocation, Direction, Fault, Job, Kernel, Outcome, ReturnCode, SandboxOptions};

/// Writes the tenth of what it finds at 1024 to the output, then the input to 1024.
const STASH: &str = "(f32.store (i32.load offset=16 (local.get $d)) (f32.load (i32.const 1024)))
    (f32.store (i32.const 1024) (f32.load (i32.load (local.get $d))))";

#[test]
fn requests_of_one_call_have_sizes_of_their_own() {
    let kernel = load(ECHO).unwrap();
    let inputs: Vec<Vec<f32>> = (1..=9).map(|n| vec![n as f32; n * 7]).collect();
    let bindings: Vec<_> =
        inputs.iter().map(|x| kernel.bind(&[("n", x.len() as u64)], &[]).unwrap()).collect();
    let mut outputs: Vec<Vec<f32>> = inputs.iter().map(|x| vec![0.0; x.len()]).collect();
    let given: Vec<[&[u8]; 1]> = inputs.iter().map(|x| [bytemuck::cast_slice(&x[..])]).collect();
    let mut taken: Vec<[&mut [u8]; 1]> =
        outputs.iter_mut().map(|y| [bytemuck::cast_slice_mut(&mut y[..])]).collect();
    let parts = bindings.iter().zip(&given).zip(&mut taken);
    let mut jobs: Vec<Job<'_, '_>> =
        parts.map(|((binding, inputs), outputs)| Job { binding, inputs, outputs }).collect();
    kernel.call(&mut jobs).unwrap();
    assert_eq!(kernel.counts().calls, 1);
    assert_eq!(outputs, inputs);
}

#[test]
fn views_are_written_and_read_in_place() {
    let kernel = load(ECHO).unwrap();
    let binding = kernel.bind(&[("n", 5)], &[]).unwrap();
    let sum = kernel.call_with(
        &[&binding, &binding],
        |guest| {
            assert_eq!(guest.requests(), 2);
            guest.input_mut::<f32>(0, 0)?.fill(2.0);
            guest.input_mut::<f32>(1, 0)?.copy_from_slice(&[1.0, 2.0, 3.0, 4.0, 5.0]);
            Ok(())
        },
        |guest| Ok(guest.output::<f32>(0, 0)?.iter().chain(guest.output::<f32>(1, 0)?).sum::<f32>()),
    );
    assert_eq!(sum.unwrap(), 25.0);
}

#[test]
fn views_of_other_types_and_tensors_are_refused() {
    let kernel = load(ECHO).unwrap();
    let binding = kernel.bind(&[("n", 5)], &[]).unwrap();
    let with = |write: fn(&mut crate::sandbox::Guest<'_>) -> Result<(), Fault>| {
        fault_of(kernel.call_with(&[&binding], write, |_| Ok(())))
    };
    for fault in [
        with(|guest| guest.input_mut::<i32>(0, 0).map(|_| ())),
        with(|guest| guest.input_mut::<u16>(0, 0).map(|_| ())),
        with(|guest| guest.input_mut::<f32>(1, 0).map(|_| ())),
        with(|guest| guest.input_mut::<f32>(0, 1).map(|_| ())),
        with(|guest| guest.output::<f32>(0, 1).map(|_| ())),
    ] {
        assert!(matches!(fault, Fault::Argument { .. }), "{fault:?}");
    }
    assert_eq!(kernel.idle_instances(), 1, "the instance is kept");
}

#[test]
fn wrong_numbers_and_lengths_are_refused_before_the_call() {
    let kernel = load(ECHO).unwrap();
    let binding = kernel.bind(&[("n", 2)], &[]).unwrap();
    let with = |inputs: &[&[u8]], lengths: &[usize]| {
        let mut buffers: Vec<Vec<u8>> = lengths.iter().map(|&length| vec![0; length]).collect();
        let mut outputs: Vec<&mut [u8]> = buffers.iter_mut().map(|buffer| &mut buffer[..]).collect();
        kernel.call(&mut [Job { binding: &binding, inputs, outputs: &mut outputs }])
    };
    with(&[&[0; 8]], &[8]).unwrap();
    for (inputs, lengths) in [
        (&[][..], &[8][..]),
        (&[&[0u8; 8][..], &[0; 8]], &[8]),
        (&[&[0; 7]], &[8]),
        (&[&[0; 12]], &[8]),
        (&[&[0; 8]], &[]),
        (&[&[0; 8]], &[8, 8]),
        (&[&[0; 8]], &[9]),
    ] {
        assert!(matches!(fault_of(with(inputs, lengths)), Fault::Argument { .. }));
    }
    assert_eq!(kernel.counts().calls, 1);
    assert!(matches!(fault_of(kernel.call(&mut [])), Fault::Argument { .. }));
}

#[test]
fn requests_of_other_kernels_and_directions_are_refused() {
    let (kernel, other) = (load(ECHO).unwrap(), load(ECHO).unwrap());
    let binding = other.bind(&[("n", 2)], &[]).unwrap();
    assert!(matches!(
        fault_of(kernel.call_with(&[&binding], |_| Ok(()), |_| Ok(()))),
        Fault::Argument { .. }
    ));
    let fault = fault_of(kernel.bind_direction(Direction::Backward, &[("n", 2)], &[]));
    assert_eq!(fault, Fault::MissingExport { name: "kernel_backward".to_owned() });
}

#[test]
fn gradients_take_those_of_outputs_and_the_inputs() {
    // dx = 2 * dy * x for y = x^2, of one value.
    let backward = r#"(func (export "kernel_backward") (param $d i32) (param $n i32) (result i32)
        (f32.store (i32.load offset=16 (local.get $d)) (f32.mul (f32.const 2) (f32.mul
          (f32.load (i32.load (local.get $d))) (f32.load (i32.load offset=8 (local.get $d))))))
        (i32.const 0))"#;
    let kernel = load(&with_entry(backward, "")).unwrap();
    assert!(kernel.has_backward());
    let binding = kernel.bind_direction(Direction::Backward, &[("n", 1)], &[]).unwrap();
    assert_eq!(binding.direction(), Direction::Backward);
    assert_eq!(binding.input_bytes().chain(binding.output_bytes()).collect::<Vec<_>>(), [4, 4, 4]);
    let (dy, x, mut dx) = ([5.0f32], [3.0f32], [0.0f32]);
    let inputs = [bytemuck::cast_slice(&dy), bytemuck::cast_slice(&x)];
    let mut outputs = [bytemuck::cast_slice_mut(&mut dx)];
    kernel.call(&mut [Job { binding: &binding, inputs: &inputs, outputs: &mut outputs }]).unwrap();
    assert_eq!(dx, [30.0]);
    let forward = kernel.bind(&[("n", 1)], &[]).unwrap();
    let fault = fault_of(kernel.call_with(&[&binding, &forward], |_| Ok(()), |_| Ok(())));
    assert!(matches!(fault, Fault::Argument { .. }));
}

#[test]
fn return_codes_have_names() {
    for (number, name) in [
        (1, "invalid argument"),
        (2, "out of memory"),
        (3, "unsupported shape or type"),
        (4, "overflow"),
        (5, "internal fault"),
        (6, "not implemented"),
        (7, "unknown code"),
        (-1, "unknown code"),
    ] {
        let kernel = load(&entry(&format!("(return (i32.const {number}))"))).unwrap();
        let Fault::Code { code, .. } = fault_of(call(&kernel, &[1.0])) else { panic!("no code") };
        assert_eq!((code.number(), code.name()), (number, name));
        assert_eq!(code.to_string(), format!("{number} ({name})"));
        let is_defect = matches!(code, ReturnCode::Internal | ReturnCode::Unknown(_));
        assert_eq!(kernel.counts().all_traps(), u64::from(is_defect));
    }
}

#[test]
fn memory_of_one_tenant_is_not_seen_by_another() {
    let kernel = load(&entry(STASH)).unwrap();
    let (a, b) = (kernel.for_tenant(1), kernel.for_tenant(2));
    assert_eq!(call(&a, &[7.0]).unwrap(), [0.0]);
    assert_eq!(call(&a, &[8.0]).unwrap(), [7.0], "an instance is used again");
    assert_eq!(call(&b, &[9.0]).unwrap(), [0.0]);
    assert_eq!(call(&a, &[1.0]).unwrap(), [8.0]);
    assert_eq!(call(&b, &[1.0]).unwrap(), [9.0]);
    assert_eq!(call(&kernel, &[1.0]).unwrap(), [0.0]);
}

#[test]
fn slots_of_the_pooling_allocator_are_reset() {
    let options = SandboxOptions {
        idle_instances: 0,
        allocation: Allocation::Pooling { instances: 2 },
        ..Default::default()
    };
    let kernel = load_in(&sandbox(options), &plain(), &entry(STASH)).unwrap();
    for x in 1..50 {
        assert_eq!(call(&kernel.for_tenant(x), &[x as f32]).unwrap(), [0.0]);
    }
}

#[test]
fn a_full_pooling_allocator_closes_idle_instances_first() {
    let options = SandboxOptions { allocation: Allocation::Pooling { instances: 2 }, ..Default::default() };
    let sandbox = sandbox(options);
    let kernel = load_in(&sandbox, &plain(), ECHO).unwrap();
    for tenant in 0..10 {
        assert_eq!(call(&kernel.for_tenant(tenant), &[2.0]).unwrap(), [2.0]);
    }
    let other = load_in(&sandbox, &plain(), ECHO);
    let fault = other.err().map(|error| fault_of::<()>(Err(error)));
    assert!(matches!(fault, None | Some(Fault::NoInstance { .. })), "{fault:?}");
}

#[test]
fn instances_are_kept_up_to_a_number() {
    let options = SandboxOptions { idle_instances: 2, ..Default::default() };
    let kernel = load_in(&sandbox(options), &plain(), ECHO).unwrap();
    assert_eq!(kernel.idle_instances(), 1);
    kernel.prepare(5).unwrap();
    assert_eq!(kernel.idle_instances(), 2);
    for tenant in 0..5 {
        call(&kernel.for_tenant(tenant), &[1.0]).unwrap();
    }
    assert_eq!(kernel.idle_instances(), 2);
    assert_eq!(kernel.close_idle(), 2);
}

#[test]
fn native_code_replaces_calls_that_fail() {
    let (good, bad) = (load(ECHO).unwrap(), load(&entry("(unreachable)")).unwrap());
    let run = |kernel: &crate::sandbox::Kernel| {
        let binding = kernel.bind(&[("n", 1)], &[]).unwrap();
        let (x, mut y) = ([3.0f32], [0.0f32]);
        let inputs = [bytemuck::cast_slice(&x)];
        let mut outputs = [bytemuck::cast_slice_mut(&mut y)];
        let mut jobs = [Job { binding: &binding, inputs: &inputs, outputs: &mut outputs }];
        let outcome = kernel.call_or(&mut jobs, |jobs| {
            jobs[0].outputs[0].copy_from_slice(bytemuck::bytes_of(&30.0f32));
            "native"
        });
        (outcome, y)
    };
    assert!(matches!(run(&good), (Outcome::Kernel, [3.0])));
    assert!(matches!(run(&bad), (Outcome::Native { result: "native", .. }, [30.0])));
    assert_eq!((good.counts().fallbacks, bad.counts().fallbacks), (0, 1));
}

#[test]
fn memory_of_the_kernel_and_of_the_host_do_not_meet() {
    // No `__heap_base`: the kernel takes a page before the first call and one in each call, and
    // finds its own number at its end.
    let text = r#"(module (memory (export "memory") 1) (global $at (mut i32) (i32.const 0))
        (func (export "kernel_init") (result i32)
          (global.set $at (i32.shl (memory.grow (i32.const 1)) (i32.const 16)))
          (i32.store (global.get $at) (i32.const 77)) (i32.const 0))
        (func (export "kernel_forward") (param $d i32) (param $n i32) (result i32)
          (if (i32.ne (i32.load (global.get $at)) (i32.const 77)) (then (return (i32.const 5))))
          (global.set $at (i32.shl (memory.grow (i32.const 1)) (i32.const 16)))
          (i32.store (global.get $at) (i32.const 77))
          (memory.copy (i32.load offset=16 (local.get $d)) (i32.load (local.get $d))
            (i32.load offset=4 (local.get $d)))
          (i32.const 0)))"#;
    let mut kernel = plain();
    kernel["limits"]["memory_pages"] = json!(64);
    let kernel = load_in(&SANDBOX, &kernel, text).unwrap();
    for n in [1, 10_000, 20_000, 5, 40_000] {
        let x: Vec<f32> = (0..n).map(|i| i as f32).collect();
        assert_eq!(call(&kernel, &x).unwrap(), x);
    }
}

#[test]
fn an_instance_without_room_is_replaced() {
    // Takes all but 13 of its 16 pages in the first call.
    let kernel =
        load(&entry("(if (i32.lt_u (memory.size) (i32.const 4)) (then (drop (memory.grow (i32.const 3)))))"));
    let kernel = kernel.unwrap();
    call(&kernel, &[1.0]).unwrap();
    let large = vec![1.0; 100_000];
    assert!(matches!(fault_of(call(&kernel, &large)), Fault::Room { .. }));
    assert_eq!((kernel.idle_instances(), kernel.counts().all_traps()), (0, 0));
    call(&kernel, &large).unwrap();
}

#[test]
fn requests_of_a_kernel_that_is_gone_are_refused() {
    let kernels = || (0..32).map(|_| load(ECHO).unwrap()).collect::<Vec<_>>();
    let bind = |kernel: &Kernel| kernel.bind(&[("n", 1)], &[]).unwrap();
    let stale: Vec<_> = kernels().iter().map(bind).collect();
    // Memory of the freed kernels is used again.
    for kernel in kernels() {
        for binding in &stale {
            let (x, mut y) = ([0u8; 4], [0u8; 4]);
            let job = Job { binding, inputs: &[&x], outputs: &mut [&mut y] };
            assert!(matches!(fault_of(kernel.call(&mut [job])), Fault::Argument { .. }));
        }
    }
}
