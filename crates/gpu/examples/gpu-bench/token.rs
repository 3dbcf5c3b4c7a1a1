//! One decode step of whole models with random weights: every launch in its real order.

use std::collections::HashMap;
use std::time::Instant;

use ruvllm_gpu::{
    Activation, AttentionKernel, Buffer, Dispatch, Format, Gpu, KV_BLOCK_TOKENS, KvBlocks, KvFormat, KvRows,
    Matrix, Quantized, Result, RopeKernel, RopeKvKernel, RopeLayout, RowOutput, Sequences, self_test,
};

use crate::attention::{kv_bytes, random_blocks, suffix};
use crate::json::Json;
use crate::measure::{heat, seconds_each};

/// Shapes of a model.
struct Model {
    name: &'static str,
    dim: u32,
    ffn: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    layers: usize,
    vocab: u32,
}

const MODELS: [Model; 2] = [
    Model {
        name: "llama-1b",
        dim: 2048,
        ffn: 8192,
        heads: 32,
        kv_heads: 8,
        head_dim: 64,
        layers: 16,
        vocab: 128_256,
    },
    Model {
        name: "llama-7b",
        dim: 4096,
        ffn: 11_008,
        heads: 32,
        kv_heads: 32,
        head_dim: 128,
        layers: 32,
        vocab: 32_000,
    },
];

const SMALL: Model =
    Model { name: "small", dim: 256, ffn: 512, heads: 4, kv_heads: 2, head_dim: 64, layers: 2, vocab: 1000 };

/// Weight formats of a llama.cpp file type.
#[derive(Clone, Copy)]
struct Mix {
    name: &'static str,
    base: Format,
    /// Values and down projections of every second layer or so.
    more: Format,
    output: Format,
}

const MIXES: [Mix; 3] = [
    Mix { name: "Q4_K_M", base: Format::Q4K, more: Format::Q6K, output: Format::Q6K },
    Mix { name: "Q4_0", base: Format::Q4_0, more: Format::Q4_0, output: Format::Q6K },
    Mix { name: "Q8_0", base: Format::Q8_0, more: Format::Q8_0, output: Format::Q8_0 },
];

/// True for layers with more bits in `Q4_K_M`, by llama.cpp's rule.
fn more_bits(layer: usize, layers: usize) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
}

/// Prints tokens per second beside the limit of the read bandwidth.
pub(crate) fn run(gpu: &Gpu, peak: f64, quick: bool, format: KvFormat, json: &mut Json) -> Result<()> {
    println!(
        "\none decode step, one sequence; tokens/s: device time, wall time of 64 steps submitted in turn,"
    );
    println!("wall time with the token read back each step; limit: weights and KV at read bandwidth");
    let small = [SMALL];
    let models: &[Model] = if quick { &small } else { &MODELS };
    for model in models {
        for mix in MIXES {
            for tokens in [64, 4096] {
                step(gpu, peak, quick, json, (model, mix, tokens, format))?;
            }
        }
    }
    Ok(())
}

fn step(
    gpu: &Gpu,
    peak: f64,
    quick: bool,
    json: &mut Json,
    (model, mix, tokens, format): (&Model, Mix, u32, KvFormat),
) -> Result<()> {
    let step = Step::new(gpu, model, mix, tokens, format)?;
    let list: Vec<_> = step.launches.iter().collect();
    heat(gpu, &list, quick)?;
    let device = seconds_each(gpu, &list, quick)?.map(|s| s * list.len() as f64);
    let steps = if quick { 2 } else { 64 };
    let wall = |read_back: bool| -> Result<f64> {
        let start = Instant::now();
        for _ in 0..steps {
            gpu.write(&step.position, &[tokens - 1])?;
            gpu.run(&list)?;
            if read_back {
                gpu.download::<u32>(&step.token)?;
            }
        }
        gpu.wait()?;
        Ok(f64::from(steps) / start.elapsed().as_secs_f64())
    };
    let median = |read_back| -> Result<f64> {
        let mut rates = (0..5).map(|_| wall(read_back)).collect::<Result<Vec<_>>>()?;
        rates.sort_by(f64::total_cmp);
        Ok(rates[2])
    };
    let (in_turn, read_back) = (median(false)?, median(true)?);
    let limit = peak * 1e9 / step.bytes as f64;
    let rate = device.map(|s| 1.0 / s);
    println!(
        "{} {:6} at {tokens:5}: {} launches, {:5.0} MB, {:.3} ms, {rate}, {in_turn:.0}, {read_back:.0}, limit {limit:.0} ({:.0}%)",
        model.name,
        mix.name,
        list.len(),
        step.bytes as f64 / 1e6,
        device.median * 1e3,
        100.0 * rate.median / limit
    );
    let name = format!("step{} {} {} at {tokens}", suffix(format), model.name, mix.name);
    json.operation(&name, device.map(|s| s * 1e6));
    json.number(&format!("{name}: in turn, per second"), in_turn);
    json.number(&format!("{name}: read back, per second"), read_back);
    json.number(&format!("{name}: limit, per second"), limit);
    Ok(())
}

/// The launches of one step.
struct Step {
    launches: Vec<Dispatch>,
    /// Weights, keys and values that a step reads.
    bytes: u64,
    position: Buffer,
    token: Buffer,
}

/// Activations of one row in f32 and 8 bits, and operands shared by all layers.
struct State {
    residual: Buffer,
    delta: Buffer,
    qkv: Buffer,
    queries: Buffer,
    gate_up: Buffer,
    weight: Buffer,
    normed: Quantized,
    attended: Quantized,
    gated: Quantized,
    angles: Buffer,
    row: KvRows,
    sequences: Sequences,
    scratch: Buffer,
    rope: RopeKvKernel,
    attention: AttentionKernel,
}

impl State {
    fn new(gpu: &Gpu, m: &Model, tokens: u32) -> Result<Self> {
        let ones = |n: u32| gpu.upload(&vec![1.0_f32; n as usize]);
        let blocks = tokens.div_ceil(KV_BLOCK_TOKENS).next_multiple_of(4);
        let table: Vec<u32> = (0..blocks).rev().collect();
        let attention = AttentionKernel::new(m.heads, m.kv_heads, m.head_dim);
        let (heads, head_dim) = (m.heads, m.head_dim);
        let rope = RopeKernel { heads, head_dim, rotary_dim: head_dim, layout: RopeLayout::Interleaved };
        let slot = table[(tokens - 1) as usize / 32] * KV_BLOCK_TOKENS + (tokens - 1) % KV_BLOCK_TOKENS;
        let positions = gpu.upload(&[tokens - 1])?;
        Ok(Self {
            residual: ones(m.dim)?,
            delta: ones(m.dim)?,
            qkv: ones((heads + 2 * m.kv_heads) * head_dim)?,
            queries: ones(heads * head_dim)?,
            gate_up: ones(2 * m.ffn)?,
            weight: ones(m.dim)?,
            normed: Quantized::new(gpu, 1, m.dim)?,
            attended: Quantized::new(gpu, 1, heads * head_dim)?,
            gated: Quantized::new(gpu, 1, m.ffn)?,
            angles: ones(tokens * head_dim)?,
            row: KvRows { positions: positions.clone(), slots: gpu.upload(&[slot])? },
            sequences: Sequences { positions, table: gpu.upload(&table)? },
            scratch: gpu.zeroed(attention.scratch_bytes(1, blocks * KV_BLOCK_TOKENS))?,
            rope: RopeKvKernel { rope, kv_heads: m.kv_heads, format: KvFormat::F16, scaled: false },
            attention,
        })
    }
}

struct Builder<'a> {
    gpu: &'a Gpu,
    model: &'a Model,
    state: State,
    /// One matrix of each kind; layers have copies.
    first: HashMap<(Format, u32, u32), Matrix>,
    launches: Vec<Dispatch>,
    bytes: u64,
}

impl Step {
    fn new(gpu: &Gpu, model: &Model, mix: Mix, tokens: u32, format: KvFormat) -> Result<Self> {
        let state = State::new(gpu, model, tokens)?;
        let mut b = Builder { gpu, model, state, first: HashMap::new(), launches: Vec::new(), bytes: 0 };
        let blocks = tokens.div_ceil(KV_BLOCK_TOKENS).next_multiple_of(4);
        // The token that the step before chose; the embedding is the output matrix.
        let output = b.matrix(mix.output, model.vocab, model.dim)?;
        let token = gpu.zeroed(4)?;
        b.launches.push(output.gather(gpu, &token, &b.state.residual)?);
        for layer in 0..model.layers {
            let more = if more_bits(layer, model.layers) { mix.more } else { mix.base };
            let kv = random_blocks(gpu, format, blocks, model.kv_heads, model.head_dim)?;
            b.bytes += kv_bytes(format, tokens, model.kv_heads, model.head_dim);
            b.layer(mix.base, more, &kv)?;
        }
        b.norm()?;
        let logits = gpu.zeroed(u64::from(model.vocab) * 4)?;
        let normed = b.state.normed.clone();
        b.launches.push(output.product(gpu, &normed.into(), &logits, 1)?);
        b.launches.extend(gpu.argmax(&logits, model.vocab, &token)?);
        Ok(Self { launches: b.launches, bytes: b.bytes, position: b.state.sequences.positions, token })
    }
}

impl Builder<'_> {
    fn layer(&mut self, base: Format, more: Format, kv: &KvBlocks) -> Result<()> {
        let (gpu, m) = (self.gpu, self.model);
        let (q_and_k, v) = ((m.heads + m.kv_heads) * m.head_dim, m.kv_heads * m.head_dim);
        self.norm()?;
        let (normed, qkv) = (self.state.normed.clone(), self.state.qkv.clone());
        if more == base {
            self.product(base, (q_and_k + v, m.dim), &normed, &qkv, (0, q_and_k + v))?;
        } else {
            self.product(base, (q_and_k, m.dim), &normed, &qkv, (0, q_and_k + v))?;
            self.product(more, (v, m.dim), &normed, &qkv, (q_and_k, q_and_k + v))?;
        }
        let s = &self.state;
        self.launches.push(gpu.rope_kv(s.rope, &s.qkv, &s.angles, &s.row, kv, &s.queries)?);
        let out = RowOutput::Quantized(s.attended.clone());
        self.launches.extend(gpu.attention(s.attention, &s.queries, kv, &s.sequences, &s.scratch, &out)?);
        let (attended, delta) = (s.attended.clone(), s.delta.clone());
        self.product(base, (m.dim, m.heads * m.head_dim), &attended, &delta, (0, m.dim))?;
        self.norm()?;
        let gate_up = self.state.gate_up.clone();
        self.product(base, (2 * m.ffn, m.dim), &normed, &gate_up, (0, 2 * m.ffn))?;
        let gated = self.state.gated.clone();
        let out = RowOutput::Quantized(gated.clone());
        self.launches.push(gpu.gated(Activation::Silu, &gate_up, 1, m.ffn, &out)?);
        self.product(more, (m.dim, m.ffn), &gated, &delta, (0, m.dim))
    }

    fn norm(&mut self) -> Result<()> {
        let s = &self.state;
        let out = RowOutput::Quantized(s.normed.clone());
        self.launches.push(self.gpu.add_rms_norm(&s.residual, &s.delta, &s.weight, 1e-5, 1, &out)?);
        Ok(())
    }

    fn matrix(&mut self, format: Format, rows: u32, cols: u32) -> Result<Matrix> {
        let matrix = match self.first.get(&(format, rows, cols)) {
            Some(matrix) => matrix.duplicate(self.gpu)?,
            None => {
                let weights = self_test::random_weights(format, rows as usize * cols as usize, 3);
                let matrix = Matrix::upload(self.gpu, format, rows, cols, &weights)?;
                self.first.insert((format, rows, cols), matrix.clone());
                matrix
            }
        };
        self.bytes += matrix.bytes();
        Ok(matrix)
    }

    /// Prepares a product with its own matrix into the values from `first` on of `width`.
    fn product(
        &mut self,
        format: Format,
        (rows, cols): (u32, u32),
        x: &Quantized,
        y: &Buffer,
        (first, width): (u32, u32),
    ) -> Result<()> {
        let matrix = self.matrix(format, rows, cols)?;
        self.launches.push(matrix.product_into(self.gpu, &x.clone().into(), y, 1, first, width)?);
        Ok(())
    }
}
