//! Unit vectors by slot: INT8 codes that the graph compares, f16 values that order the results.

use half::f16;
use ruvllm_kernels::Kernels;
use ruvllm_kernels::vector::{Metric, VectorRows};

use super::Precision;

/// Vectors in contiguous rows; the index of a row is its slot.
pub(super) struct Vectors {
    kernels: Kernels,
    dim: usize,
    precision: Precision,
    /// `[slots, dim]` with [`Precision::F32`], else empty.
    values: Vec<f32>,
    /// `[slots, dim]` with [`Precision::Int8`], else empty.
    halves: Vec<f16>,
    /// `[slots, dim]` with [`Precision::Int8`], else empty.
    codes: Vec<i8>,
    /// `[slots]` with [`Precision::Int8`], else empty.
    scales: Vec<f32>,
}

/// Query in the formats of the stored vectors.
pub(super) struct Query {
    values: Vec<f32>,
    halves: Vec<f16>,
    codes: Vec<i8>,
    scale: f32,
}

impl Vectors {
    pub(super) fn new(kernels: Kernels, dim: usize, precision: Precision) -> Self {
        Self {
            kernels,
            dim,
            precision,
            values: Vec::new(),
            halves: Vec::new(),
            codes: Vec::new(),
            scales: Vec::new(),
        }
    }

    pub(super) fn dim(&self) -> usize {
        self.dim
    }

    /// Bytes of all rows.
    pub(super) fn bytes(&self) -> usize {
        4 * self.values.capacity()
            + 2 * self.halves.capacity()
            + self.codes.capacity()
            + 4 * self.scales.capacity()
    }

    /// Converts a unit vector, `[dim]`.
    pub(super) fn query(&self, vector: Vec<f32>) -> Query {
        let mut query = Query { values: vector, halves: Vec::new(), codes: Vec::new(), scale: 0.0 };
        if self.precision == Precision::Int8 {
            query.halves = query.values.iter().map(|&value| f16::from_f32(value)).collect();
            query.codes = vec![0; self.dim];
            query.scale = self.kernels.quantize_int8(&query.values, &mut query.codes);
        }
        query
    }

    /// A stored vector in the format that the graph compares.
    pub(super) fn stored(&self, slot: u32) -> Query {
        let mut query = Query { values: Vec::new(), halves: Vec::new(), codes: Vec::new(), scale: 0.0 };
        match self.precision {
            Precision::F32 => query.values = self.row(&self.values, slot).to_vec(),
            Precision::Int8 => {
                query.codes = self.row(&self.codes, slot).to_vec();
                query.scale = self.scales[slot as usize];
            }
        }
        query
    }

    /// Appends a vector; its slot is the former number of rows.
    pub(super) fn push(&mut self, vector: &Query) {
        match self.precision {
            Precision::F32 => self.values.extend_from_slice(&vector.values),
            Precision::Int8 => {
                self.halves.extend_from_slice(&vector.halves);
                self.codes.extend_from_slice(&vector.codes);
                self.scales.push(vector.scale);
            }
        }
    }

    /// Keeps the slots of `kept`, in its order, which is ascending.
    pub(super) fn retain(&mut self, kept: &[u32]) {
        let dim = self.dim;
        fn rows<T: Copy>(rows: &mut Vec<T>, dim: usize, kept: &[u32]) {
            if rows.is_empty() {
                return;
            }
            for (new, &old) in kept.iter().enumerate() {
                rows.copy_within(old as usize * dim..(old as usize + 1) * dim, new * dim);
            }
            rows.truncate(kept.len() * dim);
        }
        rows(&mut self.values, dim, kept);
        rows(&mut self.halves, dim, kept);
        rows(&mut self.codes, dim, kept);
        rows(&mut self.scales, 1, kept);
    }

    /// Distance in the graph's format, `-dot`; smaller is nearer.
    #[inline]
    pub(super) fn distance_to(&self, query: &Query, slot: u32) -> f32 {
        match self.precision {
            Precision::F32 => self.kernels.distance(
                Metric::Dot,
                VectorRows::F32(&query.values),
                VectorRows::F32(self.row(&self.values, slot)),
            ),
            Precision::Int8 => self.kernels.distance(
                Metric::Dot,
                VectorRows::Int8 { values: &query.codes, scales: &[query.scale] },
                self.int8(slot),
            ),
        }
    }

    /// Distance of two stored vectors in the graph's format.
    #[inline]
    pub(super) fn distance_between(&self, a: u32, b: u32) -> f32 {
        match self.precision {
            Precision::F32 => self.kernels.distance(
                Metric::Dot,
                VectorRows::F32(self.row(&self.values, a)),
                VectorRows::F32(self.row(&self.values, b)),
            ),
            Precision::Int8 => self.kernels.distance(Metric::Dot, self.int8(a), self.int8(b)),
        }
    }

    /// Cosine similarity of the query and a slot in the finest stored format.
    pub(super) fn similarity(&self, query: &Query, slot: u32) -> f32 {
        let dot = match self.precision {
            Precision::F32 => -self.distance_to(query, slot),
            Precision::Int8 => -self.kernels.distance(
                Metric::Dot,
                VectorRows::F16(&query.halves),
                VectorRows::F16(self.row(&self.halves, slot)),
            ),
        };
        dot.clamp(-1.0, 1.0)
    }

    fn row<'a, T>(&self, rows: &'a [T], slot: u32) -> &'a [T] {
        &rows[slot as usize * self.dim..][..self.dim]
    }

    fn int8(&self, slot: u32) -> VectorRows<'_> {
        VectorRows::Int8 {
            values: self.row(&self.codes, slot),
            scales: std::slice::from_ref(&self.scales[slot as usize]),
        }
    }
}
