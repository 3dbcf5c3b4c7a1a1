//! Measures matrix products of every weight format over the number of activation rows, and prints
//! one JSON object per point after one with the machine's limits. `cargo xtask bench batch-curve`
//! draws it.
//!
//! Usage: `batch_curve [THREADS]`; one thread without an argument. A cliff in the curve is a batch
//! size for which no good tile exists.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use ruvllm_benches::{Arithmetic, Limits, Product};
use ruvllm_kernels::quant::WeightFormat;
use ruvllm_kernels::{Kernels, ThreadPool};

/// Rows and columns of the weights: a square projection and a long one.
const SHAPES: [(usize, usize); 2] = [(2048, 2048), (2048, 8192)];
/// More than the caches hold, like the weights of a model.
const ROTATION_BYTES: usize = 128 << 20;
/// Measuring time of one point; the best run counts.
const POINT: Duration = Duration::from_millis(40);
const LEAST_RUNS: usize = 4;

fn main() -> ExitCode {
    let threads = std::env::args().nth(1).map_or(Ok(1), |word| word.parse());
    let pool = threads.ok().and_then(|threads| ThreadPool::new(threads).ok());
    let (Some(pool), Ok(kernels)) = (pool, Kernels::detect()) else {
        eprintln!("usage: batch_curve [THREADS]; RUVLLM_ISA may name an instruction set of this machine");
        return ExitCode::FAILURE;
    };
    println!("{}", Limits::measure(&pool).json());
    for (rows, cols) in SHAPES {
        for format in WeightFormat::ALL {
            let mut product = Product::new(format, rows, cols, ROTATION_BYTES);
            for batch in batches() {
                product.set_tokens(batch, &kernels, &pool);
                point(&mut product, (rows, cols, batch), &kernels, &pool);
            }
        }
    }
    ExitCode::SUCCESS
}

/// Every size up to 40, where tiles end and tails begin, then coarser up to 512.
fn batches() -> impl Iterator<Item = usize> {
    let coarse = [48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512];
    (1..=40).chain(coarse)
}

fn point(
    product: &mut Product,
    (rows, cols, batch): (usize, usize, usize),
    kernels: &Kernels,
    pool: &ThreadPool,
) {
    let start = Instant::now();
    let mut best = f64::INFINITY;
    let mut runs = 0;
    while runs < LEAST_RUNS || start.elapsed() < POINT {
        let run = Instant::now();
        product.run(kernels, pool);
        best = best.min(run.elapsed().as_secs_f64());
        runs += 1;
    }
    let arithmetic = match product.arithmetic() {
        Arithmetic::F32 => "f32",
        Arithmetic::Int8 => "int8",
    };
    println!(
        r#"{{"format":"{}","arithmetic":"{arithmetic}","rows":{rows},"cols":{cols},"batch":{batch},"gop_s":{:.2}}}"#,
        product.format().name(),
        product.work().flops as f64 / best / 1e9
    );
}
