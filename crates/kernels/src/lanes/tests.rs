//! Every operation of every available token against a scalar definition per lane.

use half::{bf16, f16};

use super::{Fused, Groups, LANES, Lanes, ScalarLanes, Vectors, WideLanes};

/// Vectors with signs, ties, denormals, infinities and NaN.
const SAMPLES: [[f32; LANES]; 5] = [
    [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5],
    [1e-40, -1e-45, f32::MIN_POSITIVE, f32::MAX, f32::MIN, f32::INFINITY, f32::NEG_INFINITY, f32::NAN],
    [3.25, -7.125, 1e10, -1e-10, 65504.0, 65520.0, 5.96e-8, 2.98e-8],
    [f32::NAN, 1.0, -2.0, 3.0, f32::NAN, -5.0, 6.0, 7.5],
    [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8],
];

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

fn expect<L: Lanes>(l: L, what: &str, found: L::V, expected: [f32; LANES]) {
    let mut lanes = [0.0; LANES];
    l.store(found, &mut lanes);
    assert!(
        lanes.iter().zip(&expected).all(|(&a, &b)| same(a, b)),
        "{what}: {lanes:?}, expected {expected:?}"
    );
}

/// Checks the operations of `l` on all pairs of samples.
#[inline(always)]
fn check<L: Lanes>(l: L) {
    for x in &SAMPLES {
        let vx = l.load(x);
        expect(l, "load", vx, *x);
        expect(l, "abs", l.abs(vx), x.map(f32::abs));
        expect(l, "round", l.round(vx), x.map(f32::round_ties_even));
        expect(l, "swap_pairs", l.swap_pairs(vx), [x[1], x[0], x[3], x[2], x[5], x[4], x[7], x[6]]);
        expect(l, "swap_twos", l.swap_twos(vx), [x[2], x[3], x[0], x[1], x[6], x[7], x[4], x[5]]);
        expect(l, "swap_fours", l.swap_fours(vx), [x[4], x[5], x[6], x[7], x[0], x[1], x[2], x[3]]);
        let twice = l.load_twice(&[x[0], x[1], x[2], x[3]]);
        expect(l, "load_twice", twice, [x[0], x[0], x[1], x[1], x[2], x[2], x[3], x[3]]);
        let tree = ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
        assert!(same(l.sum(vx), tree), "sum of {x:?}");
        for y in &SAMPLES {
            check_pair(l, x, y);
        }
    }
    let many: [[f32; LANES]; LANES] =
        std::array::from_fn(|i| std::array::from_fn(|j| (i * 11 + j * j) as f32 * 0.37));
    expect(l, "sums", l.sums(many.map(|v| l.load(&v))), many.map(|v| l.sum(l.load(&v))));
    expect(l, "pow2", l.pow2(l.load(&[-126.0, -1.0, 0.0, 1.0, 2.0, 10.0, 126.0, 127.0])), {
        [2f32.powi(-126), 0.5, 1.0, 2.0, 4.0, 1024.0, 2f32.powi(126), 2f32.powi(127)]
    });
    let table = [-1.0, -0.5, f32::NAN, 0.0, -0.0, 0.25, f32::INFINITY, 1.0];
    for codes in [[0, 1, 2, 3, 4, 5, 6, 7], [7, 7, 0, 3, 6, 1, 5, 2]] {
        expect(l, "lookup", l.lookup(l.load(&table), codes), codes.map(|code| table[usize::from(code)]));
    }
    assert!(same(l.max_lane(l.load(&SAMPLES[0])), 2.5));
    expect(l, "load_partial", l.load_partial(&[1.0, 2.0, 3.0]), [1.0, 2.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    let mut three = [9.0; 3];
    l.store_partial(l.splat(4.0), &mut three);
    assert_eq!(three, [4.0; 3]);
}

#[inline(always)]
fn check_pair<L: Lanes>(l: L, x: &[f32; LANES], y: &[f32; LANES]) {
    let (vx, vy) = (l.load(x), l.load(y));
    let each = |f: fn(f32, f32) -> f32| std::array::from_fn(|i| f(x[i], y[i]));
    expect(l, "add", l.add(vx, vy), each(|a, b| a + b));
    expect(l, "sub", l.sub(vx, vy), each(|a, b| a - b));
    expect(l, "mul", l.mul(vx, vy), each(|a, b| a * b));
    expect(l, "div", l.div(vx, vy), each(|a, b| a / b));
    expect(l, "fma", l.fma(vx, vy, l.splat(0.3)), each(|a, b| a.fma(b, 0.3)));
    expect(l, "fnma", l.fnma(vx, vy, l.splat(0.3)), each(|a, b| (-a).fma(b, 0.3)));
    expect(l, "max", l.max(vx, vy), each(|a, b| if a > b { a } else { b }));
    expect(l, "min", l.min(vx, vy), each(|a, b| if a < b { a } else { b }));
    let picked = l.select_lt(vx, vy, l.splat(1.0), l.splat(2.0));
    expect(l, "select_lt", picked, each(|a, b| if a < b { 1.0 } else { 2.0 }));
}

/// Checks that all 2^16 f16 and bf16 values widen alike and round-trip (NaNs made quiet).
#[inline(always)]
fn check_halves<L: Lanes>(l: L) {
    for base in (0..=u16::MAX).step_by(LANES) {
        let halves: [f16; LANES] = std::array::from_fn(|i| f16::from_bits(base + i as u16));
        let wide = l.load_f16(&halves);
        let mut lanes = [0.0; LANES];
        l.store(wide, &mut lanes);
        let mut back = [f16::ZERO; LANES];
        l.store_f16(wide, &mut back);
        for i in 0..LANES {
            let reference = halves[i].to_f32_const();
            assert_eq!(lanes[i].to_bits(), reference.to_bits(), "f16 {:#06x}", halves[i].to_bits());
            let quiet = if reference.is_nan() { 0x0200 } else { 0 };
            assert_eq!(
                back[i].to_bits(),
                halves[i].to_bits() | quiet,
                "f16 {:#06x} there and back",
                halves[i].to_bits()
            );
        }
        let brains: [bf16; LANES] = std::array::from_fn(|i| bf16::from_bits(base + i as u16));
        l.store(l.load_bf16(&brains), &mut lanes);
        let mut same = [bf16::ZERO; LANES];
        l.store_bf16(l.load(&lanes), &mut same);
        for i in 0..LANES {
            assert_eq!(lanes[i].to_bits(), u32::from(brains[i].to_bits()) << 16);
            let quiet = if lanes[i].is_nan() { 0x0040 } else { 0 };
            assert_eq!(same[i].to_bits(), brains[i].to_bits() | quiet);
        }
    }
}

/// Checks rounding to 16 bits around every tie, in the denormal range and at overflow; NaN payloads
/// are truncated.
#[inline(always)]
fn check_rounding<L: Lanes>(l: L) {
    for high in (0..=u16::MAX).step_by(7) {
        let low = [0x0000, 0x0001, 0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x3001];
        let values: [f32; LANES] = low.map(|low: u32| f32::from_bits((u32::from(high) << 16) | low));
        let mut halves = [f16::ZERO; LANES];
        l.store_f16(l.load(&values), &mut halves);
        for (value, half) in values.iter().zip(halves) {
            assert_eq!(half.to_bits(), f16::from_f32_const(*value).to_bits(), "{value:e} to f16");
        }
        let low = [0x0000, 0x0001, 0x7fff, 0x8000, 0x8001, 0xffff, 0x4000, 0xc000];
        let values: [f32; LANES] = low.map(|low: u32| f32::from_bits((u32::from(high) << 16) | low));
        let mut brains = [bf16::ZERO; LANES];
        l.store_bf16(l.load(&values), &mut brains);
        for (value, brain) in values.iter().zip(brains) {
            assert_eq!(brain.to_bits(), bf16::from_f32_const(*value).to_bits(), "{value:e} to bf16");
        }
    }
}

/// Checks that each wide operation equals the operation on its two groups.
#[inline(always)]
fn check_wide<L: WideLanes>(l: L) {
    let x: [[f32; LANES]; 2] =
        std::array::from_fn(|i| std::array::from_fn(|j| (3 * i + j) as f32 * 0.3 - 1.0));
    let y: [[f32; LANES]; 2] =
        std::array::from_fn(|i| std::array::from_fn(|j| 2.0 - (i + 5 * j) as f32 * 0.7));
    let (a, b) = (l.wide().load(&x), l.wide().load(&y));
    let [a0, a1] = l.wide().halves_of(a);
    let [b0, b1] = [l.load(&y[0]), l.load(&y[1])];
    let same = |w: L::W, expected: [L::V; 2]| {
        let (mut wide, mut halves) = ([[0.0; LANES]; 2], [[0.0; LANES]; 2]);
        l.wide().store(w, &mut wide);
        l.store(expected[0], &mut halves[0]);
        l.store(expected[1], &mut halves[1]);
        assert_eq!(wide, halves);
    };
    same(a, [l.load(&x[0]), l.load(&x[1])]);
    same(l.wide().join(b1, a0), [b1, a0]);
    same(l.wide().both(a1), [a1, a1]);
    same(l.wide().splat(0.1), [l.splat(0.1), l.splat(0.1)]);
    same(l.wide().add(a, b), [l.add(a0, b0), l.add(a1, b1)]);
    same(l.wide().sub(a, b), [l.sub(a0, b0), l.sub(a1, b1)]);
    same(l.wide().abs(a), [l.abs(a0), l.abs(a1)]);
    same(l.wide().mul(a, b), [l.mul(a0, b0), l.mul(a1, b1)]);
    same(l.wide().fnma(a, b, a), [l.fnma(a0, b0, a0), l.fnma(a1, b1, a1)]);
    same(l.wide().max(a, b), [l.max(a0, b0), l.max(a1, b1)]);
    same(l.wide().select_lt(a, b, a, b), [l.select_lt(a0, b0, a0, b0), l.select_lt(a1, b1, a1, b1)]);
    same(l.wide().round(a), [l.round(a0), l.round(a1)]);
    same(l.wide().pow2(l.wide().round(b)), [l.pow2(l.round(b0)), l.pow2(l.round(b1))]);
    same(l.wide().fma(a, b, a), [l.fma(a0, b0, a0), l.fma(a1, b1, a1)]);
    let many: [[L::V; 2]; LANES] = std::array::from_fn(|i| {
        let scale = l.splat(0.3 + i as f32);
        [l.mul(a0, scale), l.mul(b1, scale)]
    });
    let sums = l.wide().sums(many.map(|[low, high]| l.wide().join(low, high)));
    same(sums, [l.sums(many.map(|v| v[0])), l.sums(many.map(|v| v[1]))]);
}

/// Checks NaN handling of `max` and `select_lt`.
#[inline(always)]
fn check_wide_nan<L: WideLanes>(l: L) {
    let [special, other] = [SAMPLES[1], SAMPLES[3]].map(|x| l.load(&x));
    let (p, q) = (l.wide().join(special, other), l.wide().join(other, special));
    same_or_nan(l, l.wide().max(p, q), [l.max(special, other), l.max(other, special)]);
    let picked = l.wide().select_lt(p, q, l.wide().splat(1.0), l.wide().splat(2.0));
    let expected = [(special, other), (other, special)];
    same_or_nan(l, picked, expected.map(|(x, y)| l.select_lt(x, y, l.splat(1.0), l.splat(2.0))));
}

#[inline(always)]
fn same_or_nan<L: WideLanes>(l: L, w: L::W, expected: [L::V; 2]) {
    for (found, expected) in l.wide().halves_of(w).into_iter().zip(expected) {
        let mut lanes = [0.0; LANES];
        l.store(expected, &mut lanes);
        expect(l, "half of a wide vector", found, lanes);
    }
}

/// Checks every byte as an i8, as two 4-bit and as four 2-bit values, and wide loads as the loads
/// of their halves.
#[inline(always)]
fn check_narrow<L: WideLanes>(l: L) {
    for base in (0..=u8::MAX).step_by(2 * LANES) {
        let bytes: [u8; 2 * LANES] = std::array::from_fn(|i| base + i as u8);
        let signed = bytes.map(|x| x as i8);
        let (first, second) = super::eights(&bytes);
        expect(l, "load_i8", l.load_i8(super::eights(&signed).0), first.map(|x| f32::from(x as i8)));
        let nibbles = [first, second].map(|x| l.load_nibbles(x));
        expect(l, "low nibbles", nibbles[0][0], first.map(|x| f32::from(x & 15)));
        expect(l, "high nibbles", nibbles[0][1], first.map(|x| f32::from(x >> 4)));
        let pairs = l.load_two_bits(first);
        for (i, pair) in pairs.into_iter().enumerate() {
            expect(l, "two bits", pair, first.map(|x| f32::from(x >> (2 * i) & 3)));
        }
        let wide = l.wide().load_two_bits(first);
        same_or_nan(l, wide[0], [pairs[0], pairs[1]]);
        same_or_nan(l, wide[1], [pairs[2], pairs[3]]);
        let (low, high) = super::eights(&signed);
        same_or_nan(l, l.wide().load_i8(&signed), [l.load_i8(low), l.load_i8(high)]);
        let [low, high] = l.wide().load_nibbles(&bytes);
        same_or_nan(l, low, [nibbles[0][0], nibbles[1][0]]);
        same_or_nan(l, high, [nibbles[0][1], nibbles[1][1]]);
    }
    let halves: [f16; 2 * LANES] = std::array::from_fn(|i| f16::from_bits(4099 * i as u16));
    let (low, high) = super::eights(&halves);
    same_or_nan(l, l.wide().load_f16(&halves), [l.load_f16(low), l.load_f16(high)]);
    let brains = halves.map(|x| bf16::from_bits(x.to_bits()));
    let (low, high) = super::eights(&brains);
    same_or_nan(l, l.wide().load_bf16(&brains), [l.load_bf16(low), l.load_bf16(high)]);
}

#[inline(always)]
fn check_all<L: WideLanes>(l: L) {
    check_narrow(l);
    check(l);
    check_wide(l);
    check_wide_nan(l);
    check_halves(l);
    check_rounding(l);
}

#[test]
fn scalar_lanes() {
    check_all(ScalarLanes);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn avx2_lanes() {
    if crate::Isa::Avx2.is_available() {
        // SAFETY: the features were just detected.
        check_all(unsafe { super::Avx2Lanes::assume_available() });
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn avx512_lanes() {
    if crate::Isa::Avx512.is_available() {
        // SAFETY: the features were just detected.
        check_all(unsafe { super::Avx512Lanes::assume_available() });
    }
}

#[cfg(target_arch = "aarch64")]
#[test]
fn neon_lanes() {
    use super::NeonLanes;
    use super::neon::{DOTPROD, I8MM, PLAIN};
    use crate::Isa;
    if Isa::Neon.is_available() {
        // SAFETY: the features were just detected.
        check_all(unsafe { NeonLanes::<PLAIN>::assume_available() });
    }
    if Isa::NeonDotprod.is_available() {
        // SAFETY: the features were just detected.
        check_all(unsafe { NeonLanes::<DOTPROD>::assume_available() });
    }
    if Isa::NeonI8mm.is_available() {
        // SAFETY: the features were just detected.
        check_all(unsafe { NeonLanes::<I8MM>::assume_available() });
    }
}
