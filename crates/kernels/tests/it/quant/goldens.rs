//! Quant block formats and matrix products against files of ggml's reference quantizer.
//!
//! See `tests/data/quant/README.md`.

use std::path::PathBuf;

use gguf_rs_lite::{Gguf, TensorType};
use ruvllm_kernels::matmul::Activations;
use ruvllm_kernels::quant::{PackedMatrix, SharedBytes, WeightFormat};
use ruvllm_kernels::{Kernels, ThreadPool};
use safetensors::SafeTensors;

/// Largest error of the search, relative to the error of the reference quantizer.
const SEARCHED_RMSE: f64 = 1.0;

/// Shapes of the tensors in every file.
const SHAPES: [(usize, usize); 8] =
    [(1, 256), (7, 256), (32, 256), (1, 512), (7, 512), (32, 512), (1, 4096), (7, 4096)];

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/quant").join(name)
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn floats(file: &[u8], tensor: &str) -> Vec<f32> {
    let tensors = SafeTensors::deserialize(file).unwrap();
    let data = tensors.tensor(tensor).unwrap_or_else(|e| panic!("{tensor}: {e}"));
    data.data().as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
}

fn doubles(file: &[u8], tensor: &str) -> Vec<f64> {
    let tensors = SafeTensors::deserialize(file).unwrap();
    tensors.tensor(tensor).unwrap().data().as_chunks::<8>().0.iter().map(|&b| f64::from_le_bytes(b)).collect()
}

/// Quant blocks of one tensor of `TYPE.gguf`.
fn blocks(format: WeightFormat, rows: usize, cols: usize) -> Vec<u8> {
    let file = Gguf::open(path(&format!("{}.gguf", format.name()))).unwrap();
    file.data(format!("t.{rows}x{cols}")).unwrap().as_ref().to_vec()
}

fn dequantized(format: WeightFormat, bytes: &[u8], n: usize) -> Vec<f32> {
    let mut values = vec![f32::NAN; n];
    format.dequantize(bytes, &mut values);
    values
}

fn rmse(a: &[f32], b: &[f32]) -> f64 {
    let squares: f64 = a.iter().zip(b).map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum();
    (squares / a.len() as f64).sqrt()
}

/// Error of the reference quantizer on a tensor.
fn reference_rmse(format: WeightFormat, rows: usize, cols: usize) -> f64 {
    let manifest: serde_json::Value = serde_json::from_slice(&read("manifest.json")).unwrap();
    manifest["types"][format.name()]["tensors"][format!("t.{rows}x{cols}")]["rmse"].as_f64().unwrap()
}

fn stored_formats() -> impl Iterator<Item = WeightFormat> {
    WeightFormat::ALL.into_iter().filter(|&f| f != WeightFormat::F32)
}

/// The reference values are stored as checksums of their bits.
#[test]
fn dequantization_is_bit_exact() {
    let checksums: serde_json::Value = serde_json::from_slice(&read("decoded.json")).unwrap();
    for format in stored_formats() {
        for (rows, cols) in SHAPES {
            let found = dequantized(format, &blocks(format, rows, cols), rows * cols);
            let expected = checksums[format.name()][format!("t.{rows}x{cols}")].as_str().unwrap();
            assert_eq!(format!("{:016x}", fnv_1a(&found)), expected, "{} {rows}x{cols}", format.name());
        }
    }
}

/// Every byte pattern of the formats whose files hold few of them, against `gguf`'s values.
#[test]
fn arbitrary_blocks_are_bit_exact() {
    let checksums: serde_json::Value = serde_json::from_slice(&read("any_bytes.json")).unwrap();
    let checksums = checksums.as_object().unwrap();
    assert_eq!(checksums.len(), 10);
    for (name, expected) in checksums {
        let format = WeightFormat::ALL.into_iter().find(|format| format.name() == name).unwrap();
        let mut bytes = any_bytes(TensorType::from_name(name).unwrap().tag(), 48 * format.block_bytes());
        let last = format.block_bytes() - 1;
        let upper_byte_of_scale = match format {
            WeightFormat::MXFP4 => None,
            WeightFormat::IQ1M | WeightFormat::TQ1_0 | WeightFormat::TQ2_0 => Some(last),
            _ => Some(1),
        };
        if let Some(at) = upper_byte_of_scale {
            // No infinity and no NaN.
            bytes.chunks_exact_mut(last + 1).for_each(|block| block[at] &= 0xbf);
        }
        let found = dequantized(format, &bytes, 48 * format.block_len());
        assert_eq!(format!("{:016x}", fnv_1a(&found)), expected.as_str().unwrap(), "{name}");
    }
}

/// Upper bytes of a linear congruential generator.
fn any_bytes(seed: u32, len: usize) -> Vec<u8> {
    let mut state = u64::from(seed);
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(next).collect()
}

/// FNV-1a hash of the bytes of the values.
fn fnv_1a(values: &[f32]) -> u64 {
    values
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[test]
fn the_error_of_dequantized_files_is_the_manifests() {
    let original = read("original.safetensors");
    for format in stored_formats() {
        for (rows, cols) in SHAPES {
            let found = dequantized(format, &blocks(format, rows, cols), rows * cols);
            let error = rmse(&found, &floats(&original, &format!("t.{rows}x{cols}")));
            let expected = reference_rmse(format, rows, cols);
            assert!(
                (error / expected - 1.0).abs() < 1e-6,
                "{} {rows}x{cols}: {error} for {expected}",
                format.name()
            );
        }
    }
}

#[test]
fn simple_formats_quantize_to_the_reference_bytes() {
    let original = read("original.safetensors");
    for format in [
        WeightFormat::F16,
        WeightFormat::BF16,
        WeightFormat::Q8_0,
        WeightFormat::Q4_0,
        WeightFormat::Q4_1,
        WeightFormat::Q5_0,
        WeightFormat::Q5_1,
    ] {
        for (rows, cols) in SHAPES {
            let values = floats(&original, &format!("t.{rows}x{cols}"));
            let expected = blocks(format, rows, cols);
            let mut found = vec![0; expected.len()];
            format.quantize(&values, &mut found);
            let different = found.iter().zip(&expected).position(|(a, b)| a != b);
            assert_eq!(different, None, "{} {rows}x{cols}: first different byte", format.name());
        }
    }
}

#[test]
fn searched_formats_quantize_at_least_as_well_as_the_reference() {
    let original = read("original.safetensors");
    for format in [
        WeightFormat::Q2K,
        WeightFormat::Q3K,
        WeightFormat::Q4K,
        WeightFormat::Q5K,
        WeightFormat::Q6K,
        WeightFormat::IQ4NL,
        WeightFormat::IQ4XS,
        WeightFormat::MXFP4,
        WeightFormat::IQ2XXS,
        WeightFormat::IQ2XS,
        WeightFormat::IQ2S,
        WeightFormat::IQ3XXS,
        WeightFormat::IQ3S,
        WeightFormat::IQ1S,
        WeightFormat::IQ1M,
        WeightFormat::TQ1_0,
        WeightFormat::TQ2_0,
    ] {
        for (rows, cols) in SHAPES {
            let values = floats(&original, &format!("t.{rows}x{cols}"));
            let mut bytes = vec![0; format.row_bytes(cols).unwrap() * rows];
            format.quantize(&values, &mut bytes);
            let error = rmse(&dequantized(format, &bytes, rows * cols), &values);
            let reference = reference_rmse(format, rows, cols);
            println!("{} {rows}x{cols}: {:.4} of the reference error", format.name(), error / reference);
            assert!(
                error <= SEARCHED_RMSE * reference,
                "{} {rows}x{cols}: {error}, reference {reference}",
                format.name()
            );
        }
    }
}

#[test]
fn products_agree_with_double_precision() {
    let vectors = read("matvec.safetensors");
    let pool = ThreadPool::single();
    for kernels in Kernels::available() {
        for format in stored_formats() {
            for (rows, cols) in SHAPES {
                let bytes = blocks(format, rows, cols);
                let weights = dequantized(format, &bytes, rows * cols);
                let x = floats(&vectors, &format!("x.{cols}"));
                let expected = doubles(&vectors, &format!("{}.{rows}x{cols}", format.name()));

                let matrix = PackedMatrix::new(format, rows, cols, SharedBytes::new(bytes)).unwrap();
                let mut activations = Activations::new();
                activations.resize(1, cols).copy_from_slice(&x);
                activations.quantize(&kernels, &pool);
                let mut found = vec![f32::NAN; rows];
                kernels.matmul(&pool, &matrix, &activations, &mut found);

                for (row, weights) in weights.chunks_exact(cols).enumerate() {
                    let error = (f64::from(found[row]) - expected[row]).abs();
                    let bound = error_bound(format, weights, &x);
                    assert!(
                        error <= bound,
                        "{kernels:?} {} {rows}x{cols} row {row}: error {error}, bound {bound}",
                        format.name()
                    );
                }
            }
        }
    }
}

/// Error bound of the product of a row with `x`: half a quantization step per quantized activation,
/// or 2e-6 of the sum of magnitudes for float arithmetic.
fn error_bound(format: WeightFormat, weights: &[f32], x: &[f32]) -> f64 {
    let mut bound = 0.0;
    for (w, x) in weights.chunks(32).zip(x.chunks(32)) {
        let largest = x.iter().fold(0.0_f64, |m, &x| m.max(f64::from(x.abs())));
        let step = if format.uses_q8() { largest / 127.0 } else { 0.0 };
        for (&w, &x) in w.iter().zip(x) {
            bound += f64::from(w.abs()) * (0.5001 * step + 2e-6 * f64::from(x.abs()));
        }
    }
    bound
}
