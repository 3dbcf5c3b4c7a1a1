//! Golden vectors of gradients (`kernel_backward`): those of the forward function without NaN, with
//! gradients of the outputs, and the gradients of all inputs as plain loops in `f64` (ADR-0103).

use super::cases::{Case, Random, cases};
use super::number::decode;
use super::reference::{Expected, ROUNDING};
use crate::manifest::{Category, DType};
use crate::sandbox::Direction;
use crate::signature::Callable;

/// Values of the inputs, and gradients of the outputs.
type Values = [Vec<f64>];

/// Cases of a category; none for categories and types without gradients (quant blocks).
pub(super) fn gradients(callable: Callable) -> Vec<Case> {
    let Some(inputs) = input_types(callable) else { return Vec::new() };
    let mut random = Random(8);
    let plain = cases(callable).into_iter().filter(|case| !case.has_nan);
    plain.map(|case| gradient_of(callable.category, &inputs, case, &mut random)).collect()
}

/// Types of the inputs of a category that has gradients.
fn input_types(Callable { category, dtype }: Callable) -> Option<Vec<DType>> {
    if !matches!(dtype, DType::F32 | DType::F16) {
        return None;
    }
    match category {
        Category::RmsNorm => Some(vec![dtype, DType::F32]),
        Category::Swiglu => Some(vec![dtype; 2]),
        Category::Rope => Some(vec![dtype, DType::F32, DType::F32]),
        Category::LoraApply => Some(vec![DType::F32, dtype, dtype, DType::F32]),
        _ => None,
    }
}

/// Names of the inputs.
fn names(category: Category) -> &'static [&'static str] {
    match category {
        Category::RmsNorm => &["x", "weight"],
        Category::Swiglu => &["gate", "up"],
        Category::Rope => &["x", "cos", "sin"],
        _ => &["x", "a", "b", "base"],
    }
}

fn gradient_of(category: Category, inputs: &[DType], case: Case, random: &mut Random) -> Case {
    let (dtype, count) = case.outputs[0];
    let of_output = random.tensor(dtype, count, 1.0);
    let values: Vec<Vec<f64>> =
        inputs.iter().zip(&case.inputs).map(|(dtype, bytes)| decode(*dtype, bytes)).collect();
    let gradients = match category {
        Category::RmsNorm => rms_norm(inputs, &case, &values, &of_output.values),
        Category::Swiglu => swiglu(inputs, &values, &of_output.values),
        Category::Rope => rope(inputs, &case, &values, &of_output.values),
        _ => lora_apply(inputs, &case, &values, &of_output.values),
    };
    Case {
        direction: Direction::Backward,
        names: names(category),
        outputs: inputs.iter().copied().zip(gradients.iter().map(Vec::len)).collect(),
        expected: gradients.concat(),
        inputs: std::iter::once(of_output.bytes).chain(case.inputs).collect(),
        ..case
    }
}

/// Sum of products, and of their magnitudes.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    value: f64,
    size: f64,
}

impl Sum {
    fn add(&mut self, product: f64) {
        self.value += product;
        self.size += product.abs();
    }

    /// The sum as an output, within so many roundings of the magnitudes.
    fn expected(self, dtype: DType, roundings: usize) -> Expected {
        Expected::new(dtype, self.value, ROUNDING * roundings as f64 * self.size)
    }
}

/// With `s = 1 / sqrt(mean(x^2) + eps)` of a row: `dx = s w g - x s^3 / dim * sum(g w x)`, and `dw`
/// the sum of `g x s` over rows.
///
/// Bound: `s` as in the forward function, three times in `s^3`, and a sum of `dim` products.
fn rms_norm(types: &[DType], case: &Case, values: &Values, g: &[f64]) -> Vec<Vec<Expected>> {
    let (x, weight) = (&values[0], &values[1]);
    let dim = weight.len();
    let mut dx = Vec::with_capacity(x.len());
    let mut dw = vec![Sum::default(); dim];
    for (x, g) in x.chunks_exact(dim).zip(g.chunks_exact(dim)) {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / dim as f64;
        let scale = 1.0 / (mean + case.number()).sqrt();
        let mut dot = Sum::default();
        for (index, (x, g)) in x.iter().zip(g).enumerate() {
            dot.add(g * weight[index] * x);
            dw[index].add(g * x * scale);
        }
        let shared = scale.powi(3) / dim as f64;
        for (index, (x, g)) in x.iter().zip(g).enumerate() {
            let own = scale * weight[index] * g;
            let size = own.abs() + 3.0 * x.abs() * shared * dot.size;
            let error = ROUNDING * (dim + 16) as f64 * size;
            dx.push(Expected::new(types[0], own - x * shared * dot.value, error));
        }
    }
    let roundings = case.size("rows") + dim / 2 + 12;
    vec![dx, dw.into_iter().map(|sum| sum.expected(types[1], roundings)).collect()]
}

/// With `s = 1 / (1 + exp(-gate))`: `dgate = g up s (1 + gate (1 - s))` and `dup = g gate s`.
///
/// Bound: `|gate|` roundings of the exponential, as in the forward function. `1 - s` has an error
/// of a rounding of 1, so `1 + |gate|` is the magnitude of the factor.
fn swiglu(types: &[DType], values: &Values, g: &[f64]) -> Vec<Vec<Expected>> {
    let tiny = 2f64.powi(-100);
    let gradients = values[0].iter().zip(&values[1]).zip(g).map(|((gate, up), g)| {
        let s = 1.0 / (1.0 + (-gate).exp());
        let relative = ROUNDING * (24.0 + 4.0 * gate.abs());
        let size = (g * up).abs() * (1.0 + gate.abs());
        let of_gate = g * up * s * (1.0 + gate * (1.0 - s));
        let of_gate = Expected::new(types[0], of_gate, (relative * s + tiny) * size);
        let of_up = g * gate * s;
        (of_gate, Expected::new(types[1], of_up, relative * of_up.abs() + tiny * g.abs()))
    });
    let (of_gate, of_up) = gradients.unzip();
    vec![of_gate, of_up]
}

/// Of the pair `(a, b)` with gradients `(p, q)`: `(p cos + q sin, q cos - p sin)`, the transposed
/// rotation; copies for other dimensions. The tables get sums over heads: `p a + q b` for the
/// cosine, `q a - p b` for the sine.
///
/// Bound: as the forward function; a sum of `2 * heads` products for the tables.
fn rope(types: &[DType], case: &Case, values: &Values, g: &[f64]) -> Vec<Vec<Expected>> {
    let (heads, dim, pairs) = (case.size("heads"), case.size("dim"), case.size("pairs"));
    let (x, cos, sin) = (&values[0], &values[1], &values[2]);
    let mut dx: Vec<Expected> = g.iter().map(|&g| Expected::exact(g)).collect();
    let mut tables = [vec![Sum::default(); cos.len()], vec![Sum::default(); sin.len()]];
    for head in 0..x.len() / dim {
        for pair in 0..pairs {
            let (j, k) = if case.number() == 0.0 { (pair, pair + pairs) } else { (2 * pair, 2 * pair + 1) };
            let (j, k, at) = (head * dim + j, head * dim + k, head / heads * pairs + pair);
            let (a, b, p, q) = (x[j], x[k], g[j], g[k]);
            for (to, first, second) in [(j, p * cos[at], q * sin[at]), (k, q * cos[at], -p * sin[at])] {
                let error = 4.0 * ROUNDING * (first.abs() + second.abs());
                dx[to] = Expected::new(types[0], first + second, error);
            }
            for (table, first, second) in [(0, p * a, q * b), (1, q * a, -p * b)] {
                tables[table][at].add(first);
                tables[table][at].add(second);
            }
        }
    }
    let of_table =
        |sums: Vec<Sum>| sums.into_iter().map(|sum| sum.expected(DType::F32, 2 * heads + 4)).collect();
    let [cos, sin] = tables.map(of_table);
    vec![dx, cos, sin]
}

/// With `h = x A^T` and `e = scale * g B`: `dx = e A`, `dA = e^T x`, `dB = scale * g^T h` and
/// `dbase = g`.
///
/// Bound: roundings of both sums of each, in any order, of the sum of all magnitudes.
fn lora_apply(types: &[DType], case: &Case, values: &Values, g: &[f64]) -> Vec<Vec<Expected>> {
    let (rows, inputs) = (case.size("rows"), case.size("inputs"));
    let (rank, outputs) = (case.size("rank"), case.size("outputs"));
    let (x, a, b, scale) = (&values[0], &values[1], &values[2], case.number());
    let [mut dx, mut da, mut db] = [x, a, b].map(|tensor| vec![Sum::default(); tensor.len()]);
    for row in 0..rows {
        let (x, g) = (&x[row * inputs..][..inputs], &g[row * outputs..][..outputs]);
        for r in 0..rank {
            let (mut inner, mut outer) = (Sum::default(), Sum::default());
            for (x, a) in x.iter().zip(&a[r * inputs..][..inputs]) {
                inner.add(x * a);
            }
            for (output, g) in g.iter().enumerate() {
                outer.add(scale * g * b[output * rank + r]);
            }
            for (index, x) in x.iter().enumerate() {
                dx[row * inputs + index].add_scaled(outer, a[r * inputs + index]);
                da[r * inputs + index].add_scaled(outer, *x);
            }
            for (output, g) in g.iter().enumerate() {
                db[output * rank + r].add_scaled(inner, scale * g);
            }
        }
    }
    let all = |sums: Vec<Sum>, dtype: DType, roundings: usize| {
        sums.into_iter().map(|sum| sum.expected(dtype, roundings + 6)).collect()
    };
    vec![
        all(dx, types[0], outputs + rank),
        all(da, types[1], outputs + rows),
        all(db, types[2], inputs + rows),
        g.iter().map(|&g| Expected::exact(g)).collect(),
    ]
}

impl Sum {
    /// Adds a sum times a factor.
    fn add_scaled(&mut self, sum: Self, factor: f64) {
        self.value += sum.value * factor;
        self.size += sum.size * factor.abs();
    }
}
