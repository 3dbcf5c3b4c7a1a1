//! Times of the operations between products.

use ruvllm_gpu::{Activation, Gpu, Quantized, Result, RopeKernel, RopeLayout};

use crate::json::Json;
use crate::measure::{heat, seconds_each};

/// Prints microseconds per dependent launch at the widths of an 8-billion-parameter model.
pub(crate) fn run(gpu: &Gpu, quick: bool, json: &mut Json) -> Result<()> {
    let (dim, ffn, vocab) = if quick { (512, 1024, 5000) } else { (4096, 14_336, 128_256) };
    println!("\noperations on one row (dependent launches): us");
    let ones = |n: u32| gpu.upload(&vec![1.0_f32; n as usize]);
    let (x, delta, weight) = (ones(dim)?, ones(dim)?, ones(dim)?);
    let quantized = Quantized::new(gpu, 1, dim)?;
    let wide = Quantized::new(gpu, 1, ffn)?;
    let gate_up = ones(2 * ffn)?;
    let rope = RopeKernel { heads: dim / 128, head_dim: 128, rotary_dim: 128, layout: RopeLayout::Halves };
    let angles = ones(128)?;
    let position = gpu.upload(&[0_u32])?;
    let out = gpu.zeroed(4)?;
    let zeros = gpu.zeroed(u64::from(dim) * 4)?;
    let lines = [
        ("quantize", vec![gpu.quantize(&x, &quantized)?]),
        ("rms_norm to 8 bits", vec![gpu.rms_norm(&x, &weight, 1e-5, 1, &quantized.clone().into())?]),
        (
            "add_rms_norm to 8 bits",
            vec![gpu.add_rms_norm(&x, &zeros, &weight, 1e-5, 1, &quantized.clone().into())?],
        ),
        ("gated SiLU to 8 bits", vec![gpu.gated(Activation::Silu, &gate_up, 1, ffn, &wide.into())?]),
        ("rope", vec![gpu.rope(rope, &x, &angles, &position)?]),
        ("add", vec![gpu.add(&x, &delta)?]),
        ("argmax, both launches", gpu.argmax(&ones(vocab)?, vocab, &out)?.into()),
    ];
    heat(gpu, &[&lines[0].1[0]], quick)?;
    for (name, launches) in &lines {
        let list: Vec<_> = launches.iter().collect();
        let each = seconds_each(gpu, &list, quick)?;
        let micros = each.map(|s| s * 1e6 * list.len() as f64);
        println!("{name:24} {:.2} ({:.2} to {:.2})", micros.median, micros.low, micros.high);
        json.operation(name, micros);
    }
    Ok(())
}
