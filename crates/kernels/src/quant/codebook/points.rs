//! Best grid point for a group of values at a given scale.

use super::neighbours::Neighbours;

/// Grid point with its error, apart from the part that no point changes.
#[derive(Clone, Copy)]
pub(in crate::quant) struct Found {
    pub(in crate::quant) index: u16,
    pub(in crate::quant) error: f32,
}

/// Best point with all signs right, and with one sign wrong.
pub(in crate::quant) struct Signed {
    pub(in crate::quant) right: Found,
    pub(in crate::quant) flipped: Found,
    /// Value whose sign is wrong in `flipped`.
    pub(in crate::quant) value: u8,
}

/// Weighted squared error of a point `g` at `scale`, less that of zeros: `sum(g * (u * g - v))`.
struct Terms<const DIM: usize> {
    u: [f32; DIM],
    v: [f32; DIM],
}

impl<const DIM: usize> Terms<DIM> {
    #[inline(always)]
    fn new(x: &[f32; DIM], w: &[f32; DIM], scale: f32) -> Self {
        let (mut u, mut v) = ([0.0; DIM], [0.0; DIM]);
        for j in 0..DIM {
            u[j] = scale * scale * w[j];
            v[j] = 2.0 * scale * w[j] * x[j];
        }
        Self { u, v }
    }

    #[inline(always)]
    fn error(&self, point: &[f32; DIM]) -> f32 {
        let mut terms = [0.0; DIM];
        for j in 0..DIM {
            terms[j] = point[j] * (self.u[j] * point[j] - self.v[j]);
        }
        sum(terms)
    }

    /// Value for which the wrong sign costs least, and the cost.
    #[inline(always)]
    fn flip(&self, point: &[f32; DIM]) -> (u8, f32) {
        let mut least = (0, f32::INFINITY);
        for j in 0..DIM {
            let cost = 2.0 * self.v[j] * point[j];
            if cost < least.1 {
                least = (j as u8, cost);
            }
        }
        least
    }
}

/// Sum by halves.
#[inline(always)]
fn sum<const DIM: usize>(mut terms: [f32; DIM]) -> f32 {
    let mut n = DIM;
    while n > 1 {
        n /= 2;
        for j in 0..n {
            terms[j] += terms[j + n];
        }
    }
    terms[0]
}

/// Values in units of the scale; zeros if that has no finite inverse.
#[inline(always)]
fn scaled<const DIM: usize>(x: &[f32; DIM], scale: f32) -> [f32; DIM] {
    let inverse = 1.0 / scale;
    let inverse = if inverse.is_finite() { inverse } else { 0.0 };
    x.map(|x| x * inverse)
}

impl<const DIM: usize, const LEVELS: usize> Neighbours<DIM, LEVELS> {
    /// Best point for `x` with weights `w`.
    #[inline(always)]
    pub(in crate::quant) fn best(&self, x: &[f32; DIM], w: &[f32; DIM], scale: f32) -> Found {
        let terms = Terms::new(x, w, scale);
        let mut best = Found { index: 0, error: f32::INFINITY };
        for &index in self.near(&scaled(x, scale)) {
            let error = terms.error(&self.points[usize::from(index)]);
            if error < best.error {
                best = Found { index, error };
            }
        }
        best
    }

    /// Best points for magnitudes `x`; which value has the wrong sign is part of the choice.
    #[inline(always)]
    pub(in crate::quant) fn best_signed(&self, x: &[f32; DIM], w: &[f32; DIM], scale: f32) -> Signed {
        let terms = Terms::new(x, w, scale);
        let none = Found { index: 0, error: f32::INFINITY };
        let mut best = Signed { right: none, flipped: none, value: 0 };
        for &index in self.near(&scaled(x, scale)) {
            let point = &self.points[usize::from(index)];
            let error = terms.error(point);
            if error < best.right.error {
                best.right = Found { index, error };
            }
            let (value, cost) = terms.flip(point);
            if error + cost < best.flipped.error {
                best.flipped = Found { index, error: error + cost };
                best.value = value;
            }
        }
        best
    }
}
