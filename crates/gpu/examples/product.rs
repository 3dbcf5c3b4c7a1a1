//! A matrix-vector product on the GPU: `y = W x` with `Q8_0` weights.

use ruvllm_gpu::{Format, Gpu, Matrix, Quantized, Selection, self_test};

fn main() -> Result<(), ruvllm_gpu::Error> {
    let gpu = Gpu::open(&Selection::with_software(), 64 << 20)?;
    println!("{}", gpu.info());

    let (rows, cols) = (1024, 4096);
    let blocks = self_test::random_weights(Format::Q8_0, (rows * cols) as usize, 1);
    let weights = Matrix::upload(&gpu, Format::Q8_0, rows, cols, &blocks)?;
    let x = gpu.upload(&vec![0.5_f32; cols as usize])?;
    let x8 = Quantized::new(&gpu, 1, cols)?;
    let y = gpu.zeroed(u64::from(rows) * 4)?;

    // Prepared once, run for every token.
    let quantize = gpu.quantize(&x, &x8)?;
    let product = weights.product(&gpu, &x8.into(), &y, 1)?;
    gpu.run(&[&quantize, &product])?;
    let y: Vec<f32> = gpu.download(&y)?;
    println!("y[0..4] = {:?}; {} of {} bytes in use", &y[..4], gpu.used(), gpu.budget());
    Ok(())
}
