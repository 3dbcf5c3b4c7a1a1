//! Golden vectors: the calls by which a kernel of a category is checked.
//!
//! Each list has plain shapes, which a kernel must compute (multiples of 32, the default and
//! another value of each parameter), and others that it may refuse with the code `unsupported`: the
//! smallest, odd ones and large ones. The last case has rows with NaN and infinity.

use std::fmt;

use super::number::{BLOCK, decode, encode, half_bits};
use super::reference::{self, Expected, LoraShape, RopeShape};
use crate::manifest::{Category, DType, ParameterValue};
use crate::sandbox::Direction;
use crate::signature::Callable;

/// One call with its expected outputs.
#[derive(Debug, Clone)]
pub(super) struct Case {
    pub(super) sizes: Vec<(&'static str, u64)>,
    pub(super) parameters: Vec<(&'static str, ParameterValue)>,
    pub(super) inputs: Vec<Vec<u8>>,
    pub(super) direction: Direction,
    /// Types of the outputs, each with the number of its values.
    pub(super) outputs: Vec<(DType, usize)>,
    /// Names of the inputs, for gradients.
    pub(super) names: &'static [&'static str],
    /// Values of the outputs, one behind the other.
    pub(super) expected: Vec<Expected>,
    /// False if the kernel may refuse the shape.
    pub(super) is_required: bool,
    /// True if outputs with NaN are right.
    pub(super) has_nan: bool,
}

/// Sizes and parameters, for messages.
impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.direction == Direction::Backward { "gradient, " } else { "" })?;
        f.write_str(&self.text())
    }
}

impl Case {
    /// Sizes and parameters.
    fn text(&self) -> String {
        let sizes = self.sizes.iter().map(|(name, size)| format!("{name} {size}"));
        let parameters = self.parameters.iter().map(|(name, value)| format!("{name} {value}"));
        let parts: Vec<String> = sizes.chain(parameters).collect();
        parts.join(", ") + if self.has_nan { ", with NaN" } else { "" }
    }

    /// Text of the case with the output that has a value, and the index of the value in it.
    pub(super) fn place(&self, mut index: usize) -> (String, usize) {
        if self.direction == Direction::Forward {
            return (self.to_string(), index);
        }
        let mut output = 0;
        while let Some((_, count)) = self.outputs.get(output)
            && index >= *count
        {
            (index, output) = (index - count, output + 1);
        }
        (format!("gradient of {}, {}", self.names.get(output).unwrap_or(&""), self.text()), index)
    }
}

/// Cases of a category, in an order in which the first are required.
pub(super) fn cases(callable: Callable) -> Vec<Case> {
    let dtype = callable.dtype;
    match callable.category {
        Category::RmsNorm => rms_norm(dtype),
        Category::Swiglu => swiglu(dtype),
        Category::Rope => rope(dtype),
        Category::KvPack => kv_pack(dtype),
        Category::KvUnpack => kv_unpack(dtype),
        Category::LoraApply => lora_apply(dtype),
        Category::Other => Vec::new(),
    }
}

/// Source of inputs (SplitMix64, Steele et al. 2014), so that each case has values of its own.
pub(super) struct Random(pub(super) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Values from -`most` to `most`.
    pub(super) fn values(&mut self, count: usize, most: f64) -> Vec<f64> {
        let mut value = || (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0;
        (0..count).map(|_| value() * most).collect()
    }

    /// Tensor of such values.
    pub(super) fn tensor(&mut self, dtype: DType, count: usize, most: f64) -> Tensor {
        Tensor::new(dtype, &self.values(count, most))
    }
}

/// Bytes of a tensor, and their exact values.
pub(super) struct Tensor {
    pub(super) bytes: Vec<u8>,
    pub(super) values: Vec<f64>,
}

impl Tensor {
    fn new(dtype: DType, values: &[f64]) -> Self {
        let bytes = encode(dtype, values);
        Self { values: decode(dtype, &bytes), bytes }
    }

    fn of_bytes(dtype: DType, bytes: Vec<u8>) -> Self {
        Self { values: decode(dtype, &bytes), bytes }
    }
}

impl Case {
    fn new(
        sizes: &[(&'static str, usize)],
        inputs: impl IntoIterator<Item = Tensor>,
        output: DType,
        expected: Vec<Expected>,
    ) -> Self {
        Self {
            sizes: sizes.iter().map(|&(name, size)| (name, size as u64)).collect(),
            parameters: Vec::new(),
            inputs: inputs.into_iter().map(|tensor| tensor.bytes).collect(),
            direction: Direction::Forward,
            names: &[],
            outputs: vec![(output, expected.len())],
            expected,
            is_required: true,
            has_nan: false,
        }
    }

    /// Values of the outputs in their bytes.
    pub(super) fn decode(&self, bytes: &[u8]) -> Vec<f64> {
        let mut rest = bytes;
        let mut values = Vec::with_capacity(self.expected.len());
        for &(dtype, count) in &self.outputs {
            let (output, others) = rest.split_at(dtype.bytes_of(count).min(rest.len()));
            values.extend(decode(dtype, output));
            rest = others;
        }
        values
    }

    /// Size of a symbol.
    pub(super) fn size(&self, name: &str) -> usize {
        self.sizes.iter().find(|(other, _)| *other == name).map_or(0, |(_, size)| *size as usize)
    }

    /// Value of the only parameter; 0 without one.
    pub(super) fn number(&self) -> f64 {
        match self.parameters.first() {
            Some((_, ParameterValue::Number(number))) => *number,
            Some((_, ParameterValue::Bool(true))) => 1.0,
            _ => 0.0,
        }
    }

    fn with(mut self, name: &'static str, value: ParameterValue) -> Self {
        self.parameters.push((name, value));
        self
    }

    fn required(mut self, is_required: bool) -> Self {
        self.is_required = is_required;
        self
    }

    /// Case with NaN and infinity. Any value is accepted at these places: results of infinite
    /// inputs, and quant blocks that hold what is not finite.
    fn not_finite(mut self, any: impl IntoIterator<Item = usize>) -> Self {
        self.has_nan = true;
        for index in any {
            self.expected[index].bound = f64::INFINITY;
        }
        self
    }
}

const NAN: f64 = f64::NAN;
const INFINITY: f64 = f64::INFINITY;

fn rms_norm(dtype: DType) -> Vec<Case> {
    let mut random = Random(1);
    let case = |x: Vec<f64>, weight: Tensor, eps: f32| {
        let x = Tensor::new(dtype, &x);
        let dim = weight.values.len();
        let expected = reference::rms_norm(dtype, &x.values, &weight.values, f64::from(eps));
        let sizes = [("rows", x.values.len() / dim), ("dim", dim)];
        let eps = ParameterValue::Number(f64::from(eps));
        Case::new(&sizes, [x, weight], dtype, expected).with("eps", eps)
    };
    let shapes = [
        (1, 64, 1e-5, true),
        (3, 128, 0.25, true),
        (1, 1, 1e-5, false),
        (2, 37, 1e-6, false),
        (5, 100, 1e-5, false),
        (2, 4096, 1e-5, false),
    ];
    let mut cases = Vec::new();
    for (rows, dim, eps, is_required) in shapes {
        let mut x = random.values(rows * dim, 4.0);
        // The end of a row counts: a sum without it is far from the bound.
        x.chunks_exact_mut(dim).for_each(|row| row[dim - 1] = dim as f64 / 16.0);
        cases.push(case(x, random.tensor(DType::F32, dim, 2.0), eps).required(is_required));
    }
    // Small values, where `eps` decides.
    let small = random.values(2 * 64, 1e-3);
    cases.push(case(small, random.tensor(DType::F32, 64, 2.0), 1e-5));
    let mut x = random.values(4 * 64, 4.0);
    (x[64 + 5], x[2 * 64 + 9]) = (NAN, INFINITY);
    cases.push(case(x, random.tensor(DType::F32, 64, 2.0), 1e-5).not_finite(128..192));
    cases
}

fn swiglu(dtype: DType) -> Vec<Case> {
    let mut random = Random(2);
    let case = |gate: &[f64], up: &[f64]| {
        let (gate, up) = (Tensor::new(dtype, gate), Tensor::new(dtype, up));
        let expected = reference::swiglu(dtype, &gate.values, &up.values);
        Case::new(&[("n", gate.values.len())], [gate, up], dtype, expected)
    };
    let mut cases = Vec::new();
    for (n, is_required) in [(64, true), (128, true), (1, false), (37, false), (1000, false), (11_008, false)]
    {
        let mut gate = random.values(n, 12.0);
        // Arguments whose exponentials are infinite, 0, and 1.
        for (gate, value) in gate.iter_mut().zip([-100.0, 100.0, 0.0, -0.0, -20.0, 20.0]).take(n / 2) {
            *gate = value;
        }
        cases.push(case(&gate, &random.values(n, 4.0)).required(is_required));
    }
    let (mut gate, mut up) = (random.values(64, 4.0), random.values(64, 4.0));
    (gate[5], up[9], gate[20], up[30]) = (NAN, NAN, INFINITY, INFINITY);
    cases.push(case(&gate, &up).not_finite([20, 30]));
    cases
}

fn rope(dtype: DType) -> Vec<Case> {
    let mut random = Random(3);
    let mut case = |x: Tensor, tokens: usize, shape: RopeShape| {
        let RopeShape { heads, dim, pairs, interleaved } = shape;
        let angles = random.values(tokens * pairs, std::f64::consts::PI);
        // Factors beside 1, as scaled tables have them.
        let table = |of: fn(f64) -> f64| {
            let values: Vec<f64> = angles.iter().map(|&angle| 1.25 * of(angle)).collect();
            Tensor::new(DType::F32, &values)
        };
        let (cos, sin) = (table(f64::cos), table(f64::sin));
        let expected = reference::rope(dtype, shape, &x.values, &cos.values, &sin.values);
        let sizes = [("tokens", tokens), ("heads", heads), ("dim", dim), ("pairs", pairs)];
        Case::new(&sizes, [x, cos, sin], dtype, expected)
            .with("interleaved", ParameterValue::Bool(interleaved))
    };
    let shapes: &[(usize, usize, usize, usize, bool)] = if dtype == DType::Q8_0 {
        &[(1, 1, 32, 16, false), (2, 3, 96, 20, false), (4, 8, 128, 64, true)]
    } else {
        &[(1, 1, 2, 1, false), (2, 3, 37, 18, true), (2, 2, 80, 20, false), (4, 8, 128, 64, true)]
    };
    let plain = [(1, 1, 64, 32, false), (3, 2, 64, 32, true)];
    let shapes =
        plain.map(|shape| (shape, true)).into_iter().chain(shapes.iter().map(|&shape| (shape, false)));
    let mut inputs = Random(4);
    let mut cases = Vec::new();
    for ((tokens, heads, dim, pairs, interleaved), is_required) in shapes {
        let x = inputs.tensor(dtype, tokens * heads * dim, 4.0);
        let shape = RopeShape { heads, dim, pairs, interleaved };
        cases.push(case(x, tokens, shape).required(is_required));
    }
    let mut x = inputs.values(4 * 64, 4.0);
    let any = if dtype == DType::Q8_0 { 64..192 } else { 128..192 };
    let x = if dtype == DType::Q8_0 {
        let mut bytes = encode(dtype, &x);
        set_scale(&mut bytes, 34, 2, NAN);
        set_scale(&mut bytes, 34, 4, INFINITY);
        Tensor::of_bytes(dtype, bytes)
    } else {
        (x[64 + 5], x[2 * 64 + 9]) = (NAN, INFINITY);
        Tensor::new(dtype, &x)
    };
    let shape = RopeShape { heads: 1, dim: 64, pairs: 32, interleaved: false };
    cases.push(case(x, 4, shape).not_finite(any));
    cases
}

/// Replaces the scale of a quant block of `bytes` bytes.
fn set_scale(tensor: &mut [u8], bytes: usize, block: usize, scale: f64) {
    tensor[block * bytes..block * bytes + 2].copy_from_slice(&half_bits(scale).to_le_bytes());
}

/// Rows and dimensions of the cases of quant blocks, and those that are required.
const PACKED: [(usize, usize, bool); 5] =
    [(1, 32, true), (3, 64, true), (2, 96, false), (1, 1024, false), (4, 4096, false)];

fn kv_pack(dtype: DType) -> Vec<Case> {
    let mut random = Random(5);
    let case = |x: &[f64], dim: usize| {
        let x = Tensor::new(DType::F32, x);
        let expected = reference::kv_pack(dtype, &x.values);
        Case::new(&[("rows", x.values.len() / dim), ("dim", dim)], [x], dtype, expected)
    };
    let mut cases = Vec::new();
    for (rows, dim, is_required) in PACKED {
        let mut x = random.values(rows * dim, 1.0);
        // Blocks of several magnitudes, and one of zeros.
        for (block, size) in
            x.chunks_exact_mut(BLOCK).zip([4.0, 0.01, 1000.0, 1e-4, 0.0, 30.0].iter().cycle())
        {
            block.iter_mut().for_each(|value| *value *= size);
        }
        cases.push(case(&x, dim).required(is_required));
    }
    let mut x = random.values(128, 4.0);
    (x[32 + 5], x[64 + 9]) = (NAN, INFINITY);
    cases.push(case(&x, 32).not_finite(32..96));
    cases
}

fn kv_unpack(dtype: DType) -> Vec<Case> {
    let mut random = Random(6);
    let block = if dtype == DType::Q8_0 { 34 } else { 18 };
    // Any quants; scales of both signs, 0, the smallest half and large ones.
    let mut packed = |count: usize| {
        let mut bytes: Vec<u8> = (0..count / BLOCK * block).map(|_| random.next() as u8).collect();
        let scales = [0.01, -0.25, 2f64.powi(-24), 0.0, 400.0, 1.0 / 3.0];
        for (index, scale) in (0..count / BLOCK).zip(scales.into_iter().cycle()) {
            set_scale(&mut bytes, block, index, scale);
        }
        bytes
    };
    let case = |bytes: Vec<u8>, dim: usize| {
        let packed = Tensor::of_bytes(dtype, bytes);
        let expected = reference::kv_unpack(&packed.values);
        let sizes = [("rows", packed.values.len() / dim), ("dim", dim)];
        Case::new(&sizes, [packed], DType::F32, expected)
    };
    let mut cases = Vec::new();
    for (rows, dim, is_required) in PACKED {
        cases.push(case(packed(rows * dim), dim).required(is_required));
    }
    let mut bytes = packed(128);
    set_scale(&mut bytes, block, 1, NAN);
    set_scale(&mut bytes, block, 2, INFINITY);
    cases.push(case(bytes, 32).not_finite(64..96));
    cases
}

fn lora_apply(dtype: DType) -> Vec<Case> {
    let mut random = Random(7);
    let mut case = |rows: usize, shape: LoraShape, change: fn(&mut [f64])| {
        let LoraShape { inputs, rank, outputs, scale } = shape;
        let mut x = random.values(rows * inputs, 4.0);
        change(&mut x);
        let x = Tensor::new(DType::F32, &x);
        let a = random.tensor(dtype, rank * inputs, 1.0);
        let b = random.tensor(dtype, outputs * rank, 1.0);
        let base = random.tensor(DType::F32, rows * outputs, 8.0);
        let expected = reference::lora_apply(shape, &x.values, &a.values, &b.values, &base.values);
        let sizes = [("rows", rows), ("inputs", inputs), ("rank", rank), ("outputs", outputs)];
        Case::new(&sizes, [x, a, b, base], DType::F32, expected).with("scale", ParameterValue::Number(scale))
    };
    let shapes = [
        ((1, 64, 8, 64), 1.0, true),
        ((3, 128, 16, 64), -0.375, true),
        ((1, 1, 1, 1), 1.0, false),
        ((2, 37, 3, 29), 2.0, false),
        ((2, 64, 8, 32), 0.0, false),
        ((4, 512, 64, 256), 0.5, false),
    ];
    let mut cases = Vec::new();
    for ((rows, inputs, rank, outputs), scale, is_required) in shapes {
        let shape = LoraShape { inputs, rank, outputs, scale };
        cases.push(case(rows, shape, |_| ()).required(is_required));
    }
    let shape = LoraShape { inputs: 64, rank: 8, outputs: 64, scale: 1.0 };
    let case = case(4, shape, |x| (x[64 + 5], x[2 * 64 + 9]) = (NAN, INFINITY));
    cases.push(case.not_finite(128..192));
    cases
}
