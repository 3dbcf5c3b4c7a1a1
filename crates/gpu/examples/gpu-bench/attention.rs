//! Decode attention: time and bandwidth of keys and values.

use ruvllm_gpu::{
    AttentionKernel, Buffer, Dispatch, Gpu, KV_BLOCK_TOKENS, KvBlocks, KvFormat, Quantized, Result,
    Sequences, TiledAttentionKernel,
};

use crate::json::Json;
use crate::measure::{heat, seconds_each};
use crate::products::ROTATION;

/// Query heads, KV heads, head dimension, sequences, tokens.
const SHAPES: [(u32, u32, u32, u32, u32); 11] = [
    (32, 8, 128, 1, 1024),
    (32, 8, 128, 1, 4096),
    (32, 8, 128, 1, 32_768),
    (32, 8, 128, 16, 1024),
    (32, 8, 128, 16, 4096),
    (32, 8, 64, 1, 64),
    (32, 8, 64, 1, 1024),
    (32, 8, 64, 1, 4096),
    (32, 32, 128, 1, 64),
    (32, 32, 128, 1, 1024),
    (32, 32, 128, 1, 4096),
];

/// Prints microseconds per attention, its merge included, and GB/s of keys and values. `own`: query
/// heads of a workgroup.
pub(crate) fn run(
    gpu: &Gpu,
    (peak, quick): (f64, bool),
    own: Option<u32>,
    format: KvFormat,
    json: &mut Json,
) -> Result<()> {
    println!("\nattention over {} blocks to 8 bits, each after the one before", format.name());
    println!("heads kv  dim sequences tokens launches       us                   GB/s  share");
    let quick_shapes = [(4, 2, 64, 2, 300)];
    let shapes: &[_] = if quick { &quick_shapes } else { &SHAPES };
    for &(heads, kv_heads, dim, count, tokens) in shapes {
        let bytes = kv_bytes(format, count * tokens, kv_heads, dim);
        let copies = if quick { 2 } else { (ROTATION / bytes).clamp(2, 200) as u32 };
        let blocks = tokens.div_ceil(KV_BLOCK_TOKENS).next_multiple_of(4);
        let kv = random_blocks(gpu, format, copies * count * blocks, kv_heads, dim)?;
        let own = own.filter(|n| (heads / kv_heads).is_multiple_of(*n));
        let key = AttentionKernel { workgroup_heads: own, ..AttentionKernel::new(heads, kv_heads, dim) };
        let queries: Vec<f32> = (0..count * heads * dim).map(|i| (i as f32 * 0.7).sin()).collect();
        let queries = gpu.upload(&queries)?;
        let scratch = gpu.zeroed(key.scratch_bytes(count, blocks * KV_BLOCK_TOKENS))?;
        let out = Quantized::new(gpu, count, heads * dim)?.into();
        let positions = gpu.upload(&vec![tokens - 1; count as usize])?;
        let mut launches = Vec::new();
        for copy in 0..copies {
            // Neighbouring tokens' blocks lie apart.
            let table: Vec<u32> = (0..count * blocks).map(|i| i * copies + copy).collect();
            let sequences = Sequences { positions: positions.clone(), table: gpu.upload(&table)? };
            launches.extend(gpu.attention(key, &queries, &kv, &sequences, &scratch, &out)?);
        }
        let each = launches.len() / copies as usize;
        let list: Vec<_> = launches.iter().collect();
        heat(gpu, &list, quick)?;
        let seconds = seconds_each(gpu, &list, quick)?.map(|s| s * each as f64);
        let rate = seconds.map(|s| bytes as f64 / s / 1e9);
        println!(
            "{heads:5} {kv_heads:2} {dim:4} {count:9} {tokens:6} {each:8} {:8.2} {:>22} {:5.0}%",
            seconds.median * 1e6,
            rate.to_string(),
            100.0 * rate.median / peak
        );
        let name = format!("attention{} {heads}/{kv_heads} x {dim}, {count} x {tokens}", suffix(format));
        json.operation(&name, seconds.map(|s| s * 1e6));
    }
    Ok(())
}

/// Part of the names of figures.
pub(crate) fn suffix(format: KvFormat) -> &'static str {
    match format {
        KvFormat::F16 => "",
        KvFormat::Q8 => " q8",
    }
}

/// Bytes of the keys and values of tokens.
pub(crate) fn kv_bytes(format: KvFormat, tokens: u32, kv_heads: u32, dim: u32) -> u64 {
    let block = 2 * u64::from(kv_heads) * format.plane_bytes(dim);
    u64::from(tokens) * block / u64::from(KV_BLOCK_TOKENS)
}

/// Query heads, KV heads, head dimension, rows, tokens before them.
const PREFILL: [(u32, u32, u32, u32, u32); 9] = [
    (32, 8, 64, 512, 0),
    (32, 8, 64, 512, 4096),
    (32, 8, 64, 512, 32_256),
    (32, 8, 64, 64, 4096),
    (32, 8, 64, 16, 4096),
    (32, 8, 128, 512, 0),
    (32, 8, 128, 512, 4096),
    (32, 32, 128, 512, 4096),
    (32, 32, 128, 16, 4096),
];

/// Prints microseconds and TFLOP/s (four operations per score and dimension) of the rows of one
/// sequence: with cooperative matrices where the device has them, and row by row.
pub(crate) fn prefill(gpu: &Gpu, quick: bool, format: KvFormat, json: &mut Json) -> Result<()> {
    println!("\nprefill attention over {} blocks to 8 bits, each after the one before", format.name());
    println!("                           heads kv  dim rows  depth       us  TFLOP/s");
    let quick_shapes = [(4, 2, 64, 32, 300)];
    let shapes: &[_] = if quick { &quick_shapes } else { &PREFILL };
    for &(heads, kv_heads, dim, rows, depth) in shapes {
        let key = AttentionKernel { format, ..AttentionKernel::new(heads, kv_heads, dim) };
        let bed = PrefillBed::new(gpu, key, rows, depth)?;
        let scores: u64 = (depth..depth + rows).map(|position| u64::from(position) + 1).sum();
        for (name, launches) in
            [("prefill attention", bed.chosen(gpu)?), ("row by row", bed.row_by_row(gpu)?)]
        {
            let list: Vec<_> = launches.iter().collect();
            heat(gpu, &list, quick)?;
            let seconds = seconds_each(gpu, &list, quick)?.map(|s| s * list.len() as f64);
            let rate = seconds.map(|s| 4e-12 * scores as f64 * f64::from(heads * dim) / s);
            println!(
                "{name:17} {heads:5} {kv_heads:2} {dim:4} {rows:4} {depth:6} {:8.2} {:6.1} ({:.1} to {:.1})",
                seconds.median * 1e6,
                rate.median,
                rate.low,
                rate.high
            );
            let name =
                format!("{name}{} {heads}/{kv_heads} x {dim}, {rows} rows behind {depth}", suffix(format));
            json.operation(&name, seconds.map(|s| s * 1e6));
        }
    }
    Ok(())
}

/// Operands of prefill attention: consecutive rows of one sequence.
pub(crate) struct PrefillBed {
    key: AttentionKernel,
    queries: Buffer,
    kv: KvBlocks,
    sequences: Sequences,
    scratch: Buffer,
    quantized: Quantized,
}

impl PrefillBed {
    /// Allocates `rows` rows behind `depth` tokens, in blocks of the key's format.
    pub(crate) fn new(gpu: &Gpu, key: AttentionKernel, rows: u32, depth: u32) -> Result<Self> {
        let key = key.one_sequence();
        let width = key.heads * key.head_dim;
        let blocks = (depth + rows).div_ceil(KV_BLOCK_TOKENS).next_multiple_of(4);
        let queries: Vec<f32> = (0..rows * width).map(|i| (i as f32 * 0.7).sin()).collect();
        let positions = gpu.upload(&(depth..depth + rows).collect::<Vec<_>>())?;
        let table: Vec<u32> = (0..blocks).rev().collect();
        Ok(Self {
            key,
            queries: gpu.upload(&queries)?,
            kv: random_blocks(gpu, key.format, blocks, key.kv_heads, key.head_dim)?,
            sequences: Sequences { positions, table: gpu.upload(&table)? },
            scratch: gpu.zeroed(key.scratch_bytes(rows, blocks * KV_BLOCK_TOKENS))?,
            quantized: Quantized::new(gpu, rows, width)?,
        })
    }

    /// Launches of the crate's choice.
    pub(crate) fn chosen(&self, gpu: &Gpu) -> Result<Vec<Dispatch>> {
        let Self { key, queries, kv, sequences, scratch, quantized } = self;
        gpu.prefill_attention(*key, queries, kv, sequences, scratch, &quantized.clone().into())
    }

    /// Launches with an explicit tile.
    pub(crate) fn tiled(&self, gpu: &Gpu, tile: TiledAttentionKernel) -> Result<Vec<Dispatch>> {
        let Self { queries, kv, sequences, scratch, quantized, .. } = self;
        gpu.tiled_attention(tile, queries, kv, sequences, scratch, &quantized.clone().into())
    }

    /// Launches of the kernel of decode.
    pub(crate) fn row_by_row(&self, gpu: &Gpu) -> Result<Vec<Dispatch>> {
        let Self { key, queries, kv, sequences, scratch, quantized } = self;
        gpu.attention(*key, queries, kv, sequences, scratch, &quantized.clone().into())
    }

    /// Results: the quantized values in words of 4.
    pub(crate) fn results(&self, gpu: &Gpu) -> Result<Vec<u32>> {
        gpu.download(self.quantized.quants())
    }
}

/// Blocks of noise: f16 values, and scales, of magnitude 0.01.
pub(crate) fn random_blocks(
    gpu: &Gpu,
    format: KvFormat,
    blocks: u32,
    kv_heads: u32,
    dim: u32,
) -> Result<KvBlocks> {
    let kv = KvBlocks::new(gpu, format, blocks, kv_heads, dim)?;
    let noise: Vec<u32> =
        (0..1_u32 << 20).map(|i| (i.wrapping_mul(0x9e37_79b9) & 0x83ff_83ff) | 0x2000_2000).collect();
    let fill = |buffer: &Buffer| gpu.fill(buffer, &noise);
    fill(kv.keys())?;
    kv.values().map(fill).transpose()?;
    Ok(kv)
}
