//! A matrix product to measure: packed weights of one format and shape, activations, output.

use ruvllm_kernels::matmul::Activations;
use ruvllm_kernels::quant::{PackedMatrix, SharedBytes, WeightFormat};
use ruvllm_kernels::{Kernels, ThreadPool};

use crate::{Arithmetic, Work, values};

/// `out[tokens, rows] = x[tokens, cols] * weights[rows, cols]^T`, over copies of the weights in
/// turn.
pub struct Product {
    weights: Vec<PackedMatrix>,
    x: Activations,
    out: Vec<f32>,
    tokens: usize,
    turn: usize,
}

impl Product {
    /// Weights of `format`, in copies of at least `rotation_bytes` in total: beyond the cache size
    /// no copy is cached when its turn comes.
    ///
    /// # Panics
    /// If `rows` is no multiple of 16, or `cols` not whole quant blocks of `format`.
    #[must_use]
    pub fn new(format: WeightFormat, rows: usize, cols: usize, rotation_bytes: usize) -> Self {
        let copies = (rotation_bytes / bytes(format, rows, cols)).max(1);
        let weights = (0..copies).map(|_| matrix(format, rows, cols)).collect();
        Self { weights, x: Activations::new(), out: Vec::new(), tokens: 0, turn: 0 }
    }

    /// Sets the number of activation rows, and quantizes them if the format requires it.
    pub fn set_tokens(&mut self, tokens: usize, kernels: &Kernels, pool: &ThreadPool) {
        let (rows, cols) = (self.weights[0].rows(), self.weights[0].cols());
        self.x.resize(tokens, cols).copy_from_slice(&values(tokens * cols));
        if self.format().uses_q8() {
            self.x.quantize(kernels, pool);
        }
        self.out.resize(tokens * rows, 0.0);
        self.tokens = tokens;
    }

    /// Computes the product with the next copy of the weights.
    pub fn run(&mut self, kernels: &Kernels, pool: &ThreadPool) {
        self.turn = (self.turn + 1) % self.weights.len();
        kernels.matmul(pool, &self.weights[self.turn], &self.x, &mut self.out);
    }

    /// The storage format of the weights.
    #[must_use]
    pub fn format(&self) -> WeightFormat {
        self.weights[0].format()
    }

    /// Bytes of weights and operations of one run.
    #[must_use]
    pub fn work(&self) -> Work {
        let (rows, cols) = (self.weights[0].rows(), self.weights[0].cols());
        Work { bytes: bytes(self.format(), rows, cols) as u64, flops: (2 * self.tokens * rows * cols) as u64 }
    }

    /// Kind of arithmetic of the format's products.
    #[must_use]
    pub fn arithmetic(&self) -> Arithmetic {
        if self.format().uses_q8() { Arithmetic::Int8 } else { Arithmetic::F32 }
    }
}

fn bytes(format: WeightFormat, rows: usize, cols: usize) -> usize {
    rows * format.row_bytes(cols).expect("the shapes are whole quant blocks")
}

/// A matrix whose rows repeat every 16: quantizing all rows would take longer than measuring.
fn matrix(format: WeightFormat, rows: usize, cols: usize) -> PackedMatrix {
    assert!(rows.is_multiple_of(16), "rows come in groups of 16, not {rows}");
    let mut pattern = vec![0; bytes(format, 16, cols)];
    format.quantize(&values(16 * cols), &mut pattern);
    let data = pattern.repeat(rows / 16);
    PackedMatrix::new(format, rows, cols, SharedBytes::new(data)).expect("the data have the right size")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_fill_the_rotation_and_work_counts_one() {
        let (kernels, pool) = (Kernels::detect().expect("kernels"), ThreadPool::new(1).expect("a pool"));
        let mut product = Product::new(WeightFormat::F32, 16, 64, 3 * 4096);
        assert_eq!(product.weights.len(), 3);
        product.set_tokens(2, &kernels, &pool);
        product.run(&kernels, &pool);
        assert_eq!((product.work().bytes, product.work().flops), (4096, 4096));
        assert!(product.out.iter().any(|value| *value != 0.0));
        assert_eq!(product.arithmetic(), Arithmetic::F32);
    }
}
