//! Operations on rows of f32 and on vectors for search, one thread: norms, softmax, rotary
//! embedding, activations, sampling's argmax, distances and vector quantization. Everything fits in
//! cache, so fractions of the memory limit can exceed 100 %.

use half::{bf16, f16};
use ruvllm_benches::{Suite, Work, values};
use ruvllm_kernels::rope::{RopeConfig, RopeLayout, RopeTable};
use ruvllm_kernels::rows::{Activation, Norm};
use ruvllm_kernels::vector::{Metric, ProductQuantizer, ProductTraining, VectorRows};

/// Vectors per query.
const ROWS: usize = 64;

fn main() {
    let mut suite = Suite::new();
    let (width, vocabulary, heads) = if suite.is_test() { (67, 131, 2) } else { (4096, 128_256, 32) };
    row_operations(&mut suite, width);
    activations(&mut suite, width);
    vocabulary_operations(&mut suite, vocabulary);
    rotary(&mut suite, heads);
    for dim in if suite.is_test() { [33, 64] } else { [128, 768] } {
        distances(&mut suite, dim);
        bits(&mut suite, dim);
        product_codes(&mut suite, dim / 8 * 8);
    }
    suite.finish();
}

fn row_operations(suite: &mut Suite, width: usize) {
    let kernels = suite.kernels;
    let (x, weight) = (values(width), values(width));
    let mut out = x.clone();
    let id = width.to_string();
    let work = |reads: usize, flops: usize| Work {
        bytes: (4 * reads * width) as u64,
        flops: (flops * width) as u64,
    };
    suite.measure("dot", &id, work(2, 2), || {
        std::hint::black_box(kernels.dot(&x, &weight));
    });
    suite.measure("rms_norm", &id, work(2, 4), || kernels.rms_norm(&x, &weight, 1e-5, &mut out));
    let (mut residual, bias) = (x.clone(), values(width));
    suite.measure("add_norm", &format!("rms {id}"), work(3, 5), || {
        kernels.add_norm(Norm::Rms { weight: &weight }, 1e-5, &mut residual, &bias, &mut out);
    });
    let layer = Norm::Layer { weight: &weight, bias: Some(&bias) };
    suite.measure("norm", &format!("layer {id}"), work(3, 7), || kernels.norm(layer, 1e-5, &x, &mut out));
    let mut brains = vec![bf16::ZERO; width];
    suite.measure("f32_to_bf16", &id, work(1, 0), || kernels.f32_to_bf16(&x, &mut brains));
}

fn activations(suite: &mut Suite, width: usize) {
    let kernels = suite.kernels;
    let (gate, up) = (values(width), values(width));
    let mut out = gate.clone();
    let work = Work { bytes: 8 * width as u64, flops: 0 };
    for activation in [Activation::Silu, Activation::GeluErf, Activation::GeluTanh, Activation::Relu] {
        suite.measure("gated", &format!("{activation:?} {width}"), work, || {
            out.copy_from_slice(&gate);
            kernels.gated(activation, &mut out, &up);
        });
    }
}

fn vocabulary_operations(suite: &mut Suite, vocabulary: usize) {
    let kernels = suite.kernels;
    let logits = values(vocabulary);
    let mut out = logits.clone();
    let id = vocabulary.to_string();
    let work = Work { bytes: 4 * vocabulary as u64, flops: 0 };
    suite.measure("softmax", &id, work, || {
        out.copy_from_slice(&logits);
        kernels.softmax(&mut out);
    });
    suite.measure("argmax", &id, work, || {
        std::hint::black_box(kernels.argmax(&logits));
    });
}

fn rotary(suite: &mut Suite, heads: usize) {
    let kernels = suite.kernels;
    let dim = 128;
    let table = RopeTable::new(&RopeConfig::new(10_000.0, dim), 16).expect("a plain configuration");
    let mut x = values(heads * dim);
    let work = Work { bytes: 4 * x.len() as u64, flops: 3 * x.len() as u64 };
    for (name, layout) in [("halves", RopeLayout::Halves), ("interleaved", RopeLayout::Interleaved)] {
        suite.measure("rope", &format!("{name} {heads}x{dim}"), work, || {
            kernels.rope(&table, layout, 7..8, &mut x, heads, dim);
        });
    }
}

/// One pair, and one query against many rows, in every format.
fn distances(suite: &mut Suite, dim: usize) {
    let kernels = suite.kernels;
    let (query, rows) = (values(dim), values(ROWS * dim));
    let halves = |x: &[f32]| x.iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>();
    let (query_f16, rows_f16) = (halves(&query), halves(&rows));
    let (mut query_i8, mut rows_i8) = (vec![0; dim], vec![0; ROWS * dim]);
    let query_scale = [kernels.quantize_int8(&query, &mut query_i8)];
    let scales: Vec<f32> =
        rows.chunks(dim).zip(rows_i8.chunks_mut(dim)).map(|(x, out)| kernels.quantize_int8(x, out)).collect();
    let formats = [
        ("f32", 4, VectorRows::F32(&query), VectorRows::F32(&rows)),
        ("f16", 2, VectorRows::F16(&query_f16), VectorRows::F16(&rows_f16)),
        (
            "int8",
            1,
            VectorRows::Int8 { values: &query_i8, scales: &query_scale },
            VectorRows::Int8 { values: &rows_i8, scales: &scales },
        ),
    ];
    let mut out = vec![0.0; ROWS];
    for metric in [Metric::SquaredEuclidean, Metric::Dot, Metric::Cosine, Metric::Manhattan] {
        for (name, size, query, rows) in formats {
            let work = |n: usize| Work { bytes: (n * size * dim) as u64, flops: (2 * n * dim) as u64 };
            suite.measure("distance", &format!("{metric:?} {name} {dim}"), work(2), || {
                std::hint::black_box(kernels.distance(metric, query, query));
            });
            suite.measure("distances", &format!("{metric:?} {name} {ROWS}x{dim}"), work(ROWS), || {
                kernels.distances(metric, query, rows, &mut out);
            });
        }
    }
}

fn bits(suite: &mut Suite, dim: usize) {
    let kernels = suite.kernels;
    let words = dim.div_ceil(64);
    let (x, mut query, rows) = (values(dim), vec![0; words], vec![0x0123_4567_89ab_cdef; ROWS * words]);
    let mut out = vec![0; ROWS];
    let work = |bytes: usize| Work { bytes: bytes as u64, flops: 0 };
    suite.measure("quantize_bits", &dim.to_string(), work(4 * dim), || kernels.quantize_bits(&x, &mut query));
    suite.measure("hamming", &dim.to_string(), work(16 * words), || {
        std::hint::black_box(kernels.hamming(&query, &rows[..words]));
    });
    suite.measure("hammings", &format!("{ROWS}x{dim}"), work(8 * words * ROWS), || {
        kernels.hammings(&query, &rows, &mut out);
    });
}

/// Codes of one byte per eight values.
fn product_codes(suite: &mut Suite, dim: usize) {
    let kernels = suite.kernels;
    let rows = values(ROWS * dim);
    let training = ProductTraining { iterations: 2, ..ProductTraining::new(dim / 8) };
    let quantizer = ProductQuantizer::train(&kernels, &suite.pool, &rows, dim, &training)
        .expect("rows that can be cut into parts of eight");
    let mut codes = vec![0; ROWS * dim / 8];
    quantizer.encode(&kernels, &rows, &mut codes).expect("finite rows");
    let query = &rows[..dim];
    let table = quantizer.table(&kernels, Metric::Dot, query).expect("a metric that is a sum");
    let mut out = vec![0.0; ROWS];
    let work = |bytes: usize| Work { bytes: bytes as u64, flops: 0 };
    suite.measure("product_table", &dim.to_string(), work(4 * 256 * dim), || {
        std::hint::black_box(quantizer.table(&kernels, Metric::Dot, query)).expect("as before");
    });
    suite.measure("product_scan", &format!("{ROWS}x{dim}"), work(ROWS * dim / 8), || {
        table.distances(&codes, &mut out);
    });
}
