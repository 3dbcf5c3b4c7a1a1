//! Inverse of a symmetric positive definite matrix, kept by rank-one updates.

use super::vector::dot_f64;

/// Lower triangle of a symmetric inverse, row by row: row `i` has `i + 1` values.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Inverse {
    dim: usize,
    packed: Vec<f64>,
}

impl Inverse {
    /// Values of the triangle.
    pub(super) fn len(dim: usize) -> usize {
        dim * (dim + 1) / 2
    }

    /// Inverse of `diagonal` times the identity.
    pub(super) fn of_identity(dim: usize, diagonal: f64) -> Self {
        let mut packed = vec![0.0; Self::len(dim)];
        (0..dim).for_each(|i| packed[Self::len(i) + i] = 1.0 / diagonal);
        Self { dim, packed }
    }

    /// Absent if the length is wrong, a value is not finite or a diagonal value not positive.
    pub(super) fn from_packed(dim: usize, packed: Vec<f64>) -> Option<Self> {
        let is_valid = packed.len() == Self::len(dim)
            && packed.iter().all(|v| v.is_finite())
            && (0..dim).all(|i| packed[Self::len(i) + i] > 0.0);
        is_valid.then_some(Self { dim, packed })
    }

    pub(super) fn packed(&self) -> &[f64] {
        &self.packed
    }

    fn row(&self, i: usize) -> &[f64] {
        &self.packed[Self::len(i)..Self::len(i + 1)]
    }

    /// `x' P x`.
    pub(super) fn quadratic(&self, x: &[f64]) -> f64 {
        let rows = (0..self.dim).map(|i| {
            let row = self.row(i);
            x[i] * (2.0 * dot_f64(&row[..i], &x[..i]) + row[i] * x[i])
        });
        rows.sum::<f64>().max(0.0)
    }

    /// `P x`.
    pub(super) fn product(&self, x: &[f64]) -> Vec<f64> {
        let mut product = vec![0.0; self.dim];
        for (i, &factor) in x.iter().enumerate().take(self.dim) {
            let row = self.row(i);
            for (sum, value) in product[..i].iter_mut().zip(row) {
                *sum += value * factor;
            }
            product[i] += dot_f64(row, &x[..=i]);
        }
        product
    }

    /// Multiplies the inverse.
    pub(super) fn scale(&mut self, factor: f64) {
        self.packed.iter_mut().for_each(|v| *v *= factor);
    }

    /// Adds `x x'` to the matrix (Sherman and Morrison 1950).
    pub(super) fn add(&mut self, x: &[f64]) {
        let product = self.product(x);
        let denominator = 1.0 + dot_f64(&product, x).max(0.0);
        self.subtract(&product, 1.0 / denominator);
    }

    /// Adds `weight` to diagonal value `k` of the matrix.
    pub(super) fn add_diagonal(&mut self, k: usize, weight: f64) {
        let column: Vec<f64> = (0..self.dim).map(|i| self.row(i.max(k))[i.min(k)]).collect();
        let denominator = 1.0 + weight * column[k];
        self.subtract(&column, weight / denominator);
    }

    /// `P -= factor * v v'`.
    fn subtract(&mut self, v: &[f64], factor: f64) {
        for i in 0..self.dim {
            let weight = factor * v[i];
            let row = &mut self.packed[Self::len(i)..Self::len(i + 1)];
            row.iter_mut().zip(v).for_each(|(value, other)| *value -= weight * other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Largest deviation of `matrix * inverse` from the identity.
    fn deviation(matrix: &[Vec<f64>], inverse: &Inverse) -> f64 {
        let dim = matrix.len();
        let mut worst = 0.0_f64;
        for (i, row) in matrix.iter().enumerate() {
            for (k, value) in inverse.product(row).iter().enumerate() {
                worst = worst.max((value - f64::from(u8::from(i == k))).abs());
            }
            assert_eq!(row.len(), dim);
        }
        worst
    }

    #[test]
    fn updates_keep_the_inverse() {
        let (dim, mut random) = (12, Random::new(5));
        let mut inverse = Inverse::of_identity(dim, 0.5);
        let mut matrix = vec![vec![0.0; dim]; dim];
        (0..dim).for_each(|i| matrix[i][i] = 0.5);
        for step in 0..3000 {
            matrix.iter_mut().flatten().for_each(|v| *v *= 0.99);
            inverse.scale(1.0 / 0.99);
            let x: Vec<f64> = (0..dim).map(|_| random.normal()).collect();
            for i in 0..dim {
                (0..dim).for_each(|j| matrix[i][j] += x[i] * x[j]);
            }
            inverse.add(&x);
            matrix[step % dim][step % dim] += 0.1;
            inverse.add_diagonal(step % dim, 0.1);
        }
        assert!(deviation(&matrix, &inverse) < 1e-9, "{}", deviation(&matrix, &inverse));
        let x: Vec<f64> = (0..dim).map(|_| random.normal()).collect();
        let expected = dot_f64(&x, &inverse.product(&x));
        assert!((inverse.quadratic(&x) / expected - 1.0).abs() < 1e-12);
    }
}
