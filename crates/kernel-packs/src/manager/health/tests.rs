//! References and golden vectors beside the native kernels.

use proptest::prelude::*;
use ruvllm_kernels::low_rank::{Expansion, FactorFormat, LowRank, LowRankScratch, LowRankShape, LowRankTerm};
use ruvllm_kernels::quant::WeightFormat;
use ruvllm_kernels::rope::{RopeFrequencies, RopeLayout, RopeTable};
use ruvllm_kernels::{Isa, Kernels, ThreadPool};

use super::cases::{Case, cases};
use super::check_values;
use super::number::{decode, encode, half_bits, half_value};
use super::reference::{self, LoraShape};
use crate::manifest::{Category, DType, ParameterValue};
use crate::signature::Callable;

/// All instruction sets of this machine.
fn native() -> Vec<Kernels> {
    Isa::ALL.into_iter().filter_map(|isa| Kernels::for_isa(isa).ok()).collect()
}

fn narrow(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&value| value as f32).collect()
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

fn format(dtype: DType) -> WeightFormat {
    match dtype {
        DType::F16 => WeightFormat::F16,
        DType::Q8_0 => WeightFormat::Q8_0,
        DType::Q4_0 => WeightFormat::Q4_0,
        _ => WeightFormat::F32,
    }
}

/// Values in a type, by the native quantizers.
fn quantized(dtype: DType, values: &[f32]) -> Vec<u8> {
    let format = format(dtype);
    let mut bytes = vec![0; format.row_bytes(values.len()).unwrap()];
    format.quantize(values, &mut bytes);
    bytes
}

fn dequantized(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; decode(dtype, bytes).len()];
    format(dtype).dequantize(bytes, &mut values);
    values
}

fn size(case: &Case, name: &str) -> usize {
    case.sizes.iter().find(|(other, _)| *other == name).unwrap().1 as usize
}

fn number(case: &Case) -> f32 {
    match case.parameters[0].1 {
        ParameterValue::Number(number) => number as f32,
        other => panic!("{other}"),
    }
}

/// Output of the native kernel for a golden vector.
fn output(kernels: &Kernels, callable: Callable, case: &Case) -> Vec<u8> {
    let Callable { category, dtype } = callable;
    let input = |index: usize, dtype: DType| narrow(&decode(dtype, &case.inputs[index]));
    match category {
        Category::RmsNorm => {
            let (x, weight) = (input(0, dtype), input(1, DType::F32));
            let mut y = vec![0.0; x.len()];
            kernels.rms_norm(&x, &weight, number(case), &mut y);
            quantized(dtype, &y)
        }
        Category::Swiglu => {
            let (mut gate, up) = (input(0, dtype), input(1, dtype));
            kernels.silu_mul(&mut gate, &up);
            quantized(dtype, &gate)
        }
        Category::Rope => {
            let (mut x, cos, sin) = (input(0, dtype), input(1, DType::F32), input(2, DType::F32));
            let (heads, dim, pairs) = (size(case, "heads"), size(case, "dim"), size(case, "pairs"));
            let layout = match case.parameters[0].1 {
                ParameterValue::Bool(true) => RopeLayout::Interleaved,
                _ => RopeLayout::Halves,
            };
            for (token, x) in x.chunks_exact_mut(heads * dim).enumerate() {
                let angle = |at: usize| f64::from(sin[at]).atan2(f64::from(cos[at]));
                let inverse = (token * pairs..(token + 1) * pairs).map(angle).collect();
                let frequencies = RopeFrequencies { inverse, magnitude: 1.25 };
                let table = RopeTable::from_frequencies(&frequencies, 1..2);
                kernels.rope(&table, layout, 1..2, x, heads, dim);
            }
            quantized(dtype, &x)
        }
        Category::KvPack => quantized(dtype, &input(0, DType::F32)),
        Category::KvUnpack => quantized(DType::F32, &dequantized(dtype, &case.inputs[0])),
        _ => {
            let (inputs, outputs) = (size(case, "inputs"), size(case, "outputs"));
            let (a, b) = (input(1, dtype), input(2, dtype));
            let mut y = input(3, DType::F32);
            lora(kernels, dtype, (inputs, outputs), number(case), &input(0, DType::F32), &a, &b, &mut y);
            quantized(DType::F32, &y)
        }
    }
}

#[allow(clippy::too_many_arguments)] // the operation's own
fn lora(
    kernels: &Kernels,
    dtype: DType,
    (inputs, outputs): (usize, usize),
    scale: f32,
    x: &[f32],
    a: &[f32],
    b: &[f32],
    y: &mut [f32],
) {
    let rank = a.len() / inputs;
    let format = if dtype == DType::F16 { FactorFormat::F16 } else { FactorFormat::F32 };
    let expansion = Expansion { target: 0, first: 0, rank, outputs };
    let shape = LowRankShape::new(format, rank, inputs, vec![expansion], 0);
    let mut factors = vec![0u64; shape.end().div_ceil(8)];
    let bytes: &mut [u8] = &mut bytemuck::cast_slice_mut(&mut factors)[..shape.end()];
    let transposed: Vec<f32> = (0..rank * outputs).map(|at| b[at % outputs * rank + at / outputs]).collect();
    format.quantize(inputs, a, &mut bytes[shape.a()..][..format.bytes(rank, inputs)]);
    format.quantize(outputs, &transposed, &mut bytes[shape.b(0)..][..format.bytes(rank, outputs)]);
    let update = LowRank::new(&shape, bytes);
    let term = LowRankTerm { rows: 0..x.len() / inputs, scale, gates: &[], update };
    kernels.add_low_rank(&ThreadPool::single(), x, &[term], &mut [y], &mut LowRankScratch::default());
}

#[test]
fn native_kernels_pass_all_golden_vectors() {
    for kernels in native() {
        for callable in Callable::all() {
            for case in cases(callable) {
                let output = output(&kernels, callable, &case);
                check_values(&case, &output).unwrap_or_else(|why| panic!("{callable}: {why}"));
            }
        }
    }
}

/// Change of the values of an output.
type Fault = fn(&[f64]) -> Vec<f64>;

/// Changes that kernels with a fault make.
fn faults() -> Vec<(&'static str, Fault)> {
    vec![
        ("2 % too large", |y| y.iter().map(|y| y * 1.02).collect()),
        ("the last value is left out", |y| {
            let mut y = y.to_vec();
            *y.last_mut().unwrap() = 0.0;
            y
        }),
        ("neighbours exchanged", |y| {
            let mut y = y.to_vec();
            y.chunks_exact_mut(2).for_each(<[f64]>::reverse);
            y
        }),
        ("one place too far", |y| {
            let mut y = y.to_vec();
            y.rotate_right(1);
            y
        }),
        ("the other sign", |y| y.iter().map(|y| -y).collect()),
        ("NaN", |y| vec![f64::NAN; y.len()]),
    ]
}

#[test]
fn faults_of_results_are_found_in_every_category() {
    let kernels = Kernels::for_isa(Isa::Scalar).unwrap();
    for callable in Callable::all() {
        for (name, fault) in faults() {
            let is_found = |case: &Case| {
                let right = decode(case.outputs[0].0, &output(&kernels, callable, case));
                let wrong = encode(case.outputs[0].0, &fault(&right));
                case.is_required && !case.has_nan && check_values(case, &wrong).is_err()
            };
            assert!(cases(callable).iter().any(is_found), "{callable}: {name}");
        }
    }
}

#[test]
fn a_nan_that_is_swallowed_or_spreads_is_found() {
    let kernels = Kernels::for_isa(Isa::Scalar).unwrap();
    for callable in Callable::all().filter(|callable| callable.category != Category::KvPack) {
        let case = cases(callable).pop().unwrap();
        assert!(case.has_nan && case.is_required);
        if callable.dtype == DType::Q8_0 && callable.category == Category::Rope {
            continue; // blocks with NaN have no values
        }
        let right = decode(case.outputs[0].0, &output(&kernels, callable, &case));
        let swallowed: Vec<f64> = right.iter().map(|y| if y.is_nan() { 0.0 } else { *y }).collect();
        assert!(check_values(&case, &encode(case.outputs[0].0, &swallowed)).is_err(), "{callable}");
        let mut spread = right.clone();
        spread[0] = f64::NAN;
        assert!(check_values(&case, &encode(case.outputs[0].0, &spread)).is_err(), "{callable}");
    }
}

#[test]
fn cases_have_odd_and_large_shapes_and_other_parameters() {
    for callable in Callable::all() {
        let cases = cases(callable);
        assert!(cases.iter().filter(|case| case.is_required).count() >= 3, "{callable}");
        assert!(cases.iter().any(|case| case.expected.len() >= 1024), "{callable}");
        for case in &cases {
            assert_eq!(decode(case.outputs[0].0, &encode(case.outputs[0].0, &[1.0; 32])).len(), 32);
            assert!(!case.expected.is_empty());
        }
        if !cases[0].parameters.is_empty() {
            assert!(cases[..2].iter().any(|case| case.parameters != cases[0].parameters), "{callable}");
        }
    }
}

#[test]
fn halves_are_those_of_the_native_kernels() {
    for bits in 0..=u16::MAX {
        let value = half_value(bits);
        let native = dequantized(DType::F16, &bits.to_le_bytes())[0];
        if value.is_nan() {
            assert!(native.is_nan() && half_value(half_bits(value)).is_nan());
            continue;
        }
        assert_eq!(value, f64::from(native));
        assert_eq!(half_bits(value), bits);
    }
}

proptest! {
    #[test]
    fn halves_are_rounded_as_the_native_kernels_round(bits: u32) {
        let value = f32::from_bits(bits);
        prop_assume!(!value.is_nan());
        let native = quantized(DType::F16, &[value]);
        prop_assert_eq!(half_bits(f64::from(value)).to_le_bytes().to_vec(), native);
    }

    #[test]
    fn blocks_are_decoded_as_the_native_kernels_do(bytes in prop::collection::vec(any::<u8>(), 34)) {
        for (dtype, bytes) in [(DType::Q8_0, &bytes[..]), (DType::Q4_0, &bytes[..18])] {
            for (value, native) in decode(dtype, bytes).iter().zip(dequantized(dtype, bytes)) {
                prop_assert!(*value == f64::from(native) || (value.is_nan() && native.is_nan()));
            }
        }
    }

    #[test]
    fn quantized_values_are_within_the_bounds(
        values in prop::collection::vec(-1e4f32..1e4, 32),
        exponent in -12i32..1,
    ) {
        let values: Vec<f32> = values.iter().map(|value| value * 2f32.powi(exponent)).collect();
        for dtype in [DType::Q8_0, DType::Q4_0] {
            let bytes = quantized(dtype, &values);
            let expected = reference::kv_pack(dtype, &wide(&values));
            for (found, expected) in decode(dtype, &bytes).iter().zip(&expected) {
                prop_assert!(expected.accepts(*found), "{found} {expected:?}");
            }
        }
    }

    #[test]
    fn norms_are_within_the_bounds(
        x in prop::collection::vec(-100f32..100.0, 1..200),
        weight in prop::collection::vec(-4f32..4.0, 200),
        eps in 1e-8f32..1.0,
    ) {
        let weight = &weight[..x.len()];
        let mut y = vec![0.0; x.len()];
        Kernels::for_isa(Isa::Scalar).unwrap().rms_norm(&x, weight, eps, &mut y);
        let expected = reference::rms_norm(DType::F32, &wide(&x), &wide(weight), f64::from(eps));
        for (found, expected) in y.iter().zip(&expected) {
            prop_assert!(expected.accepts(f64::from(*found)), "{found} {expected:?}");
        }
    }

    #[test]
    fn gated_activations_are_within_the_bounds(
        gate in prop::collection::vec(-200f32..200.0, 1..100),
        up in prop::collection::vec(-100f32..100.0, 100),
    ) {
        let up = &up[..gate.len()];
        let mut y = gate.clone();
        Kernels::for_isa(Isa::Scalar).unwrap().silu_mul(&mut y, up);
        let expected = reference::swiglu(DType::F32, &wide(&gate), &wide(up));
        for (found, expected) in y.iter().zip(&expected) {
            prop_assert!(expected.accepts(f64::from(*found)), "{found} {expected:?}");
        }
    }

    #[test]
    fn low_rank_updates_are_within_the_bounds(
        (inputs, rank, outputs) in (1usize..40, 1usize..8, 1usize..40),
        scale in -4f32..4.0,
        values in prop::collection::vec(-4f32..4.0, 40 + 2 * 320 + 40),
    ) {
        let (x, rest) = values.split_at(inputs);
        let (a, rest) = rest.split_at(rank * inputs);
        let (b, rest) = rest.split_at(rank * outputs);
        let mut y = rest[..outputs].to_vec();
        let shape = LoraShape { inputs, rank, outputs, scale: f64::from(scale) };
        let expected = reference::lora_apply(shape, &wide(x), &wide(a), &wide(b), &wide(&y));
        let kernels = Kernels::for_isa(Isa::Scalar).unwrap();
        lora(&kernels, DType::F32, (inputs, outputs), scale, x, a, b, &mut y);
        for (found, expected) in y.iter().zip(&expected) {
            prop_assert!(expected.accepts(f64::from(*found)), "{found} {expected:?}");
        }
    }
}
