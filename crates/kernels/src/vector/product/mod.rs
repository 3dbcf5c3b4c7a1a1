//! Product quantization (PQ): one byte per subspace of a vector.
//!
//! A vector is split into subspaces, and each part is replaced by the index of its nearest
//! centroid, of at most 256.
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

/// Product quantizer: centroids of each subspace.
///
/// Encodes vectors and computes tables of distances to their codes.
#[derive(Debug, Clone, PartialEq)]
pub struct ProductQuantizer {
    dim: usize,
    subspaces: usize,
    centroids: usize,
    /// Codebooks, `[subspaces, dim / subspaces, COLUMNS]`: a centroid is a column. Columns beyond
    /// `centroids` are NaN, so that an invalid code gives NaN.
    columns: Vec<[f32; COLUMNS]>,
}

impl ProductQuantizer {
    /// Creates a quantizer from centroids, as returned by [`codebooks`](Self::codebooks).
    ///
    /// # Shapes
    /// `codebooks`: `[subspaces, centroids, dim / subspaces]`.
    ///
    /// # Errors
    /// [`Error::ProductShape`] for an invalid shape, [`Error::VectorCount`] for a wrong number of
    /// values, [`Error::VectorValue`] for a non-finite value.
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

    /// Creates a quantizer with a checked shape and all centroids NaN.
    fn empty(dim: usize, subspaces: usize, centroids: usize) -> Result<Self> {
        if subspaces == 0 || dim == 0 || !dim.is_multiple_of(subspaces) || !(1..=COLUMNS).contains(&centroids)
        {
            return Err(Error::ProductShape { dim, subspaces, centroids });
        }
        Ok(Self { dim, subspaces, centroids, columns: vec![[f32::NAN; COLUMNS]; dim] })
    }

    /// Vector length.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Number of subspaces, and of bytes per code.
    pub fn subspaces(&self) -> usize {
        self.subspaces
    }

    /// Number of centroids per subspace.
    pub fn centroids(&self) -> usize {
        self.centroids
    }

    /// All centroids, `[subspaces, centroids, dim / subspaces]`, as taken by
    /// [`from_codebooks`](Self::from_codebooks).
    pub fn codebooks(&self) -> Vec<f32> {
        let mut codebooks = Vec::with_capacity(self.dim * self.centroids);
        for columns in self.columns.chunks_exact(self.part()) {
            for c in 0..self.centroids {
                codebooks.extend(columns.iter().map(|column| column[c]));
            }
        }
        codebooks
    }

    /// Encodes vectors: the nearest centroid per subspace (the first of equals).
    ///
    /// # Shapes
    /// `rows`: `[n, dim]`; `codes`: `[n, subspaces]`.
    ///
    /// # Errors
    /// [`Error::VectorValue`] for a non-finite vector; `codes` is then unspecified.
    ///
    /// # Panics
    /// If the lengths do not match.
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

    /// Decodes codes to vectors; an invalid code gives NaN.
    ///
    /// # Shapes
    /// `codes`: `[n, subspaces]`; `rows`: `[n, dim]`.
    ///
    /// # Panics
    /// If the lengths do not match.
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

    /// Computes the distances of a query's parts to all centroids (asymmetric distance table).
    ///
    /// The distance of the query to any encoded vector is then a sum of
    /// [`subspaces`](Self::subspaces) table entries.
    ///
    /// # Errors
    /// [`Error::CosineTable`] for [`Metric::Cosine`].
    ///
    /// # Panics
    /// If the query has another length than [`dim`](Self::dim).
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

    /// Values per subspace.
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

/// Nearest column (the first of equals) with its squared distance. NaN columns are ignored.
fn nearest(kernels: &Kernels, x: &[f32], columns: &[[f32; COLUMNS]]) -> (u8, f32) {
    let mut distances = [0.0; COLUMNS];
    column_distances(kernels, Metric::SquaredEuclidean, x, columns, &mut distances);
    for distance in &mut distances {
        *distance = -*distance;
    }
    let best = kernels.argmax(&distances).unwrap_or(0);
    (best as u8, -distances[best])
}

/// Distances of `x` to all columns.
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

/// Returns an error if one of the vectors of `dim` values has a NaN or infinite value.
fn check_finite(rows: &[f32], dim: usize) -> Result<()> {
    match rows.iter().position(|x| !x.is_finite()) {
        Some(at) => Err(Error::VectorValue { row: at / dim }),
        None => Ok(()),
    }
}
