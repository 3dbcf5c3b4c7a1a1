//! The tiny Llama with gated adapters in float64, from the Hugging Face folder and PEFT folders,
//! written from the formulas alone.

use std::collections::BTreeMap;
use std::f64::consts::PI;

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use crate::fixtures::path;

const LAYERS: usize = 3;
const DIM: usize = 64;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 16;

type Tensors = BTreeMap<String, Vec<f64>>;

/// One row per token.
type Rows = Vec<Vec<f64>>;

/// An adapter: its factors and `alpha / rank`.
pub(crate) struct Lora {
    factors: Tensors,
    rank: usize,
    scale: f64,
}

/// A gate over adapters, `[layers, adapters, dim]` and `[layers, adapters]`.
pub(crate) struct Gate {
    pub(crate) weights: Vec<f32>,
    pub(crate) biases: Vec<f32>,
    pub(crate) temperature: f64,
    pub(crate) top_k: Option<usize>,
}

/// The model with adapters at their scales, and a gate over them.
pub(crate) struct Llama<'a> {
    pub(crate) adapters: Vec<(&'a Lora, f64)>,
    pub(crate) gate: Option<&'a Gate>,
    weights: Tensors,
}

fn tensors(relative: &str) -> Tensors {
    let bytes = std::fs::read(path(relative)).expect("the tensors");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let values = |data: &[u8]| {
        data.as_chunks().0.iter().map(|&bytes| f64::from(f32::from_le_bytes(bytes))).collect::<Vec<_>>()
    };
    let floats = file.iter().inspect(|(_, view)| assert_eq!(view.dtype(), Dtype::F32));
    floats.map(|(name, view)| (name.to_owned(), values(view.data()))).collect()
}

impl Lora {
    /// Reads a PEFT folder without patterns.
    pub(crate) fn read(name: &str) -> Self {
        let config = std::fs::read(path(&format!("lora/{name}/adapter_config.json"))).expect("its config");
        let config: Value = serde_json::from_slice(&config).expect("valid JSON");
        let (rank, alpha) = (config["r"].as_u64().expect("r"), config["lora_alpha"].as_f64().expect("alpha"));
        let by_root = config["use_rslora"].as_bool().expect("a flag");
        let divisor = if by_root { (rank as f64).sqrt() } else { rank as f64 };
        let factors = tensors(&format!("lora/{name}/adapter_model.safetensors"));
        Self { factors, rank: rank as usize, scale: alpha / divisor }
    }

    /// `alpha / rank * B A x` of a module; `None` if it is not changed.
    fn update(&self, module: &str, x: &[f64]) -> Option<Vec<f64>> {
        let factor = |which| self.factors.get(&format!("base_model.model.{module}.lora_{which}.weight"));
        let u: Vec<f64> = product(factor("A")?, x).iter().map(|u| u * self.scale).collect();
        assert_eq!(u.len(), self.rank);
        Some(product(factor("B")?, &u))
    }
}

impl Gate {
    /// Gates of the adapters for one token.
    fn of(&self, layer: usize, h: &[f64], n_adapters: usize) -> Vec<f64> {
        let scores: Vec<f64> = (0..n_adapters)
            .map(|index| {
                let at = layer * n_adapters + index;
                let weights = self.weights[at * DIM..][..DIM].iter().zip(h);
                let dot: f64 = weights.map(|(&w, h)| f64::from(w) * h).sum();
                (dot + f64::from(self.biases[at])) / self.temperature
            })
            .collect();
        let mut sorted = scores.clone();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let least = sorted[self.top_k.unwrap_or(n_adapters) - 1];
        let exp = |score: &f64| if *score >= least { (score - sorted[0]).exp() } else { 0.0 };
        let sum: f64 = scores.iter().map(exp).sum();
        scores.iter().map(|score| exp(score) / sum).collect()
    }
}

impl<'a> Llama<'a> {
    pub(crate) fn new(adapters: Vec<(&'a Lora, f64)>, gate: Option<&'a Gate>) -> Self {
        Self { adapters, gate, weights: tensors("tiny/llama/hf/model.safetensors") }
    }

    /// Logits of all tokens, one row after another.
    pub(crate) fn logits(&self, tokens: &[u32]) -> Vec<f64> {
        let embedding = &self.weights["model.embed_tokens.weight"];
        let mut hidden: Rows =
            tokens.iter().map(|&token| embedding[token as usize * DIM..][..DIM].to_vec()).collect();
        for layer in 0..LAYERS {
            self.layer(layer, &mut hidden);
        }
        let logits = |row: &Vec<f64>| product(&self.weights["lm_head.weight"], &self.norm("model.norm", row));
        hidden.iter().flat_map(logits).collect()
    }

    fn layer(&self, layer: usize, hidden: &mut Rows) {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let h = self.norms(&name("input_layernorm"), hidden);
        let n_adapters = self.adapters.len();
        let gates: Rows = match self.gate {
            Some(gate) => h.iter().map(|h| gate.of(layer, h, n_adapters)).collect(),
            None => vec![vec![1.0; n_adapters]; h.len()],
        };
        let linear = |part: &str, x: &Rows| self.linear(&name(part), x, &gates);
        let [q, k, v] = ["q_proj", "k_proj", "v_proj"].map(|part| linear(&format!("self_attn.{part}"), &h));
        add(hidden, &linear("self_attn.o_proj", &attention(&rotated(q), &rotated(k), &v)));
        let h = self.norms(&name("post_attention_layernorm"), hidden);
        let (gate, up) = (linear("mlp.gate_proj", &h), linear("mlp.up_proj", &h));
        let silu = |(g, u): (&f64, &f64)| g / (1.0 + (-g).exp()) * u;
        let gated: Rows = gate.iter().zip(&up).map(|(g, u)| g.iter().zip(u).map(silu).collect()).collect();
        add(hidden, &linear("mlp.down_proj", &gated));
    }

    /// A matrix and the updates of all adapters.
    fn linear(&self, module: &str, x: &Rows, gates: &Rows) -> Rows {
        let weight = &self.weights[&format!("{module}.weight")];
        let row = |(x, gates): (&Vec<f64>, &Vec<f64>)| {
            let mut y = product(weight, x);
            for ((lora, scale), gate) in self.adapters.iter().zip(gates) {
                for (y, update) in y.iter_mut().zip(lora.update(module, x).unwrap_or_default()) {
                    *y += scale * gate * update;
                }
            }
            y
        };
        x.iter().zip(gates).map(row).collect()
    }

    fn norms(&self, name: &str, rows: &Rows) -> Rows {
        rows.iter().map(|row| self.norm(name, row)).collect()
    }

    fn norm(&self, name: &str, row: &[f64]) -> Vec<f64> {
        let mean = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
        let weight = &self.weights[&format!("{name}.weight")];
        row.iter().zip(weight).map(|(x, w)| x / (mean + 1e-5).sqrt() * w).collect()
    }
}

/// `W x`, `W` of `x.len()` columns.
fn product(w: &[f64], x: &[f64]) -> Vec<f64> {
    w.chunks_exact(x.len()).map(|w| w.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
}

fn add(rows: &mut Rows, updates: &Rows) {
    for (row, update) in rows.iter_mut().zip(updates) {
        row.iter_mut().zip(update).for_each(|(x, update)| *x += update);
    }
}

/// RoPE with the frequencies of Llama 3: base 10000, factor 8 beyond 64 tokens, from 1 to 4.
fn rotated(mut rows: Rows) -> Rows {
    let half = HEAD_DIM / 2;
    let frequency = |i: usize| {
        let plain = 10000f64.powf(-(i as f64) / half as f64);
        let turns = 64.0 * plain / (2.0 * PI);
        let smooth = ((turns - 1.0) / 3.0).clamp(0.0, 1.0);
        (1.0 - smooth) * plain / 8.0 + smooth * plain
    };
    for (position, row) in rows.iter_mut().enumerate() {
        for head in row.chunks_exact_mut(HEAD_DIM) {
            for i in 0..half {
                let (sin, cos) = (position as f64 * frequency(i)).sin_cos();
                let (a, b) = (head[i], head[i + half]);
                (head[i], head[i + half]) = (a * cos - b * sin, b * cos + a * sin);
            }
        }
    }
    rows
}

/// Causal attention of all heads.
fn attention(queries: &Rows, keys: &Rows, values: &Rows) -> Rows {
    let head = |row: usize, head: usize| {
        let q = &queries[row][head * HEAD_DIM..][..HEAD_DIM];
        let kv = head / (HEADS / KV_HEADS) * HEAD_DIM..(head / (HEADS / KV_HEADS) + 1) * HEAD_DIM;
        let score = |key: &Vec<f64>| {
            let dot: f64 = q.iter().zip(&key[kv.clone()]).map(|(q, k)| q * k).sum();
            dot / (HEAD_DIM as f64).sqrt()
        };
        let scores: Vec<f64> = keys[..=row].iter().map(score).collect();
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let mut out = vec![0.0; HEAD_DIM];
        for (weight, value) in weights.iter().zip(values) {
            out.iter_mut().zip(&value[kv.clone()]).for_each(|(out, v)| *out += weight / sum * v);
        }
        out
    };
    (0..queries.len()).map(|row| (0..HEADS).flat_map(|index| head(row, index)).collect()).collect()
}
