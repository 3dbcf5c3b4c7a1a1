//! Product quantization: a vector is cut into parts, and each part is replaced by the number of the
//! nearest of at most 256 centroids, so that a vector takes one byte per part.
//!
//! # Source
//! Jégou, Douze, Schmid, "Product Quantization for Nearest Neighbor Search", IEEE TPAMI
//! 33(1), 2011.

mod table;
mod train;

pub use table::AdcTable;
pub use train::ProductTraining;

use super::Metric;
use super::distance::COLUMNS;
use crate::{Error, Kernels, Result};

/// The centroids of each part of a vector; encodes vectors and makes tables of distances to their
/// codes.
#[derive(Debug, Clone, PartialEq)]
pub struct ProductQuantizer {
    dim: usize,
    subspaces: usize,
    centroids: usize,
    /// `[subspaces, dim / subspaces, COLUMNS]`: a centroid is a column. Columns beyond `centroids`
    /// are NaN, so that a code that does not exist cannot look like a number.
    columns: Vec<[f32; COLUMNS]>,
}

impl ProductQuantizer {
    /// A quantizer of known centroids, such as [`codebooks`](Self::codebooks) gave.
    ///
    /// # Shapes
    /// `codebooks`: `[subspaces, centroids, dim / subspaces]`.
    ///
    /// # Errors
    /// [`Error::ProductShape`]; [`Error::VectorCount`] for another number of values,
    /// [`Error::VectorValue`] for one that is not finite.
    pub fn from_codebooks(codebooks: &[f32], dim: usize, subspaces: usize, centroids: usize) -> Result<Self> {
        let mut quantizer = Self::empty(dim, subspaces, centroids)?;
        if codebooks.len() != dim * centroids {
            return Err(Error::VectorCount { found: codebooks.len(), dim: dim * centroids });
        }
        check_finite(codebooks, dim / subspaces)?;
        let part = quantizer.part();
        for (i, centroid) in codebooks.chunks_exact(part).enumerate() {
            quantizer.set_centroid(i / centroids, i % centroids, centroid);
        }
        Ok(quantizer)
    }

    /// A quantizer of checked shape, all of whose centroids are NaN.
    fn empty(dim: usize, subspaces: usize, centroids: usize) -> Result<Self> {
        if subspaces == 0 || dim == 0 || !dim.is_multiple_of(subspaces) || !(1..=COLUMNS).contains(&centroids)
        {
            return Err(Error::ProductShape { dim, subspaces, centroids });
        }
        Ok(Self { dim, subspaces, centroids, columns: vec![[f32::NAN; COLUMNS]; dim] })
    }

    /// Length of the vectors.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Number of parts, and of bytes per code.
    pub fn subspaces(&self) -> usize {
        self.subspaces
    }

    /// Number of centroids per part.
    pub fn centroids(&self) -> usize {
        self.centroids
    }

    /// All centroids, `[subspaces, centroids, dim / subspaces]`: what
    /// [`from_codebooks`](Self::from_codebooks) takes.
    pub fn codebooks(&self) -> Vec<f32> {
        let mut codebooks = Vec::with_capacity(self.dim * self.centroids);
        for columns in self.columns.chunks_exact(self.part()) {
            for c in 0..self.centroids {
                codebooks.extend(columns.iter().map(|column| column[c]));
            }
        }
        codebooks
    }

    /// The codes of vectors: of each part the nearest centroid (the first of equally near ones).
    ///
    /// # Shapes
    /// `rows`: `[n, dim]`; `codes`: `[n, subspaces]`.
    ///
    /// # Errors
    /// [`Error::VectorValue`] for a vector that is not finite; `codes` is then unspecified.
    ///
    /// # Panics
    /// If the lengths do not fit each other.
    pub fn encode(&self, kernels: &Kernels, rows: &[f32], codes: &mut [u8]) -> Result<()> {
        assert!(rows.len().is_multiple_of(self.dim), "encode: not whole vectors");
        assert_eq!(codes.len(), rows.len() / self.dim * self.subspaces, "encode: length of the codes");
        check_finite(rows, self.dim)?;
        let part = self.part();
        let parts = rows.chunks_exact(part).zip(self.columns.chunks_exact(part).cycle());
        for ((x, columns), code) in parts.zip(codes) {
            *code = nearest(kernels, x, columns).0;
        }
        Ok(())
    }

    /// The vectors that codes stand for. A code without a centroid gives NaN.
    ///
    /// # Shapes
    /// `codes`: `[n, subspaces]`; `rows`: `[n, dim]`.
    ///
    /// # Panics
    /// If the lengths do not fit each other.
    pub fn decode(&self, codes: &[u8], rows: &mut [f32]) {
        assert!(codes.len().is_multiple_of(self.subspaces), "decode: not whole codes");
        assert_eq!(rows.len(), codes.len() / self.subspaces * self.dim, "decode: length of the vectors");
        let part = self.part();
        let parts = codes.iter().zip(self.columns.chunks_exact(part).cycle());
        for ((&code, columns), x) in parts.zip(rows.chunks_exact_mut(part)) {
            for (column, x) in columns.iter().zip(x) {
                *x = column[usize::from(code)];
            }
        }
    }

    /// The distances of a query's parts from all centroids: with it, the distance of the query from
    /// any coded vector is a sum of [`subspaces`](Self::subspaces) numbers.
    ///
    /// # Errors
    /// [`Error::CosineTable`] for [`Metric::Cosine`].
    ///
    /// # Panics
    /// If the query has another length than the vectors.
    pub fn table(&self, kernels: &Kernels, metric: Metric, query: &[f32]) -> Result<AdcTable> {
        assert_eq!(query.len(), self.dim, "table: length of the query");
        if metric == Metric::Cosine {
            return Err(Error::CosineTable);
        }
        let mut values = vec![[0.0; COLUMNS]; self.subspaces];
        let part = self.part();
        let parts = query.chunks_exact(part).zip(self.columns.chunks_exact(part));
        for ((x, columns), values) in parts.zip(&mut values) {
            column_distances(kernels, metric, x, columns, values);
        }
        Ok(AdcTable { values })
    }

    /// Values per part.
    fn part(&self) -> usize {
        self.dim / self.subspaces
    }

    fn set_centroid(&mut self, subspace: usize, centroid: usize, values: &[f32]) {
        let start = subspace * self.part();
        for (column, &value) in self.columns[start..].iter_mut().zip(values) {
            column[centroid] = value;
        }
    }
}

/// The column that is nearest (of equally near ones the first), with its squared distance. Columns
/// of NaN are not near.
fn nearest(kernels: &Kernels, x: &[f32], columns: &[[f32; COLUMNS]]) -> (u8, f32) {
    let mut distances = [0.0; COLUMNS];
    column_distances(kernels, Metric::SquaredEuclidean, x, columns, &mut distances);
    for distance in &mut distances {
        *distance = -*distance;
    }
    let best = kernels.argmax(&distances).unwrap_or(0);
    (best as u8, -distances[best])
}

/// The distances of `x` from all columns.
fn column_distances(
    kernels: &Kernels,
    metric: Metric,
    x: &[f32],
    columns: &[[f32; COLUMNS]],
    out: &mut [f32; COLUMNS],
) {
    debug_assert_eq!(x.len(), columns.len());
    // SAFETY: `kernels` exists only where the slot's instruction set is present.
    unsafe { (kernels.slots.column_distances)(metric, x, columns, out) }
}

/// Refuses vectors of `dim` values of which one is NaN or infinite.
fn check_finite(rows: &[f32], dim: usize) -> Result<()> {
    match rows.iter().position(|x| !x.is_finite()) {
        Some(at) => Err(Error::VectorValue { row: at / dim }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
