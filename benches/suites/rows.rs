//! Operations on rows of f32, one thread: norms, softmax, rotary embedding, activations, sampling's argmax, and the
//! quantization of activations. Everything fits in cache, so fractions of the memory limit can exceed 100 %.

use ruvllm_benches::{Suite, Work, values};
use ruvllm_kernels::{RopeConfig, RopeLayout, RopeTable};

fn main() {
    let mut suite = Suite::new();
    let (width, vocabulary, heads) = if suite.is_test() { (67, 131, 2) } else { (4096, 128_256, 32) };
    row_operations(&mut suite, width);
    vocabulary_operations(&mut suite, vocabulary);
    rotary(&mut suite, heads);
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
    suite.measure("silu_mul", &id, work(2, 0), || {
        out.copy_from_slice(&x);
        kernels.silu_mul(&mut out, &weight);
    });
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
