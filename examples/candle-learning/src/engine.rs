//! The foreign engine: Qwen2 of candle-transformers, which gives hidden states, and the output
//! projection with or without the learned update.

use std::cell::RefCell;
use std::error::Error;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::qwen2;
use ruvllm_kernels::Kernels;
use ruvllm_sona::instant::{InstantLearner, Observations, OutputHead, Scratch, Shape};
use ruvllm_sona::online::ObservedModel;
use ruvllm_sona::random::Random;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Tokens of an ordinary text that the model writes.
const ORDINARY_TOKENS: usize = 64;

/// Output projection, copied out of candle's tensor.
pub struct Head {
    model_dim: usize,
    /// `[vocab_size, model_dim]`
    rows: Vec<f32>,
    kernels: Kernels,
}

impl OutputHead for Head {
    fn model_dim(&self) -> usize {
        self.model_dim
    }

    fn vocab_size(&self) -> usize {
        self.rows.len() / self.model_dim
    }

    fn row(&self, token: u32, row: &mut [f32]) {
        row.copy_from_slice(&self.rows[token as usize * self.model_dim..][..self.model_dim]);
    }

    fn kernels(&self) -> Kernels {
        self.kernels
    }
}

/// A model of candle with its output projection.
pub struct Engine {
    // Its key/value cache makes every pass a change.
    model: RefCell<qwen2::Model>,
    head: Arc<Head>,
    /// `[vocab_size, model_dim]`
    projection: Tensor,
    candidates: usize,
    digest: [u8; 32],
}

/// Learned factors as tensors: `h' = h + B A h`, `logits = W h' + D C h'`.
pub struct Update {
    /// `[rank, model_dim]`; `B` is transposed.
    hidden: Option<[Tensor; 2]>,
    /// `[rank, model_dim]` and, transposed, `[rank, vocab_size]`.
    logits: Option<[Tensor; 2]>,
}

impl Update {
    /// The current parameters of a learner.
    pub fn of(learner: &InstantLearner) -> candle_core::Result<Self> {
        let Shape { model_dim, vocab_size, hidden_rank, logits_rank } = *learner.shape();
        let tensor = |place: Range<usize>, rank, width| {
            Tensor::from_slice(&learner.parameters()[place], (rank, width), &Device::Cpu)
        };
        let shape = learner.shape();
        let pair = |rank, a, b, width| -> candle_core::Result<Option<[Tensor; 2]>> {
            let factors = || Ok([tensor(a, rank, model_dim)?, tensor(b, rank, width)?]);
            (rank > 0).then(factors).transpose()
        };
        Ok(Self {
            hidden: pair(hidden_rank, shape.hidden_a(), shape.hidden_b(), model_dim)?,
            logits: pair(logits_rank, shape.logits_a(), shape.logits_b(), vocab_size)?,
        })
    }
}

impl Engine {
    /// Loads a Hugging Face folder of Qwen2 in F32.
    pub fn open(folder: &Path) -> Result<Self, Box<dyn Error>> {
        let (device, dtype) = (Device::Cpu, DType::F32);
        let mut config: Value = serde_json::from_slice(&std::fs::read(folder.join("config.json"))?)?;
        // candle wants numbers where published files have `null`.
        let context = config["max_position_embeddings"].clone();
        if config["sliding_window"].is_null() || config["use_sliding_window"] == Value::Bool(false) {
            config["sliding_window"] = context;
        }
        let config: qwen2::Config = serde_json::from_value(config)?;
        let file = folder.join("model.safetensors");
        let digest = Sha256::digest(std::fs::read(&file)?).into();
        let tensors = candle_core::safetensors::load(file, &device)?;
        let weights = VarBuilder::from_tensors(tensors, dtype, &device);
        let name = if config.tie_word_embeddings { "model.embed_tokens.weight" } else { "lm_head.weight" };
        let projection = weights.get((config.vocab_size, config.hidden_size), name)?;
        let rows = projection.flatten_all()?.to_vec1()?;
        let head = Head { model_dim: config.hidden_size, rows, kernels: Kernels::detect()? };
        let model = RefCell::new(qwen2::Model::new(&config, weights)?);
        let candidates = 48;
        Ok(Self { model, head: Arc::new(head), projection, candidates, digest })
    }

    /// Output projection for a learner.
    pub fn head(&self) -> Arc<Head> {
        Arc::clone(&self.head)
    }

    /// Tokens kept at each observed position.
    pub fn candidates(&self) -> usize {
        self.candidates
    }

    /// Final hidden states of `tokens` behind `start` cached ones, `[tokens, model_dim]`.
    fn hidden(&self, tokens: &[u32], start: usize) -> candle_core::Result<Tensor> {
        let mut model = self.model.borrow_mut();
        if start == 0 {
            model.clear_kv_cache();
        }
        let input = Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?;
        model.forward(&input, start, None)?.squeeze(0)
    }

    /// Logits of hidden states, `[tokens, vocab_size]`; `update` is what was learned, if it is on.
    fn logits(&self, hidden: &Tensor, update: Option<&Update>) -> candle_core::Result<Tensor> {
        let Some(update) = update else { return hidden.matmul(&self.projection.t()?) };
        let low_rank = |input: &Tensor, [a, b]: &[Tensor; 2]| input.matmul(&a.t()?)?.matmul(b);
        let hidden = match &update.hidden {
            Some(factors) => (hidden + low_rank(hidden, factors)?)?,
            None => hidden.clone(),
        };
        let logits = hidden.matmul(&self.projection.t()?)?;
        match &update.logits {
            Some(factors) => logits + low_rank(&hidden, factors)?,
            None => Ok(logits),
        }
    }

    /// Mean log-probability of `answer` behind `prompt`, over the whole vocabulary, in nats.
    pub fn log_probability(
        &self,
        prompt: &[u32],
        answer: &[u32],
        update: Option<&Update>,
    ) -> candle_core::Result<f64> {
        let text = [prompt, answer].concat();
        let logits = self.logits(&self.hidden(&text[..text.len() - 1], 0)?, update)?;
        let logits = logits.narrow(0, prompt.len() - 1, answer.len())?;
        let all = candle_nn::ops::log_softmax(&logits, 1)?.to_vec2::<f32>()?;
        let sum: f64 = all.iter().zip(answer).map(|(row, &token)| f64::from(row[token as usize])).sum();
        Ok(sum / answer.len() as f64)
    }

    /// Most likely continuation of `prompt`, with the logits of each of its tokens.
    pub fn generate(
        &self,
        prompt: &[u32],
        tokens: usize,
        update: Option<&Update>,
    ) -> candle_core::Result<(Vec<u32>, Vec<Vec<f32>>)> {
        let (mut answer, mut rows) = (Vec::new(), Vec::new());
        self.decode(prompt, tokens, update, |row| {
            let best = (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap_or(0) as u32;
            answer.push(best);
            rows.push(row);
            best
        })?;
        Ok((answer, rows))
    }

    /// Computes `tokens` steps behind a prompt; `choose` takes the logits and gives the next token.
    fn decode(
        &self,
        prompt: &[u32],
        tokens: usize,
        update: Option<&Update>,
        mut choose: impl FnMut(Vec<f32>) -> u32,
    ) -> candle_core::Result<()> {
        let (mut input, mut start) = (prompt.to_vec(), 0);
        for _ in 0..tokens {
            let hidden = self.hidden(&input, start)?;
            start += input.len();
            let last = hidden.narrow(0, input.len() - 1, 1)?;
            input = vec![choose(self.logits(&last, update)?.squeeze(0)?.to_vec1()?)];
        }
        Ok(())
    }
}

fn failed(error: candle_core::Error) -> ruvllm_sona::Error {
    ruvllm_sona::Error::Model { source: error.into() }
}

impl ObservedModel for Engine {
    fn digest(&self) -> ruvllm_sona::Result<[u8; 32]> {
        Ok(self.digest)
    }

    fn observe(&self, tokens: &[u32], targets: Range<usize>) -> ruvllm_sona::Result<Observations> {
        let mut observations = Observations::new(self.head.model_dim, self.candidates)?;
        if targets.is_empty() {
            return Ok(observations);
        }
        let hidden = self.hidden(&tokens[..targets.end - 1], 0).map_err(failed)?;
        let rows = |tensor: &Tensor| tensor.to_vec2::<f32>().map_err(failed);
        let states = rows(&hidden)?;
        let logits = rows(&self.logits(&hidden, None).map_err(failed)?)?;
        let mut scratch = Scratch::default();
        for target in targets {
            // The token before a target predicts it.
            let (state, logits) = (&states[target - 1], &logits[target - 1]);
            observations.push(&self.head.kernels, state, logits, tokens[target], &mut scratch)?;
        }
        Ok(observations)
    }

    fn ordinary_texts(&self, seeds: &[u64]) -> ruvllm_sona::Result<Vec<Vec<u32>>> {
        let write = |&seed: &u64| {
            let mut random = Random::new(seed);
            let first = random.below(self.head.vocab_size()) as u32;
            let mut text = vec![first];
            let sample = |mut row: Vec<f32>| {
                self.head.kernels.softmax(&mut row);
                let mut left = random.uniform();
                let drawn = row.iter().position(|&p| {
                    left -= f64::from(p);
                    left <= 0.0
                });
                let token = drawn.unwrap_or(row.len() - 1) as u32;
                text.push(token);
                token
            };
            self.decode(&[first], ORDINARY_TOKENS, None, sample).map_err(failed)?;
            Ok(text)
        };
        seeds.iter().map(write).collect()
    }
}
