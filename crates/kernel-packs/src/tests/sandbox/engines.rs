//! Results of the interpreter beside those of the compiler, and its budgets.

use std::time::{Duration, Instant};

use serde_json::json;

use super::{attack, call, entry, fault_of, load_in, plain, sandbox, with_entry};
use crate::sandbox::{Fault, Kernel, Sandbox, SandboxOptions, Trap};
use crate::{EngineKind, Error};

fn on_wasmi() -> Sandbox {
    sandbox(SandboxOptions { engine: EngineKind::Wasmi, ..Default::default() })
}

/// Kernel that counts down from 300,000, in 10 steps of 30,000 with a fill of 64 KiB each.
fn slow(sandbox: &Sandbox) -> Kernel {
    let body = "(local $i i32) (local $j i32) (local.set $j (i32.const 10))
        (loop $fills
          (memory.fill (i32.const 0) (i32.const 7) (i32.const 65536))
          (local.set $i (i32.const 30000))
          (loop $l (br_if $l (local.tee $i (i32.sub (local.get $i) (i32.const 1)))))
          (br_if $fills (local.tee $j (i32.sub (local.get $j) (i32.const 1)))))
        (f32.store (i32.const 65536) (f32.const 9))";
    load_in(sandbox, &plain(), &entry(body)).unwrap()
}

#[test]
fn calls_go_on_where_their_fuel_ended() {
    for slice in [1, 100, 10_000] {
        let kernel = slow(&Sandbox::with_fuel_slices(slice).unwrap());
        call(&kernel, &[1.0, 2.0]).unwrap();
        assert_eq!(kernel.counts().failed, 0, "slices of {slice}");
    }
}

#[test]
fn memory_grows_where_fuel_ends() {
    let sandbox = Sandbox::with_fuel_slices(1).unwrap();
    let text = entry("(drop (memory.grow (i32.const 3))) (i32.store (i32.const 262140) (i32.const 1))");
    call(&load_in(&sandbox, &plain(), &text).unwrap(), &[1.0]).unwrap();
}

#[test]
fn growth_of_a_table_is_not_resumed() {
    let sandbox = Sandbox::with_fuel_slices(1).unwrap();
    let text = with_entry("(table $t 1 funcref)", "(drop (table.grow $t (ref.null func) (i32.const 60)))");
    let fault = fault_of(call(&load_in(&sandbox, &plain(), &text).unwrap(), &[1.0]));
    assert!(matches!(&fault, Fault::Trap(Trap::Other { why }) if why.contains("cannot resume")), "{fault:?}");
    call(&load_in(&on_wasmi(), &plain(), &text).unwrap(), &[1.0]).unwrap();
}

#[test]
fn budgets_are_of_time() {
    let mut kernel = plain();
    kernel["limits"]["epoch_ticks"] = json!(20);
    let sandbox = on_wasmi();
    let endless = load_in(&sandbox, &kernel, &entry("(loop $l (br $l))")).unwrap();
    let start = Instant::now();
    assert_eq!(fault_of(call(&endless, &[1.0])), Fault::Trap(Trap::Deadline { ticks: 20 }));
    assert!(start.elapsed() >= Duration::from_millis(200), "it has its time before it is stopped");
}

#[test]
fn large_fills_of_memory_are_stopped_too() {
    let mut kernel = super::hasty();
    kernel["limits"]["memory_pages"] = json!(1024);
    let body = "(drop (memory.grow (i32.const 1000)))
        (loop $l (memory.fill (i32.const 0) (i32.const 1) (i32.const 65000000)) (br $l))";
    let kernel = load_in(&on_wasmi(), &kernel, &entry(body)).unwrap();
    assert_eq!(fault_of(call(&kernel, &[1.0])), Fault::Trap(Trap::Deadline { ticks: 3 }));
}

#[test]
fn engines_that_a_program_lacks_are_an_error() {
    for engine in [EngineKind::Wasmtime, EngineKind::Wasmi] {
        let is_there = match engine {
            EngineKind::Wasmtime => cfg!(feature = "wasmtime"),
            EngineKind::Wasmi => cfg!(feature = "wasmi"),
        };
        let started = Sandbox::new(SandboxOptions { engine, ..Default::default() });
        match started {
            Ok(_) => assert!(is_there),
            Err(Error::Sandbox { why }) => {
                assert!(!is_there);
                assert_eq!(why, format!("this program is built without {}", engine.name()));
            }
            Err(other) => panic!("{other:?}"),
        }
    }
}

#[test]
fn both_engines_are_attacked() {
    let expected = usize::from(cfg!(feature = "wasmtime"));
    assert_eq!(super::OTHERS.len(), expected);
    attack(&entry("(unreachable)"));
}

/// Bits of all kernels of the core pack.
#[cfg(feature = "wasmtime")]
mod bits {
    use std::sync::LazyLock;

    use half::f16;
    use proptest::prelude::*;

    use super::super::SANDBOX;
    use super::super::core_pack::pack;
    use super::super::kernels::values;
    use super::*;
    use crate::manifest::{DType, ParameterValue, Tensor};
    use crate::sandbox::{Direction, Job};

    /// The core pack on the compiler, on the interpreter, and on one that is resumed often.
    static ENGINES: LazyLock<[Vec<Kernel>; 3]> = LazyLock::new(|| {
        let short = Sandbox::with_fuel_slices(50).unwrap();
        [&*SANDBOX, &on_wasmi(), &short].map(|sandbox| sandbox.load_all(&pack()).unwrap())
    });

    /// Values that kernels round, overflow on or pass on: NaN of several forms among them.
    const SPECIAL: [f32; 10] = [
        f32::NAN,
        f32::from_bits(0xffc1_2345),
        f32::from_bits(0x7f80_0001),
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MAX,
        f32::MIN_POSITIVE / 3.0,
        -0.0,
        65_520.0,
        -88.5,
    ];

    /// Bytes of a tensor, with every `step`th value a special one.
    fn filled(tensor: &Tensor, bytes: usize, seed: u32, step: usize) -> Vec<u8> {
        let floats = |count: usize| {
            let mut values = values(count, seed);
            for (index, value) in values.iter_mut().enumerate().skip(step - 1).step_by(step) {
                *value = SPECIAL[(index / step + seed as usize) % SPECIAL.len()];
            }
            values
        };
        match tensor.dtype {
            DType::F32 => floats(bytes / 4).into_iter().flat_map(f32::to_le_bytes).collect(),
            DType::F16 => {
                floats(bytes / 2).into_iter().flat_map(|x| f16::from_f32(x).to_le_bytes()).collect()
            }
            // Scales and quants of any bits.
            _ => values(bytes.div_ceil(4), seed).into_iter().flat_map(f32::to_le_bytes).take(bytes).collect(),
        }
    }

    /// Output of one request with these sizes, of all symbols that a kernel has.
    fn output(kernel: &Kernel, sizes: &[(&str, u64)], seed: u32, step: usize) -> crate::Result<Vec<u8>> {
        let manifest = kernel.manifest();
        let shapes = || manifest.inputs.iter().flat_map(|tensor| &tensor.shape);
        let has =
            |name: &str| shapes().any(|dim| matches!(dim, crate::manifest::Dim::Symbol(s) if s == name));
        let sizes: Vec<_> = sizes.iter().copied().filter(|(name, _)| has(name)).collect();
        let parameters: Vec<_> = manifest
            .parameters
            .iter()
            .map(|parameter| match parameter.name.as_str() {
                "interleaved" => ("interleaved", ParameterValue::Bool(seed.is_multiple_of(2))),
                "scale" => ("scale", ParameterValue::Number(0.37)),
                _ => ("eps", ParameterValue::Number(1e-5)),
            })
            .collect();
        let binding = kernel.bind_direction(Direction::Forward, &sizes, &parameters)?;
        let inputs: Vec<Vec<u8>> = manifest
            .inputs
            .iter()
            .zip(binding.input_bytes())
            .zip(seed..)
            .map(|((tensor, bytes), seed)| filled(tensor, bytes, seed, step))
            .collect();
        let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let mut output = vec![0xaa; binding.output_bytes().next().unwrap_or(0)];
        kernel.call(&mut [Job { binding: &binding, inputs: &inputs, outputs: &mut [&mut output] }])?;
        Ok(output)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn of_the_core_pack_are_the_same(
            rows in 1u64..4, dim in 1u64..200, blocks in 1u64..5, pairs in 1u64..16,
            inner in 1u64..70, rank in 1u64..9, seed in 0u32..1000, step in 3usize..80,
        ) {
            prop_assert_eq!(ENGINES[0].len(), 13);
            for ((compiled, interpreted), resumed) in
                ENGINES[0].iter().zip(&ENGINES[1]).zip(&ENGINES[2])
            {
                let id = compiled.manifest().id.as_str();
                // Rows of blocks have whole ones, heads at least their pairs.
                let dim = match id {
                    _ if id.contains("q8-0") || id.contains("q4-0") => 32 * blocks,
                    _ if id.starts_with("rope") => dim.max(2 * pairs),
                    _ => dim,
                };
                let sizes = [
                    ("rows", rows), ("dim", dim), ("n", dim), ("tokens", rows), ("heads", 2),
                    ("pairs", pairs), ("inputs", inner), ("rank", rank), ("outputs", dim),
                ];
                let expected = output(compiled, &sizes, seed, step).unwrap();
                prop_assert_eq!(&output(interpreted, &sizes, seed, step).unwrap(), &expected, "{}", id);
                prop_assert_eq!(&output(resumed, &sizes, seed, step).unwrap(), &expected, "{} resumed", id);
            }
        }
    }
}
