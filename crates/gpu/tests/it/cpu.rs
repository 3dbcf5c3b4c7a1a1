//! Products beside those of the CPU kernels.

use ruvllm_gpu::{Format, Gpu, Matrix, Quantized, self_test};
use ruvllm_kernels::matmul::Activations;
use ruvllm_kernels::quant::{PackedMatrix, SharedBytes, WeightFormat};
use ruvllm_kernels::{Kernels, ThreadPool};

use crate::gpu;

/// Largest difference as a share of the root mean square of the CPU's outputs.
///
/// Both quantize activations alike, up to ties that a division rounded otherwise moves by one step;
/// sums differ in their order only.
const TOLERANCE: f64 = 2e-3;

#[test]
fn products_agree_with_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let formats = [
        (Format::F16, WeightFormat::F16),
        (Format::Q8_0, WeightFormat::Q8_0),
        (Format::Q4_0, WeightFormat::Q4_0),
        (Format::IQ4NL, WeightFormat::IQ4NL),
        (Format::MXFP4, WeightFormat::MXFP4),
        (Format::Q4K, WeightFormat::Q4K),
        (Format::Q5K, WeightFormat::Q5K),
        (Format::Q6K, WeightFormat::Q6K),
    ];
    for (format, cpu_format) in formats {
        for (rows, cols, batch) in [(33, 1024, 1), (70, 768, 5), (8, 4096, 8)] {
            let weights = self_test::random_weights(format, rows * cols, 11);
            let values: Vec<f32> = (0..batch * cols).map(|i| (i as f32 * 0.61).sin()).collect();
            let expected = on_cpu(cpu_format, rows, cols, batch, &weights, &values);
            let found = on_gpu(&gpu, format, rows as u32, cols as u32, batch as u32, &weights, &values);
            let square: f64 = expected.iter().map(|&y| f64::from(y) * f64::from(y)).sum();
            let rms = (square / expected.len() as f64).sqrt();
            for (found, expected) in found.iter().zip(&expected) {
                let error = f64::from((found - expected).abs()) / rms;
                assert!(error <= TOLERANCE, "{} {rows} x {cols}: {found} for {expected}", format.name());
            }
        }
    }
}

fn on_cpu(
    format: WeightFormat,
    rows: usize,
    cols: usize,
    batch: usize,
    weights: &[u8],
    values: &[f32],
) -> Vec<f32> {
    let (kernels, pool) = (Kernels::detect().unwrap(), ThreadPool::single());
    let matrix = PackedMatrix::new(format, rows, cols, SharedBytes::new(weights.to_vec())).unwrap();
    let mut x = Activations::new();
    x.resize(batch, cols).copy_from_slice(values);
    if format.uses_q8() {
        x.quantize(&kernels, &pool);
    }
    let mut y = vec![0.0; batch * rows];
    kernels.matmul(&pool, &matrix, &x, &mut y);
    y
}

fn on_gpu(
    gpu: &Gpu,
    format: Format,
    rows: u32,
    cols: u32,
    batch: u32,
    weights: &[u8],
    values: &[f32],
) -> Vec<f32> {
    let matrix = Matrix::upload(gpu, format, rows, cols, weights).unwrap();
    let buffer = gpu.upload(values).unwrap();
    let y = gpu.zeroed(u64::from(batch * rows) * 4).unwrap();
    let x = if format.takes_quantized() {
        let x = Quantized::new(gpu, batch, cols).unwrap();
        gpu.run(&[&gpu.quantize(&buffer, &x).unwrap()]).unwrap();
        x.into()
    } else {
        buffer.into()
    };
    gpu.run(&[&matrix.product(gpu, &x, &y, batch).unwrap()]).unwrap();
    gpu.download(&y).unwrap()
}
