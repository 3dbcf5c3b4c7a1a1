//! The core pack beside the native kernels.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use half::f16;
use proptest::prelude::*;
use ruvllm_kernels::quant::WeightFormat;
use ruvllm_kernels::rope::{RopeConfig, RopeLayout, RopeTable};
use ruvllm_kernels::{Isa, Kernels};

use super::kernels::values;
use super::{SANDBOX, fault_of};
use crate::manifest::ParameterValue;
use crate::sandbox::{Fault, Job, Kernel, ReturnCode, Sandbox};
use crate::{Contents, Host, Pack, Policy, Version};

/// Kernels of the core pack, signed with the key of the tests.
static CORE: LazyLock<Vec<Kernel>> = LazyLock::new(|| SANDBOX.load_all(&pack()).unwrap());

pub(super) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("core/pack")
}

pub(super) fn pack() -> Pack {
    let key = super::key();
    let host = Host { version: Version::new(0, 1, 0), engine: Some(Sandbox::engine()) };
    let contents = Contents::build(&folder(), Some(&key)).unwrap();
    contents.verify(Policy { keys: &super::trust(&[&key]), host: &host, now: super::now() }).unwrap()
}

fn native() -> Kernels {
    Kernels::for_isa(Isa::Scalar).unwrap()
}

fn kernel(id: &str) -> &'static Kernel {
    CORE.iter().find(|kernel| kernel.manifest().id == id).unwrap()
}

type Sizes<'a> = &'a [(&'a str, usize)];

/// Bytes of the output of one request.
fn compute(
    id: &str,
    sizes: Sizes<'_>,
    parameters: &[(&str, ParameterValue)],
    inputs: &[&[u8]],
) -> crate::Result<Vec<u8>> {
    let sizes: Vec<(&str, u64)> = sizes.iter().map(|(name, size)| (*name, *size as u64)).collect();
    let binding = kernel(id).bind(&sizes, parameters)?;
    let mut output = vec![0xaa; binding.output_bytes().next().unwrap()];
    kernel(id).call(&mut [Job { binding: &binding, inputs, outputs: &mut [&mut output[..]] }])?;
    Ok(output)
}

/// Values of the output of one request, of type f32.
fn floats(id: &str, sizes: Sizes<'_>, parameters: &[(&str, ParameterValue)], inputs: &[&[u8]]) -> Vec<f32> {
    let output = compute(id, sizes, parameters, inputs).unwrap();
    output.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn bytes(values: &[f32]) -> &[u8] {
    bytemuck::cast_slice(values)
}

fn halves(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect()
}

fn from_halves(bytes: &[u8]) -> Vec<f32> {
    let pairs = bytes.as_chunks().0;
    pairs.iter().map(|pair| f16::from_le_bytes(*pair).to_f32()).collect()
}

/// The values after rounding to half precision.
fn rounded(values: &[f32]) -> Vec<f32> {
    from_halves(&halves(values))
}

/// Checks that values differ by a share of the expected ones at most, or by `least`.
fn assert_near(found: &[f32], expected: &[f32], share: f32, least: f32, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let bound = share * expected.abs() + least;
        let is_near = (found - expected).abs() <= bound || (found == expected);
        assert!(is_near, "{what}: {found} at {index}, expected {expected}");
    }
}

/// Half of the distance between 1 and the next number of half precision.
const HALF_ROUNDING: f32 = 1.0 / 2048.0;

#[test]
fn the_module_is_small() {
    let module = std::fs::read(folder().join("core.wasm")).unwrap();
    assert!(module.len() < 64 << 10, "{} bytes", module.len());
    assert_eq!(CORE.len(), 13);
}

#[test]
fn rms_norm_is_that_of_the_native_kernels() {
    for (rows, dim) in [(1, 1), (2, 3), (3, 17), (1, 64), (2, 67), (1, 128), (5, 288), (2, 4096)] {
        let (x, weight) = (values(rows * dim, 1), values(dim, 2));
        let sizes = [("rows", rows), ("dim", dim)];
        let eps = [("eps", ParameterValue::Number(1e-5))];
        let expected = |x: &[f32]| {
            let mut expected = vec![0.0; x.len()];
            native().rms_norm(x, &weight, 1e-5, &mut expected);
            expected
        };
        let what = format!("{rows} x {dim}");
        // Sums in two orders: half of `dim` roundings of each, and five of the other steps.
        let bound = (dim + 10) as f32 * f32::EPSILON / 2.0;
        let found = floats("rms-norm-f32", &sizes, &eps, &[bytes(&x), bytes(&weight)]);
        assert_near(&found, &expected(&x), bound, 0.0, &what);
        let found = compute("rms-norm-f16", &sizes, &eps, &[&halves(&x), bytes(&weight)]).unwrap();
        let bound = bound + HALF_ROUNDING;
        assert_near(&from_halves(&found), &expected(&rounded(&x)), bound, 1e-7, &what);
    }
}

#[test]
fn swiglu_is_that_of_the_native_kernels() {
    for n in [1, 2, 5, 63, 64, 65, 500, 8192] {
        let mut gate: Vec<f32> = values(n, 3).iter().map(|x| x * 20.0).collect();
        gate[0] = -100.0;
        let up = values(n, 4);
        let expected = |gate: &[f32], up: &[f32]| {
            let mut expected = gate.to_vec();
            native().silu_mul(&mut expected, up);
            expected
        };
        let what = format!("{n} values");
        let found = floats("swiglu-f32", &[("n", n)], &[], &[bytes(&gate), bytes(&up)]);
        // The errors of both, each below 7e-7.
        assert_near(&found, &expected(&gate, &up), 1.4e-6, 1e-34, &what);
        let found = compute("swiglu-f16", &[("n", n)], &[], &[&halves(&gate), &halves(&up)]).unwrap();
        let expected = expected(&rounded(&gate), &rounded(&up));
        // The last place of subnormal numbers is 2^-24.
        assert_near(&from_halves(&found), &expected, HALF_ROUNDING + 1.4e-6, 3.1e-8, &what);
    }
}

#[test]
fn swiglu_of_the_ends_of_the_range() {
    let gate = [f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 0.0, -0.0, f32::NAN, 88.9];
    let found = floats("swiglu-f32", &[("n", 8)], &[], &[bytes(&gate), bytes(&[1.0; 8])]);
    let mut expected = gate;
    native().silu_mul(&mut expected, &[1.0; 8]);
    assert!(found[6].is_nan());
    // Below -87 the true value is smaller than 1.5e-36.
    assert_near(&found[..6], &expected[..6], 1.4e-6, 2e-36, "ends");
    assert_near(&found[7..], &expected[7..], 1.4e-6, 0.0, "88.9");
}

struct Rope {
    tokens: usize,
    heads: usize,
    dim: usize,
    rotary: usize,
    layout: RopeLayout,
}

impl Rope {
    fn all() -> impl Iterator<Item = Self> {
        let shapes =
            [(1, 1, 2, 2), (3, 2, 6, 4), (2, 3, 64, 64), (4, 2, 96, 64), (2, 2, 128, 128), (1, 1, 160, 42)];
        shapes.into_iter().flat_map(|(tokens, heads, dim, rotary)| {
            let layouts = [RopeLayout::Halves, RopeLayout::Interleaved];
            layouts.into_iter().map(move |layout| Self { tokens, heads, dim, rotary, layout })
        })
    }

    fn sizes(&self) -> [(&'static str, usize); 4] {
        [("tokens", self.tokens), ("heads", self.heads), ("dim", self.dim), ("pairs", self.rotary / 2)]
    }

    fn parameters(&self) -> [(&'static str, ParameterValue); 1] {
        [("interleaved", ParameterValue::Bool(self.layout == RopeLayout::Interleaved))]
    }

    /// Values, cosines and sines of positions from 7 on.
    fn inputs(&self) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
        let table = self.table();
        let positions = 7..7 + self.tokens;
        let cos = positions.clone().flat_map(|position| table.at(position).0.to_vec()).collect();
        let sin = positions.flat_map(|position| table.at(position).1.to_vec()).collect();
        (values(self.tokens * self.heads * self.dim, 5), cos, sin)
    }

    fn table(&self) -> RopeTable {
        RopeTable::new(&RopeConfig::new(10_000.0, self.rotary), 16).unwrap()
    }

    fn expected(&self, x: &[f32]) -> Vec<f32> {
        let mut expected = x.to_vec();
        let positions = 7..7 + self.tokens;
        native().rope(&self.table(), self.layout, positions, &mut expected, self.heads, self.dim);
        expected
    }

    fn what(&self) -> String {
        format!("{:?} {:?}", self.sizes(), self.layout)
    }
}

#[test]
fn rope_is_that_of_the_native_kernels() {
    for rope in Rope::all() {
        let (x, cos, sin) = rope.inputs();
        let (sizes, parameters, what) = (rope.sizes(), rope.parameters(), rope.what());
        let found = floats("rope-f32", &sizes, &parameters, &[bytes(&x), bytes(&cos), bytes(&sin)]);
        // One more rounding of products of values below 4.
        assert_near(&found, &rope.expected(&x), 0.0, 8.0 * f32::EPSILON, &what);
        let inputs = [&halves(&x)[..], bytes(&cos), bytes(&sin)];
        let found = from_halves(&compute("rope-f16", &sizes, &parameters, &inputs).unwrap());
        assert_near(&found, &rope.expected(&rounded(&x)), HALF_ROUNDING, 8.0 * f32::EPSILON, &what);
    }
}

#[test]
fn rope_of_blocks_is_rope_between_unpacking_and_packing() {
    for rope in Rope::all().filter(|rope| rope.dim.is_multiple_of(32)) {
        let (x, cos, sin) = rope.inputs();
        let packed = quantized(WeightFormat::Q8_0, &x);
        let inputs = [&packed[..], bytes(&cos), bytes(&sin)];
        let found = compute("rope-q8-0", &rope.sizes(), &rope.parameters(), &inputs).unwrap();
        let before = dequantized(WeightFormat::Q8_0, &packed);
        let after = dequantized(WeightFormat::Q8_0, &found);
        let expected = rope.expected(&before);
        // Half a step of a block's largest value, and what rounds differently at its middle.
        for (after, expected) in after.chunks(32).zip(expected.chunks(32)) {
            let largest = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            assert_near(after, expected, HALF_ROUNDING, 0.51 * largest / 127.0, &rope.what());
        }
    }
}

#[test]
fn heads_that_rope_of_blocks_does_not_take_have_a_code() {
    let (x, angles) = (vec![0; 34 * 33], vec![0.0; 16]);
    let inputs = [&x[..], bytes(&angles), bytes(&angles)];
    let sizes = [("tokens", 1), ("heads", 1), ("dim", 1056), ("pairs", 16)];
    let fault = fault_of(compute("rope-q8-0", &sizes, &[], &inputs));
    let code = ReturnCode::Unsupported;
    assert_eq!(fault, Fault::Code { export: "rope_q8_0".to_owned(), code });
    let sizes = [("tokens", 1), ("heads", 1), ("dim", 30), ("pairs", 16)];
    let inputs = [bytes(&[0.0; 30]), bytes(&angles), bytes(&angles)];
    let fault = fault_of(compute("rope-f32", &sizes, &[], &inputs));
    let code = ReturnCode::InvalidArgument;
    assert_eq!(fault, Fault::Code { export: "rope_f32".to_owned(), code }, "more pairs than dimensions");
}

fn quantized(format: WeightFormat, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; format.row_bytes(values.len()).unwrap()];
    format.quantize(values, &mut bytes);
    bytes
}

fn dequantized(format: WeightFormat, bytes: &[u8]) -> Vec<f32> {
    let block = format.row_bytes(32).unwrap();
    let mut values = vec![0.0; bytes.len() / block * 32];
    format.dequantize(bytes, &mut values);
    values
}

const BLOCKS: [(WeightFormat, &str); 2] = [(WeightFormat::Q8_0, "q8-0"), (WeightFormat::Q4_0, "q4-0")];

fn pack_and_unpack(values: &[f32], dim: usize) {
    let sizes = [("rows", values.len() / dim), ("dim", dim)];
    for (format, name) in BLOCKS {
        let packed = compute(&format!("kv-pack-{name}"), &sizes, &[], &[bytes(values)]).unwrap();
        assert_eq!(packed, quantized(format, values), "{name}");
        let unpacked = compute(&format!("kv-unpack-{name}"), &sizes, &[], &[&packed]).unwrap();
        // The sandbox has one form of NaN; that of 0 times an infinite scale depends on the CPU.
        let one_form = |value: f32| if value.is_nan() { f32::NAN } else { value };
        let native: Vec<f32> = dequantized(format, &packed).into_iter().map(one_form).collect();
        assert_eq!(unpacked, bytes(&native), "{name}");
    }
}

#[test]
fn blocks_have_the_bytes_of_the_native_ones() {
    pack_and_unpack(&values(7 * 128, 6), 128);
    pack_and_unpack(&[0.0; 32], 32);
    let ties: Vec<f32> = (0..64).map(|index| index as f32 / 2.0 - 16.0).collect();
    pack_and_unpack(&ties, 64);
}

proptest! {
    #[test]
    fn blocks_of_any_scale_have_the_bytes_of_the_native_ones(
        values in prop::collection::vec(-1.0f32..1.0, 64),
        exponent in -45i32..20,
    ) {
        let scaled: Vec<f32> = values.iter().map(|value| value * 2f32.powi(exponent)).collect();
        pack_and_unpack(&scaled, 32);
    }
}

#[test]
fn every_scale_of_half_precision_is_read() {
    let finite = (0..=u16::MAX).filter(|bits| f16::from_bits(*bits).is_finite());
    let blocks: Vec<u8> = finite.flat_map(|bits| bits.to_le_bytes().into_iter().chain([1; 32])).collect();
    let sizes = [("rows", blocks.len() / 34), ("dim", 32)];
    let found = floats("kv-unpack-q8-0", &sizes, &[], &[&blocks]);
    assert_eq!(found, dequantized(WeightFormat::Q8_0, &blocks));
}

#[test]
fn low_rank_updates_are_those_of_float64() {
    for (rows, inputs, rank, outputs) in
        [(1, 1, 1, 1), (2, 5, 3, 7), (3, 64, 8, 96), (1, 300, 16, 65), (2, 128, 100, 3)]
    {
        let shape = |count: usize, seed: u32| values(count, seed).iter().map(|x| x / 4.0).collect::<Vec<_>>();
        let (x, base) = (shape(rows * inputs, 7), shape(rows * outputs, 8));
        let (a, b) = (shape(rank * inputs, 9), shape(outputs * rank, 10));
        let sizes = [("rows", rows), ("inputs", inputs), ("rank", rank), ("outputs", outputs)];
        let scale = [("scale", ParameterValue::Number(0.25))];
        let check = |found: &[f32], a: &[f32], b: &[f32]| {
            let (expected, size) = update(&x, a, b, &base, (inputs, rank, outputs));
            // Roundings of both products, of the sum of sizes.
            let bound = (inputs + rank + 4) as f32 * f32::EPSILON / 2.0;
            for ((found, expected), size) in found.iter().zip(expected).zip(size) {
                assert!((found - expected).abs() <= bound * size, "{found} {expected} {sizes:?}");
            }
        };
        let both = [bytes(&x), bytes(&a), bytes(&b), bytes(&base)];
        check(&floats("lora-apply-f32", &sizes, &scale, &both), &a, &b);
        let both = [bytes(&x), &halves(&a), &halves(&b), bytes(&base)];
        check(&floats("lora-apply-f16", &sizes, &scale, &both), &rounded(&a), &rounded(&b));
    }
}

/// `base + 0.25 (x A^T) B^T` in f64, and the sums of sizes.
fn update(
    x: &[f32],
    a: &[f32],
    b: &[f32],
    base: &[f32],
    (inputs, rank, outputs): (usize, usize, usize),
) -> (Vec<f32>, Vec<f32>) {
    let dot = |x: &[f64], y: &[f32]| x.iter().zip(y).map(|(x, y)| x * f64::from(*y)).sum::<f64>();
    let sizes = |x: &[f64], y: &[f32]| x.iter().zip(y).map(|(x, y)| (x * f64::from(*y)).abs()).sum::<f64>();
    let mut results = (Vec::new(), Vec::new());
    for (x, base) in x.chunks(inputs).zip(base.chunks(outputs)) {
        let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        let components: Vec<f64> = a.chunks(inputs).map(|a| 0.25 * dot(&x, a)).collect();
        let component_sizes: Vec<f64> = a.chunks(inputs).map(|a| 0.25 * sizes(&x, a)).collect();
        for (base, b) in base.iter().zip(b.chunks(rank)) {
            results.0.push((f64::from(*base) + dot(&components, b)) as f32);
            results.1.push((f64::from(base.abs()) + sizes(&component_sizes, b)) as f32);
        }
    }
    results
}

#[test]
fn several_requests_are_those_of_single_calls() {
    let (x, weight) = (values(3 * 96, 11), values(96, 12));
    let binding = kernel("rms-norm-f32").bind(&[("rows", 1), ("dim", 96)], &[]).unwrap();
    let mut y = vec![0.0f32; x.len()];
    let inputs: Vec<[&[u8]; 2]> = x.chunks(96).map(|x| [bytes(x), bytes(&weight)]).collect();
    let mut outputs: Vec<[&mut [u8]; 1]> = y.chunks_mut(96).map(|y| [bytemuck::cast_slice_mut(y)]).collect();
    let mut jobs: Vec<Job<'_, '_>> = inputs
        .iter()
        .zip(&mut outputs)
        .map(|(inputs, outputs)| Job { binding: &binding, inputs, outputs })
        .collect();
    kernel("rms-norm-f32").call(&mut jobs).unwrap();
    let sizes = [("rows", 3), ("dim", 96)];
    assert_eq!(y, floats("rms-norm-f32", &sizes, &[], &[bytes(&x), bytes(&weight)]));
}
