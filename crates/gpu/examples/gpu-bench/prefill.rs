//! Prefill attention: time and TFLOP/s, beside the decode kernel row by row.

use ruvllm_gpu::{AttentionKernel, Gpu, KV_BLOCK_TOKENS, Quantized, Result, Sequences};

use crate::attention::random_blocks;
use crate::json::Json;
use crate::measure::{heat, seconds_each};

/// Query heads, KV heads, head dimension, rows, tokens before them.
const SHAPES: [(u32, u32, u32, u32, u32); 6] = [
    (32, 8, 128, 512, 0),
    (32, 8, 128, 512, 4096),
    (32, 8, 128, 16, 4096),
    (32, 8, 64, 512, 0),
    (32, 8, 64, 512, 4096),
    (8, 4, 256, 512, 4096),
];

/// Prints microseconds of both kernels, and TFLOP/s of visible pairs.
pub(crate) fn run(gpu: &Gpu, quick: bool, json: &mut Json) -> Result<()> {
    println!("\nprefill attention to 8 bits, each after the one before");
    println!("heads kv  dim rows before         us  TFLOP/s  row by row, us");
    let quick_shapes = [(4, 2, 64, 40, 100)];
    let shapes: &[_] = if quick { &quick_shapes } else { &SHAPES };
    for &(heads, kv_heads, dim, rows, before) in shapes {
        let blocks = (before + rows).div_ceil(KV_BLOCK_TOKENS).next_multiple_of(4);
        let kv = random_blocks(gpu, blocks, kv_heads, dim)?;
        let key = AttentionKernel::new(heads, kv_heads, dim).one_sequence();
        let queries: Vec<f32> = (0..rows * heads * dim).map(|i| (i as f32 * 0.7).sin()).collect();
        let queries = gpu.upload(&queries)?;
        // Neighbouring tokens' blocks lie apart.
        let table: Vec<u32> = (0..blocks).map(|i| i / 2 + i % 2 * (blocks / 2)).collect();
        let positions: Vec<u32> = (before..before + rows).collect();
        let sequence = Sequences { positions: gpu.upload(&positions)?, table: gpu.upload(&table)? };
        let out = Quantized::new(gpu, rows, heads * dim)?.into();
        let launch = gpu.prefill_attention(key, &queries, &kv, &sequence, &out)?;
        heat(gpu, &[&launch], quick)?;
        let seconds = seconds_each(gpu, &[&launch], quick)?;

        let scratch = gpu.zeroed(key.scratch_bytes(rows, blocks * KV_BLOCK_TOKENS))?;
        let single = gpu.attention(key, &queries, &kv, &sequence, &scratch, &out)?;
        let list: Vec<_> = single.iter().collect();
        let single = seconds_each(gpu, &list, quick)?.map(|s| s * list.len() as f64);

        let pairs = f64::from(rows) * (f64::from(before) + f64::from(rows + 1) / 2.0);
        let rate = seconds.map(|s| 4e-12 * pairs * f64::from(heads * dim) / s);
        println!(
            "{heads:5} {kv_heads:2} {dim:4} {rows:4} {before:6} {:10.2} {:8.2} {:15.2}",
            seconds.median * 1e6,
            rate.median,
            single.median * 1e6
        );
        let name = format!("prefill attention {heads}/{kv_heads} x {dim}, {rows} rows after {before}");
        json.operation(&name, seconds.map(|s| s * 1e6));
    }
    Ok(())
}
