//! Low-rank factors of a delta: exact decomposition of what is in factors already, randomized
//! decomposition of a dense matrix (Halko, Martinsson, Tropp, arXiv 0909.4061, algorithms 4.4 and
//! 5.1). All sums are in f64; panels of fixed size make the result independent of threads.

use std::sync::{Mutex, PoisonError};

use faer::{Mat, MatRef};
use ruvllm_kernels::ThreadPool;

use crate::error::{Error, Result};

/// Columns of the sketch beyond the rank that is sought.
const OVERSAMPLE: usize = 10;

/// Power iterations: singular values of trained deltas and of dropped entries fall slowly.
const POWER: usize = 3;

/// Rank of the first sketch where an error is asked for.
const FIRST_RANK: usize = 32;

/// Rows or columns of a dense matrix that are in f64 at a time, per thread.
const PANEL: usize = 128;

/// Rank of the factors of a delta.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Rank {
    /// As high as an exact result needs: the sum of ranks of a linear merge, the smaller dimension
    /// of a dense delta.
    Exact,
    /// At most this one; above 0.
    AtMost(usize),
    /// Lowest whose relative error in the Frobenius norm is at most this one, in 0..1.
    Error(f64),
}

impl Rank {
    pub(super) fn check(self) -> Result<()> {
        match self {
            Self::AtMost(0) => {
                Err(Error::MergeParameter { name: "rank", found: 0.0, expected: "at least 1" })
            }
            Self::Error(found) if !(found > 0.0 && found < 1.0) => {
                Err(Error::MergeParameter { name: "error", found, expected: "above 0, below 1" })
            }
            _ => Ok(()),
        }
    }

    /// Number of leading singular values (descending) to keep, of a matrix of squared norm `total`;
    /// `None` if `values` do not reach the error.
    fn of(self, values: &[f64], total: f64) -> Option<usize> {
        match self {
            Self::Exact => Some(values.len().max(1)),
            Self::AtMost(rank) => Some(rank.min(values.len()).max(1)),
            Self::Error(error) => {
                let mut rest = total;
                for (kept, value) in std::iter::once(&0.0).chain(values).enumerate() {
                    rest -= value * value;
                    if rest <= error * error * total {
                        return Some(kept.max(1));
                    }
                }
                None
            }
        }
    }
}

/// Product `b a` of two factors: `[outputs, rank]`, `[rank, inputs]`.
#[derive(Debug, Clone)]
pub(crate) struct Product {
    pub(crate) b: Mat<f64>,
    pub(crate) a: Mat<f64>,
}

impl Product {
    /// The nearest product of lower rank.
    pub(super) fn truncate(&self, rank: Rank, name: &str) -> Result<Self> {
        let (left, right) = (self.b.qr(), self.a.transpose().qr());
        let core = left.thin_R() * right.thin_R().transpose();
        let svd = core.thin_svd().map_err(|_| diverged(name))?;
        let values: Vec<f64> = svd.S().column_vector().iter().copied().collect();
        let total = values.iter().map(|value| value * value).sum();
        // All values are known, so every error is reached but for rounding.
        let rank = rank.of(&values, total).unwrap_or(values.len());
        Ok(Self {
            b: left.compute_thin_Q() * scaled(svd.U(), &values, rank),
            a: scaled(svd.V(), &values, rank).transpose() * right.compute_thin_Q().transpose(),
        })
    }

    /// Frobenius norm.
    pub(super) fn norm(&self) -> f64 {
        (self.b.qr().thin_R() * self.a.transpose().qr().thin_R().transpose()).norm_l2()
    }

    /// Frobenius norm of the difference to another product.
    pub(super) fn distance(&self, other: &Self) -> f64 {
        let ranks = (self.b.ncols(), self.b.ncols() + other.b.ncols());
        let b = Mat::from_fn(self.b.nrows(), ranks.1, |row, i| {
            if i < ranks.0 { self.b[(row, i)] } else { -other.b[(row, i - ranks.0)] }
        });
        let a = Mat::from_fn(ranks.1, self.a.ncols(), |i, column| {
            if i < ranks.0 { self.a[(i, column)] } else { other.a[(i - ranks.0, column)] }
        });
        Self { b, a }.norm()
    }
}

/// The first columns of a matrix, each times the root of its singular value.
fn scaled(vectors: MatRef<'_, f64>, values: &[f64], rank: usize) -> Mat<f64> {
    Mat::from_fn(vectors.nrows(), rank, |row, i| {
        values.get(i).map_or(0.0, |value| vectors[(row, i)] * value.sqrt())
    })
}

fn diverged(name: &str) -> Error {
    Error::Decomposition { name: name.to_owned() }
}

/// Dense matrix in memory, row-major `[rows, cols]`.
#[derive(Clone, Copy)]
pub(crate) struct Dense<'a> {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) values: &'a [f32],
}

impl Dense<'_> {
    /// A product near the matrix.
    pub(super) fn factor(&self, rank: Rank, name: &str, pool: &ThreadPool) -> Result<Product> {
        let least = self.rows.min(self.cols);
        let total: f64 = self.values.iter().map(|&value| f64::from(value).powi(2)).sum();
        if !total.is_finite() {
            return Err(Error::NotFinite { name: name.to_owned() });
        }
        if total == 0.0 {
            return Ok(Product { b: Mat::zeros(self.rows, 1), a: Mat::zeros(1, self.cols) });
        }
        let mut sketch = OVERSAMPLE
            + match rank {
                Rank::Exact => least,
                Rank::AtMost(rank) => rank.min(least),
                Rank::Error(_) => FIRST_RANK,
            };
        // Beyond half of the dimensions a sketch costs more than the decomposition.
        while sketch * 2 < least {
            let (left, svd) = self.sketched(sketch, pool, name)?;
            let values: Vec<f64> = svd.S().column_vector().iter().copied().collect();
            // The last columns of a sketch are inaccurate.
            if let Some(rank) = rank.of(&values[..sketch - OVERSAMPLE], total) {
                let b = left * scaled(svd.V(), &values, rank);
                return Ok(Product { b, a: scaled(svd.U(), &values, rank).transpose().to_owned() });
            }
            sketch *= 2;
        }
        let whole = Mat::from_fn(self.rows, self.cols, |row, column| self.at(row, column));
        let svd = whole.thin_svd().map_err(|_| diverged(name))?;
        let values: Vec<f64> = svd.S().column_vector().iter().copied().collect();
        let rank = rank.of(&values, total).unwrap_or(values.len());
        Ok(Product {
            b: scaled(svd.U(), &values, rank),
            a: scaled(svd.V(), &values, rank).transpose().to_owned(),
        })
    }

    /// Basis `Q` of the range, and the decomposition of the transpose of `Q^T D`.
    fn sketched(
        &self,
        sketch: usize,
        pool: &ThreadPool,
        name: &str,
    ) -> Result<(Mat<f64>, faer::linalg::solvers::Svd<f64>)> {
        let signs = Mat::from_fn(self.cols, sketch, |row, column| sign(row * sketch + column));
        let mut basis = self.times(signs.as_ref(), pool).qr().compute_thin_Q();
        for _ in 0..POWER {
            let rows = self.transposed_times(basis.as_ref(), pool).qr().compute_thin_Q();
            basis = self.times(rows.as_ref(), pool).qr().compute_thin_Q();
        }
        let projected = self.transposed_times(basis.as_ref(), pool);
        let svd = projected.thin_svd().map_err(|_| diverged(name))?;
        Ok((basis, svd))
    }

    fn at(&self, row: usize, column: usize) -> f64 {
        f64::from(self.values[row * self.cols + column])
    }

    /// `D right`.
    fn times(&self, right: MatRef<'_, f64>, pool: &ThreadPool) -> Mat<f64> {
        panels(self.rows, right.ncols(), pool, &|first, len| {
            Mat::from_fn(len, self.cols, |row, column| self.at(first + row, column)) * right
        })
    }

    /// `D^T right`.
    fn transposed_times(&self, right: MatRef<'_, f64>, pool: &ThreadPool) -> Mat<f64> {
        panels(self.cols, right.ncols(), pool, &|first, len| {
            Mat::from_fn(len, self.rows, |column, row| self.at(row, first + column)) * right
        })
    }

    /// Frobenius norm of the matrix, and of its difference to a product.
    pub(super) fn norm_and_distance(&self, product: &Product, pool: &ThreadPool) -> (f64, f64) {
        let squares = panels(self.rows, 2, pool, &|first, len| {
            let near = product.b.as_ref().subrows(first, len) * product.a.as_ref();
            Mat::from_fn(len, 2, |row, which| {
                let values = (0..self.cols).map(|column| {
                    let value = self.at(first + row, column);
                    if which == 0 { value } else { value - near[(row, column)] }
                });
                values.map(|value| value * value).sum()
            })
        });
        let norm = |which: usize| squares.col(which).iter().sum::<f64>().sqrt();
        (norm(0), norm(1))
    }
}

/// Stacks the panels of `rows` rows that `panel` makes of a first row and a length.
fn panels(
    rows: usize,
    cols: usize,
    pool: &ThreadPool,
    panel: &(dyn Fn(usize, usize) -> Mat<f64> + Sync),
) -> Mat<f64> {
    // Each place is taken by one thread only: the locks are never contended.
    let parts: Vec<Mutex<Option<Mat<f64>>>> = (0..rows.div_ceil(PANEL)).map(|_| Mutex::new(None)).collect();
    pool.for_each_chunk(parts.len(), 1, &|range| {
        for i in range {
            let first = i * PANEL;
            let made = panel(first, PANEL.min(rows - first));
            *parts[i].lock().unwrap_or_else(PoisonError::into_inner) = Some(made);
        }
    });
    let mut out = Mat::zeros(rows, cols);
    for (i, part) in parts.into_iter().enumerate() {
        if let Some(part) = part.into_inner().unwrap_or_else(PoisonError::into_inner) {
            out.as_mut().subrows_mut(i * PANEL, part.nrows()).copy_from(part);
        }
    }
    out
}

/// Random signs of a sketch, the same for each matrix.
fn sign(index: usize) -> f64 {
    if super::mask::mix(index as u64) >> 63 == 0 { 1.0 } else { -1.0 }
}
