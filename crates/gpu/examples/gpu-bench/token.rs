//! One token of a 1-billion-parameter model without attention: all products with the operations
//! between them.

use ruvllm_gpu::{
    Activation, Buffer, Dispatch, Format, Gpu, Matrix, Quantized, Result, RopeKernel, RopeLayout, RowOutput,
    self_test,
};

use crate::json::Json;
use crate::measure::{heat, seconds_each};

const DIM: u32 = 2048;
const FFN: u32 = 8192;
const QKV: u32 = 3072;
const VOCAB: u32 = 128_256;
const LAYERS: usize = 16;

/// Prints milliseconds per token.
pub(crate) fn run(gpu: &Gpu, quick: bool, json: &mut Json) -> Result<()> {
    println!("\none token of llama-1b shapes without attention (ms)");
    let (layers, vocab) = if quick { (1, 1024) } else { (LAYERS, VOCAB) };
    for format in [Format::Q4_0, Format::Q4K, Format::Q8_0] {
        let token = Token::new(gpu, format, layers, vocab)?;
        let list: Vec<_> = token.launches.iter().collect();
        heat(gpu, &list, quick)?;
        let each = seconds_each(gpu, &list, quick)?;
        let total = each.map(|s| s * 1e3 * list.len() as f64);
        println!(
            "{:5} {} launches, {:.0} MB: {:.3} ({:.3} to {:.3}), {:.0} GB/s, {:.0} tokens/s",
            format.name(),
            list.len(),
            token.bytes as f64 / 1e6,
            total.median,
            total.low,
            total.high,
            token.bytes as f64 / total.median / 1e6,
            1e3 / total.median
        );
        json.operation(&format!("token {}", format.name()), total.map(|ms| ms * 1e3));
    }
    Ok(())
}

struct Token {
    launches: Vec<Dispatch>,
    bytes: u64,
}

/// Activations of one row, f32 and in 8 bits.
struct State {
    residual: Buffer,
    delta: Buffer,
    qkv: Buffer,
    gate_up: Buffer,
    weight: Buffer,
    normed: Quantized,
    attended: Quantized,
    gated: Quantized,
    angles: Buffer,
    position: Buffer,
}

impl State {
    fn new(gpu: &Gpu) -> Result<Self> {
        let ones = |n: u32| gpu.upload(&vec![1.0_f32; n as usize]);
        Ok(Self {
            residual: ones(DIM)?,
            delta: ones(DIM)?,
            qkv: ones(QKV)?,
            gate_up: ones(2 * FFN)?,
            weight: ones(DIM)?,
            normed: Quantized::new(gpu, 1, DIM)?,
            attended: Quantized::new(gpu, 1, DIM)?,
            gated: Quantized::new(gpu, 1, FFN)?,
            angles: ones(64)?,
            position: gpu.upload(&[0_u32])?,
        })
    }
}

impl Token {
    fn new(gpu: &Gpu, format: Format, layers: usize, vocab: u32) -> Result<Self> {
        let mut token = Self { launches: Vec::new(), bytes: 0 };
        let state = State::new(gpu)?;
        for _ in 0..layers {
            token.layer(gpu, format, &state)?;
        }
        token.norm(gpu, &state)?;
        let logits = gpu.zeroed(u64::from(vocab) * 4)?;
        token.product(gpu, format, (vocab, DIM), &state.normed, &logits)?;
        token.launches.extend(gpu.argmax(&logits, &gpu.zeroed(4)?)?);
        Ok(token)
    }

    fn layer(&mut self, gpu: &Gpu, format: Format, state: &State) -> Result<()> {
        self.norm(gpu, state)?;
        self.product(gpu, format, (QKV, DIM), &state.normed, &state.qkv)?;
        let rope =
            RopeKernel { heads: QKV / 64, head_dim: 64, rotary_dim: 64, layout: RopeLayout::Interleaved };
        self.launches.push(gpu.rope(rope, &state.qkv, &state.angles, &state.position)?);
        // In the place of attention: its output would be quantized here.
        self.launches.push(gpu.quantize(&state.delta, &state.attended)?);
        self.product(gpu, format, (DIM, DIM), &state.attended, &state.delta)?;
        self.norm(gpu, state)?;
        self.product(gpu, format, (2 * FFN, DIM), &state.normed, &state.gate_up)?;
        let out = RowOutput::Quantized(state.gated.clone());
        self.launches.push(gpu.gated(Activation::Silu, &state.gate_up, 1, FFN, &out)?);
        self.product(gpu, format, (DIM, FFN), &state.gated, &state.delta)
    }

    fn norm(&mut self, gpu: &Gpu, state: &State) -> Result<()> {
        let out = RowOutput::Quantized(state.normed.clone());
        self.launches.push(gpu.add_rms_norm(&state.residual, &state.delta, &state.weight, 1e-5, 1, &out)?);
        Ok(())
    }

    fn product(
        &mut self,
        gpu: &Gpu,
        format: Format,
        (rows, cols): (u32, u32),
        x: &Quantized,
        y: &Buffer,
    ) -> Result<()> {
        let weights = self_test::random_weights(format, rows as usize * cols as usize, 3);
        let matrix = Matrix::upload(gpu, format, rows, cols, &weights)?;
        self.bytes += matrix.bytes();
        self.launches.push(matrix.product(gpu, &x.clone().into(), y, 1)?);
        Ok(())
    }
}
