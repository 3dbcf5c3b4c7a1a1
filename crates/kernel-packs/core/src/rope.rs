//! Rotary position embedding: `a cos - b sin` and `b cos + a sin` of pairs of dimensions.

use crate::abi::{Code, Parameters, Request, product, values_mut};
use crate::kv::{BLOCK, Q8_0};
use crate::lanes::{LANES, Lanes};
use crate::value::{Value, load_partial, store_partial};

/// Most values of a quantized head.
const MAX_HEAD: usize = 1024;

/// Sizes and pairing.
struct Shape {
    is_interleaved: bool,
    tokens: usize,
    heads: usize,
    dim: usize,
    pairs: usize,
}

impl Shape {
    fn read(parameters: &mut Parameters<'_>) -> Result<Self, Code> {
        let is_interleaved = parameters.truth()?;
        let [tokens, heads, dim, pairs] =
            [parameters.size()?, parameters.size()?, parameters.size()?, parameters.size()?];
        let shape = Self { is_interleaved, tokens, heads, dim, pairs };
        if pairs.checked_mul(2).is_some_and(|rotary| rotary <= dim) { Ok(shape) } else { Err(Code::Argument) }
    }

    fn values(&self) -> Result<usize, Code> {
        product(&[self.tokens, self.heads, self.dim])
    }

    fn angles(&self) -> Result<usize, Code> {
        product(&[self.tokens, self.pairs])
    }

    /// Rotates a head.
    #[inline(always)]
    fn rotate<T: Value>(&self, x: &[T], cos: &[f32], sin: &[f32], y: &mut [T]) {
        let rotary = 2 * self.pairs;
        y[rotary..].copy_from_slice(&x[rotary..]);
        if self.is_interleaved {
            rotate_pairs(&x[..rotary], cos, sin, &mut y[..rotary]);
        } else {
            rotate_halves(&x[..rotary], cos, sin, &mut y[..rotary]);
        }
    }
}

/// Inputs `x` `[tokens, heads, dim]`, `cos` and `sin` `[tokens, pairs]`; output `[tokens, heads,
/// dim]`; parameter `interleaved`.
pub fn rope<T: Value>(mut request: Request<'_>) -> Result<(), Code> {
    let shape = Shape::read(&mut request.parameters)?;
    let (values, angles) = (shape.values()?, shape.angles()?);
    let x = request.first.take::<T>(values)?;
    let (cos, sin) = (request.others.take::<f32>(angles)?, request.others.take::<f32>(angles)?);
    let y = values_mut::<T>(request.output, values)?;
    if values == 0 {
        return Ok(());
    }
    if shape.pairs == 0 {
        y.copy_from_slice(x);
        return Ok(());
    }
    let row = shape.heads * shape.dim;
    let angles = cos.chunks_exact(shape.pairs).zip(sin.chunks_exact(shape.pairs));
    for ((x, y), (cos, sin)) in x.chunks_exact(row).zip(y.chunks_exact_mut(row)).zip(angles) {
        for (x, y) in x.chunks_exact(shape.dim).zip(y.chunks_exact_mut(shape.dim)) {
            shape.rotate(x, cos, sin, y);
        }
    }
    Ok(())
}

/// As [`rope`], of blocks of `Q8_0`; heads are whole blocks of 1,024 values at most.
pub fn rope_q8_0(mut request: Request<'_>) -> Result<(), Code> {
    let shape = Shape::read(&mut request.parameters)?;
    let (values, angles) = (shape.values()?, shape.angles()?);
    if shape.dim > MAX_HEAD || shape.dim % BLOCK != 0 || shape.pairs == 0 {
        return Err(Code::Unsupported);
    }
    let x = request.first.take::<Q8_0>(values / BLOCK)?;
    let (cos, sin) = (request.others.take::<f32>(angles)?, request.others.take::<f32>(angles)?);
    let y = values_mut::<Q8_0>(request.output, values / BLOCK)?;
    if values == 0 {
        return Ok(());
    }
    let (head, row) = (shape.dim / BLOCK, shape.heads * shape.dim / BLOCK);
    let (mut before, mut after) = ([0.0; MAX_HEAD], [0.0; MAX_HEAD]);
    let (before, after) = (&mut before[..shape.dim], &mut after[..shape.dim]);
    let angles = cos.chunks_exact(shape.pairs).zip(sin.chunks_exact(shape.pairs));
    for ((x, y), (cos, sin)) in x.chunks_exact(row).zip(y.chunks_exact_mut(row)).zip(angles) {
        for (x, y) in x.chunks_exact(head).zip(y.chunks_exact_mut(head)) {
            x.iter().zip(before.as_chunks_mut().0).for_each(|(block, values)| block.unpack(values));
            shape.rotate(before, cos, sin, after);
            y.iter_mut().zip(after.as_chunks().0).for_each(|(block, values)| *block = Q8_0::pack(values));
        }
    }
    Ok(())
}

/// Pairs of an iteration: each asks once whether time is up.
const UNROLLED: usize = 32;

/// Pairs `j` with `j + pairs`.
#[inline(always)]
fn rotate_halves<T: Value>(x: &[T], cos: &[f32], sin: &[f32], y: &mut [T]) {
    let (a, b) = x.split_at(cos.len());
    let (y_a, y_b) = y.split_at_mut(cos.len());
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<UNROLLED>(), b.as_chunks::<UNROLLED>());
    let ((cos, cos_rest), (sin, sin_rest)) = (cos.as_chunks::<UNROLLED>(), sin.as_chunks::<UNROLLED>());
    let (y_a, y_a_rest) = y_a.as_chunks_mut::<UNROLLED>();
    let (y_b, y_b_rest) = y_b.as_chunks_mut::<UNROLLED>();
    for ((((a, b), cos), sin), (y_a, y_b)) in a.iter().zip(b).zip(cos).zip(sin).zip(y_a.iter_mut().zip(y_b)) {
        rotate_each(a, b, cos, sin, y_a, y_b);
    }
    rotate_each(a_rest, b_rest, cos_rest, sin_rest, y_a_rest, y_b_rest);
}

/// Pairs of `a` and `b`, all of one length.
#[inline(always)]
fn rotate_each<T: Value>(a: &[T], b: &[T], cos: &[f32], sin: &[f32], y_a: &mut [T], y_b: &mut [T]) {
    let turn = |a: Lanes, b: Lanes, cos: Lanes, sin: Lanes| {
        (a.times(cos).minus(b.times(sin)), b.times(cos).plus(a.times(sin)))
    };
    let ((a, a_tail), (b, b_tail)) = (a.as_chunks(), b.as_chunks());
    let ((cos, cos_tail), (sin, sin_tail)) = (cos.as_chunks(), sin.as_chunks());
    let ((y_a, y_a_tail), (y_b, y_b_tail)) = (y_a.as_chunks_mut(), y_b.as_chunks_mut());
    for ((((a, b), cos), sin), (y_a, y_b)) in a.iter().zip(b).zip(cos).zip(sin).zip(y_a.iter_mut().zip(y_b)) {
        let (first, second) = turn(T::load(a), T::load(b), f32::load(cos), f32::load(sin));
        T::store(first, y_a);
        T::store(second, y_b);
    }
    if !a_tail.is_empty() {
        let (cos, sin) = (load_partial(cos_tail), load_partial(sin_tail));
        let (first, second) = turn(load_partial(a_tail), load_partial(b_tail), cos, sin);
        store_partial(first, y_a_tail);
        store_partial(second, y_b_tail);
    }
}

/// Pairs `2 j` with `2 j + 1`.
#[inline(always)]
fn rotate_pairs<T: Value>(x: &[T], cos: &[f32], sin: &[f32], y: &mut [T]) {
    let signs = Lanes::of([-1.0, 1.0, -1.0, 1.0]);
    let turn = |x: Lanes, cos: Lanes, sin: Lanes| x.times(cos).plus(x.swap_pairs().times(sin.times(signs)));
    let ((x, x_tail), (y, y_tail)) = (x.as_chunks::<{ 2 * LANES }>(), y.as_chunks_mut::<{ 2 * LANES }>());
    let ((cos, cos_tail), (sin, sin_tail)) = (cos.as_chunks(), sin.as_chunks());
    for (((x, y), cos), sin) in x.iter().zip(y).zip(cos).zip(sin) {
        let (cos, sin) = (f32::load(cos), f32::load(sin));
        let halves = x.as_chunks().0.iter().zip(y.as_chunks_mut().0);
        let angles = [(cos.twice_low(), sin.twice_low()), (cos.twice_high(), sin.twice_high())];
        for ((x, y), (cos, sin)) in halves.zip(angles) {
            T::store(turn(T::load(x), cos, sin), y);
        }
    }
    let (cos, sin) = (load_partial(cos_tail), load_partial(sin_tail));
    let angles = [(cos.twice_low(), sin.twice_low()), (cos.twice_high(), sin.twice_high())];
    for ((x, y), (cos, sin)) in x_tail.chunks(LANES).zip(y_tail.chunks_mut(LANES)).zip(angles) {
        store_partial(turn(load_partial(x), cos, sin), y);
    }
}
