//! `InfoNCE` with in-batch negatives (van den Oord et al., arXiv 1807.03748), for embeddings.

use ruvllm_models::Pooling;

use super::{Batch, BatchLoss, Objective, digest_sequences};
use crate::batch::Sequence;
use crate::error::{Error, Result};
use crate::lora::Lora;
use crate::pass::Backprop;

/// A query, a text that answers it, and one that does not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// The query.
    pub query: Sequence,
    /// The text to be found.
    pub positive: Sequence,
    /// A hard negative.
    pub negative: Option<Sequence>,
}

/// Quality of retrieval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Retrieval {
    /// Share of queries whose positive is the nearest text.
    pub recall_at_1: f64,
    /// Mean reciprocal rank of the positive.
    pub mrr: f64,
}

/// `InfoNCE`: the cross-entropy of each query's positive among all positives and negatives of its
/// pass, by cosine similarity over a temperature; mean per query in nats.
pub struct Contrastive<'d> {
    data: &'d [Pair],
    validation: &'d [Pair],
    temperature: f64,
    pooling: Pooling,
}

/// Pooled states of length 1, `[sequences, model_dim]`, and their lengths before.
struct Embeddings {
    values: Vec<f64>,
    norms: Vec<f64>,
    dim: usize,
}

impl<'d> Contrastive<'d> {
    /// Loss over `data`; `validation` may be empty.
    ///
    /// # Errors
    /// Errors of sequences that the model cannot read; [`Error::Setting`] unless `temperature` is
    /// positive; [`Error::NothingScored`] for fewer than two pairs, which have no negatives.
    pub fn new(
        backprop: &Backprop<'_>,
        data: &'d [Pair],
        validation: &'d [Pair],
        temperature: f64,
        pooling: Pooling,
    ) -> Result<Self> {
        if !(temperature > 0.0 && temperature.is_finite()) {
            let value = temperature.to_string();
            return Err(Error::Setting { name: "temperature", value, range: "positive" });
        }
        if data.len() < 2 {
            return Err(Error::NothingScored { what: "the training data, which has no two pairs," });
        }
        for (index, pair) in data.iter().chain(validation).enumerate() {
            for sequence in pair.sequences() {
                sequence.check(index, backprop.model().config())?;
            }
        }
        Ok(Self { data, validation, temperature, pooling })
    }

    /// Loss of one pass; adds `share` of its gradients if they are wanted.
    fn of_pass(
        &self,
        backprop: &mut Backprop<'_>,
        lora: &Lora,
        pairs: &[&Pair],
        share: f64,
        gradients: Option<&mut [f32]>,
    ) -> Result<f64> {
        let n = pairs.len();
        let negatives = pairs.iter().filter_map(|pair| pair.negative.as_ref());
        let texts: Vec<&Sequence> = pairs.iter().map(|pair| &pair.positive).chain(negatives).collect();
        let sequences: Vec<&Sequence> =
            pairs.iter().map(|pair| &pair.query).chain(texts.iter().copied()).collect();
        let pass = backprop.forward(lora, &sequences)?;
        let found = Embeddings::new(&pass.pooled(self.pooling), sequences.len());
        let mut slopes = vec![0.0; found.values.len()];
        let mut loss = 0.0;
        for query in 0..n {
            let logits: Vec<f64> =
                (0..texts.len()).map(|text| found.dot(query, n + text) / self.temperature).collect();
            let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = logits.iter().map(|logit| (logit - largest).exp()).sum();
            loss += (largest + sum.ln() - logits[query]) / n as f64;
            for (text, logit) in logits.iter().enumerate() {
                let p = (logit - largest).exp() / sum;
                let slope = (p - f64::from(u8::from(text == query))) / (self.temperature * n as f64);
                for at in 0..found.dim {
                    let (a, b) = (query * found.dim + at, (n + text) * found.dim + at);
                    slopes[a] += slope * found.values[b];
                    slopes[b] += slope * found.values[a];
                }
            }
        }
        if let Some(gradients) = gradients {
            pass.backward_pooled(self.pooling, &found.through_norm(&slopes, share), gradients)?;
        }
        Ok(loss)
    }
}

impl Embeddings {
    fn new(pooled: &[f32], n: usize) -> Self {
        let dim = pooled.len() / n.max(1);
        let (mut values, mut norms) = (Vec::with_capacity(pooled.len()), Vec::with_capacity(n));
        for row in pooled.chunks_exact(dim.max(1)) {
            let norm = row.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt().max(1e-12);
            values.extend(row.iter().map(|&v| f64::from(v) / norm));
            norms.push(norm);
        }
        Self { values, norms, dim }
    }

    fn row(&self, index: usize) -> &[f64] {
        &self.values[index * self.dim..(index + 1) * self.dim]
    }

    fn dot(&self, a: usize, b: usize) -> f64 {
        self.row(a).iter().zip(self.row(b)).map(|(x, y)| x * y).sum()
    }

    /// Derivatives with respect to the states before their normalization: `(g - (g u) u) / norm`.
    fn through_norm(&self, slopes: &[f64], share: f64) -> Vec<f32> {
        let mut out = Vec::with_capacity(slopes.len());
        for (index, slopes) in slopes.chunks_exact(self.dim).enumerate() {
            let unit = self.row(index);
            let along: f64 = slopes.iter().zip(unit).map(|(g, u)| g * u).sum();
            let scale = share / self.norms[index];
            out.extend(slopes.iter().zip(unit).map(|(g, u)| (scale * (g - along * u)) as f32));
        }
        out
    }
}

impl Pair {
    fn sequences(&self) -> impl Iterator<Item = &Sequence> {
        [&self.query, &self.positive].into_iter().chain(&self.negative)
    }
}

impl Objective for Contrastive<'_> {
    fn label(&self) -> &'static str {
        "InfoNCE (nats per query)"
    }

    fn n_examples(&self) -> usize {
        self.data.len()
    }

    fn add_gradients(
        &mut self,
        backprop: &mut Backprop<'_>,
        lora: &Lora,
        batch: &Batch<'_>,
        gradients: &mut [f32],
    ) -> Result<BatchLoss> {
        let (mut loss, mut tokens) = (0.0, 0);
        for examples in batch.examples.chunks(batch.per_pass) {
            // A pair that occurs twice, at the border of two epochs, would be its own negative.
            let mut unique = examples.to_vec();
            unique.sort_unstable();
            unique.dedup();
            let pairs: Vec<&Pair> = unique.iter().map(|&index| &self.data[index]).collect();
            let share = examples.len() as f64 / batch.examples.len() as f64;
            loss += share * self.of_pass(backprop, lora, &pairs, share, Some(gradients))?;
            let lengths = pairs.iter().flat_map(|pair| pair.sequences()).map(|s| s.tokens.len());
            tokens += lengths.sum::<usize>();
        }
        Ok(BatchLoss { loss, tokens, reward: None })
    }

    fn validate(&mut self, backprop: &mut Backprop<'_>, lora: &Lora, per_pass: usize) -> Result<Option<f64>> {
        if self.validation.is_empty() {
            return Ok(None);
        }
        let pairs: Vec<&Pair> = self.validation.iter().collect();
        let mut loss = 0.0;
        for pairs in pairs.chunks(per_pass) {
            let share = pairs.len() as f64 / self.validation.len() as f64;
            loss += share * self.of_pass(backprop, lora, pairs, share, None)?;
        }
        Ok(Some(loss))
    }

    /// Cosine distance of query and positive: the loss itself depends on the other pairs of a pass.
    fn difficulty(&mut self, backprop: &mut Backprop<'_>, lora: &Lora, per_pass: usize) -> Result<Vec<f64>> {
        let mut distances = Vec::with_capacity(self.data.len());
        for pairs in self.data.chunks(per_pass.max(1)) {
            let sequences: Vec<&Sequence> =
                pairs.iter().flat_map(|pair| [&pair.query, &pair.positive]).collect();
            let pooled = backprop.forward(lora, &sequences)?.pooled(self.pooling);
            let found = Embeddings::new(&pooled, sequences.len());
            distances.extend((0..pairs.len()).map(|pair| 1.0 - found.dot(2 * pair, 2 * pair + 1)));
        }
        Ok(distances)
    }

    fn settings(&self) -> String {
        format!("contrastive {:?} {:?}", self.temperature, self.pooling)
    }

    fn data_digest(&self) -> [u8; 32] {
        let lists = [self.data, self.validation].map(|pairs| {
            [
                pairs.iter().flat_map(|pair| [&pair.query, &pair.positive]).collect::<Vec<_>>(),
                pairs.iter().filter_map(|pair| pair.negative.as_ref()).collect(),
            ]
        });
        digest_sequences(&[&lists[0][0], &lists[0][1], &lists[1][0], &lists[1][1]])
    }
}

/// Ranks of each query's positive among the positives and negatives of all pairs, by cosine.
///
/// # Errors
/// Errors of [`Backprop::forward`]; [`Error::NothingScored`] without pairs.
pub fn retrieval(
    backprop: &mut Backprop<'_>,
    lora: &Lora,
    pairs: &[Pair],
    pooling: Pooling,
    per_pass: usize,
) -> Result<Retrieval> {
    let negatives = pairs.iter().filter_map(|pair| pair.negative.as_ref());
    let sequences: Vec<&Sequence> = pairs
        .iter()
        .map(|pair| &pair.query)
        .chain(pairs.iter().map(|pair| &pair.positive))
        .chain(negatives)
        .collect();
    if pairs.is_empty() {
        return Err(Error::NothingScored { what: "the pairs" });
    }
    let mut pooled = Vec::new();
    for sequences in sequences.chunks(per_pass.max(1)) {
        pooled.extend(backprop.forward(lora, sequences)?.pooled(pooling));
    }
    let found = Embeddings::new(&pooled, sequences.len());
    let n = pairs.len();
    let (mut first, mut reciprocal) = (0.0, 0.0);
    for query in 0..n {
        let own = found.dot(query, n + query);
        // Ties count against the query.
        let before =
            (n..sequences.len()).filter(|&text| text != n + query && found.dot(query, text) >= own).count();
        first += f64::from(u8::from(before == 0));
        reciprocal += 1.0 / (before + 1) as f64;
    }
    Ok(Retrieval { recall_at_1: first / n as f64, mrr: reciprocal / n as f64 })
}
