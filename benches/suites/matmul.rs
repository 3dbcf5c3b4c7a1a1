//! Matrix products on packed weights: decode (one token, bound by memory) and prefill (many tokens, bound by
//! arithmetic), for every block format, with a feed-forward shape of a 1 G-parameter model.

use ruvllm_benches::{Suite, Work, values};
use ruvllm_kernels::{Activations, BlockFormat, PackedMatrix, SharedBytes};

const FORMATS: [BlockFormat; 8] = [
    BlockFormat::F32,
    BlockFormat::F16,
    BlockFormat::BF16,
    BlockFormat::Q8_0,
    BlockFormat::Q4_0,
    BlockFormat::Q4K,
    BlockFormat::Q5K,
    BlockFormat::Q6K,
];

/// Decode reads matrices in turn until this many bytes have passed, so that none is in cache when it comes again.
const ROTATION_BYTES: usize = 256 << 20;

fn main() {
    let mut suite = Suite::new();
    let (rows, cols, prompt) = if suite.is_test() { (16, 256, 3) } else { (8192, 2048, 512) };
    for format in FORMATS {
        let copies = if suite.is_test() { 1 } else { (ROTATION_BYTES / bytes(format, rows, cols)).max(1) };
        let weights: Vec<PackedMatrix> = (0..copies).map(|_| matrix(format, rows, cols)).collect();
        product(&mut suite, "decode", &weights, 1);
        product(&mut suite, "prefill", &weights[..1], prompt);
    }
    suite.finish();
}

/// The product of `tokens` rows of activations with each of the matrices in turn.
fn product(suite: &mut Suite, name: &str, weights: &[PackedMatrix], tokens: usize) {
    let (kernels, pool) = (suite.kernels, suite.pool.clone());
    let first = &weights[0];
    let mut x = Activations::new();
    x.resize(tokens, first.cols()).copy_from_slice(&values(tokens * first.cols()));
    x.quantize(&kernels, &pool);
    let mut out = vec![0.0; tokens * first.rows()];
    let id = format!("{} {}x{} tokens={tokens}", first.format().name(), first.rows(), first.cols());
    let work = Work {
        bytes: bytes(first.format(), first.rows(), first.cols()) as u64,
        flops: (2 * tokens * first.rows() * first.cols()) as u64,
    };
    let mut turn = weights.iter().cycle();
    suite.measure(name, &id, work, || {
        if let Some(weights) = turn.next() {
            kernels.matmul(&pool, weights, &x, &mut out);
        }
    });
}

fn bytes(format: BlockFormat, rows: usize, cols: usize) -> usize {
    rows * format.row_bytes(cols).expect("the shapes are whole blocks")
}

/// A matrix whose rows repeat every 16, because quantizing all of them would take longer than measuring.
fn matrix(format: BlockFormat, rows: usize, cols: usize) -> PackedMatrix {
    let mut pattern = vec![0; bytes(format, 16, cols)];
    format.quantize(&values(16 * cols), &mut pattern);
    let data = pattern.repeat(rows / 16);
    PackedMatrix::new(format, rows, cols, SharedBytes::new(data)).expect("the data have the right size")
}
