//! Observations: positions of a text with what the model computed there.

use ruvllm_kernels::Kernels;

use super::bytes::Reader;
use crate::error::{Error, Result};
use crate::random::Random;

/// Tokens drawn from the tail of a position.
pub const DRAWS: usize = 16;
/// Tail of a position whose candidates are the whole vocabulary.
const NO_TAIL: f32 = f32::NEG_INFINITY;

/// Positions of one text: final hidden state, token that followed, and the tokens that the model
/// found most likely.
///
/// The gradient of the loss needs the probability of every token; here are those of the
/// `candidates` most likely ones and of the target. Of all others, the tail, are the log-sum-exp of
/// their logits and [`DRAWS`] tokens drawn from it by their probability (systematic sampling). Each
/// draw stands for its share of the tail: the sum of `exp(logit' - logit)` over draws, times
/// `exp(tail) / DRAWS`, is an unbiased estimate of what the tail becomes under changed parameters,
/// and so is its gradient.
///
/// A tail that is taken as constant does not do: learning then raises all candidates together,
/// which looks like a gain and is none.
#[derive(Debug, Clone, PartialEq)]
pub struct Observations {
    model_dim: usize,
    candidates: usize,
    /// `[positions, model_dim]`
    hidden: Vec<f32>,
    /// `[positions]`
    targets: Vec<u32>,
    /// `[positions, candidates]`, by descending logit; the target is not among them.
    others: Vec<u32>,
    /// `[positions, DRAWS]`; the target where there is no tail.
    draws: Vec<u32>,
    /// `[positions]`
    tails: Vec<f32>,
}

/// Memory of [`Observations::push`].
#[derive(Debug, Clone, Default)]
pub struct Scratch {
    best: Vec<u32>,
    probabilities: Vec<f32>,
}

/// One position.
#[derive(Debug, Clone, Copy)]
pub struct Observation<'a> {
    /// Final hidden state behind the final norm and before adapters, `[model_dim]`.
    pub hidden: &'a [f32],
    /// Token that followed.
    pub target: u32,
    /// Most likely other tokens, by descending logit.
    pub others: &'a [u32],
    /// Tokens drawn from all others, `[DRAWS]`.
    pub draws: &'a [u32],
    /// Log-sum-exp of the logits of all others.
    pub tail: f32,
}

impl Observations {
    /// No positions yet, of a model with hidden states of `model_dim` values; each will keep the
    /// `candidates` most likely tokens besides the target.
    ///
    /// # Errors
    /// [`Error::Setting`] if one of them is 0.
    pub fn new(model_dim: usize, candidates: usize) -> Result<Self> {
        for (name, value) in [("model_dim", model_dim), ("candidates", candidates)] {
            if value == 0 {
                return Err(Error::Setting { name, value: "0".to_owned(), range: "at least 1" });
            }
        }
        Ok(Self {
            model_dim,
            candidates,
            hidden: Vec::new(),
            targets: Vec::new(),
            others: Vec::new(),
            draws: Vec::new(),
            tails: Vec::new(),
        })
    }

    /// Adds a position: its hidden state, `[model_dim]`, the logits of the next token,
    /// `[vocab_size]`, under any version of the adapter, and the token that followed.
    ///
    /// # Errors
    /// [`Error::Dimension`], [`Error::Token`], and [`Error::NotFinite`] for states and logits that
    /// are NaN or infinite. Nothing is added then.
    pub fn push(
        &mut self,
        kernels: &Kernels,
        hidden: &[f32],
        logits: &[f32],
        target: u32,
        scratch: &mut Scratch,
    ) -> Result<()> {
        if hidden.len() != self.model_dim {
            return Err(Error::Dimension {
                what: "a hidden state",
                expected: self.model_dim,
                got: hidden.len(),
            });
        }
        if target as usize >= logits.len() {
            return Err(Error::Token { token: target, vocab_size: logits.len() });
        }
        if !hidden.iter().all(|value| value.is_finite()) {
            return Err(Error::NotFinite { what: "a hidden state" });
        }
        let all = kernels.log_sum_exp(logits);
        if !all.is_finite() {
            return Err(Error::NotFinite { what: "the logits of a position" });
        }
        let Scratch { best, probabilities } = scratch;
        kernels.top_k(logits, self.candidates + 1, best);
        best.retain(|&token| token != target);
        best.truncate(self.candidates);
        // A vocabulary that is smaller than the number of candidates repeats none.
        let known = best.len();
        best.resize(self.candidates, target);

        probabilities.clear();
        probabilities.extend_from_slice(logits);
        kernels.softmax(probabilities);
        for &token in best[..known].iter().chain([&target]) {
            probabilities[token as usize] = 0.0;
        }
        let rest: f64 = probabilities.iter().map(|&p| f64::from(p)).sum();
        // Below that, rounding is larger.
        let tail = if rest < 1e-7 { NO_TAIL } else { all + rest.ln() as f32 };
        let seed = u64::from(target) << 32 | u64::from(all.to_bits());
        draw(probabilities, rest, Random::new(seed).uniform(), target, &mut self.draws);
        self.hidden.extend_from_slice(hidden);
        self.targets.push(target);
        self.others.extend_from_slice(best);
        self.tails.push(tail);
        Ok(())
    }

    /// Number of positions.
    pub fn len(&self) -> usize {
        self.targets.len()
    }

    /// True without positions.
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// Width of a hidden state.
    pub fn model_dim(&self) -> usize {
        self.model_dim
    }

    /// Candidates of each position, besides the target.
    pub fn candidates(&self) -> usize {
        self.candidates
    }

    /// Bytes of all positions.
    pub fn bytes(&self) -> usize {
        let Self { hidden, targets, others, draws, tails, .. } = self;
        4 * (hidden.len() + targets.len() + others.len() + draws.len() + tails.len())
    }

    /// A position; `None` behind the last one.
    pub fn get(&self, index: usize) -> Option<Observation<'_>> {
        let target = *self.targets.get(index)?;
        Some(Observation {
            hidden: &self.hidden[index * self.model_dim..][..self.model_dim],
            target,
            others: &self.others[index * self.candidates..][..self.candidates],
            draws: &self.draws[index * DRAWS..][..DRAWS],
            tail: self.tails[index],
        })
    }

    /// All positions, in order.
    pub fn iter(&self) -> impl Iterator<Item = Observation<'_>> {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// Drops all positions behind the first `len`.
    pub fn truncate(&mut self, len: usize) {
        self.hidden.truncate(len * self.model_dim);
        self.targets.truncate(len);
        self.others.truncate(len * self.candidates);
        self.draws.truncate(len * DRAWS);
        self.tails.truncate(len);
    }

    /// Appends the position of another list.
    ///
    /// # Errors
    /// [`Error::Dimension`] if states or candidates differ in number.
    pub fn push_position(&mut self, of: Observation<'_>) -> Result<()> {
        self.fits(of)?;
        self.hidden.extend_from_slice(of.hidden);
        self.targets.push(of.target);
        self.others.extend_from_slice(of.others);
        self.draws.extend_from_slice(of.draws);
        self.tails.push(of.tail);
        Ok(())
    }

    /// Replaces a position.
    pub(super) fn replace(&mut self, index: usize, by: Observation<'_>) -> Result<()> {
        self.fits(by)?;
        self.hidden[index * self.model_dim..][..self.model_dim].copy_from_slice(by.hidden);
        self.targets[index] = by.target;
        self.others[index * self.candidates..][..self.candidates].copy_from_slice(by.others);
        self.draws[index * DRAWS..][..DRAWS].copy_from_slice(by.draws);
        self.tails[index] = by.tail;
        Ok(())
    }

    /// Largest token id of all positions.
    pub(super) fn largest_token(&self) -> Option<u32> {
        self.targets.iter().chain(&self.others).chain(&self.draws).copied().max()
    }

    fn fits(&self, position: Observation<'_>) -> Result<()> {
        let wanted = [
            ("the draws of a position", DRAWS, position.draws.len()),
            ("a hidden state", self.model_dim, position.hidden.len()),
            ("the candidates of a position", self.candidates, position.others.len()),
        ];
        match wanted.into_iter().find(|(_, expected, got)| expected != got) {
            Some((what, expected, got)) => Err(Error::Dimension { what, expected, got }),
            None => Ok(()),
        }
    }

    /// Appends all numbers, little-endian.
    pub(super) fn write(&self, bytes: &mut Vec<u8>) {
        let tokens = self.targets.iter().chain(&self.others).chain(&self.draws).copied();
        let floats = self.hidden.iter().chain(&self.tails).map(|value| value.to_bits());
        tokens.chain(floats).for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
    }

    /// Reads what [`write`](Self::write) wrote.
    pub(super) fn read(
        from: &mut Reader<'_>,
        model_dim: usize,
        candidates: usize,
        positions: usize,
    ) -> Result<Self> {
        let mut observations = Self::new(model_dim, candidates)?;
        let wrong = Error::Snapshot { reason: "the sizes of its positions are wrong" };
        let sizes = [candidates, DRAWS, model_dim].map(|width| width.checked_mul(positions));
        let [Some(others), Some(draws), Some(hidden)] = sizes else {
            return Err(wrong);
        };
        observations.targets = from.tokens(positions)?;
        observations.others = from.tokens(others)?;
        observations.draws = from.tokens(draws)?;
        observations.hidden = from.any_floats(hidden)?;
        observations.tails = from.any_floats(positions)?;
        let is_finite = observations.hidden.iter().all(|value| value.is_finite());
        let has_tails = observations.tails.iter().all(|tail| tail.is_finite() || *tail == NO_TAIL);
        if is_finite && has_tails { Ok(observations) } else { Err(wrong) }
    }
}

/// Appends [`DRAWS`] tokens at equal distances of the cumulated probabilities, whose sum is `sum`;
/// the first is at `offset`, 0 to 1, of such a distance. Without a sum, all are `none`.
fn draw(probabilities: &[f32], sum: f64, offset: f64, none: u32, draws: &mut Vec<u32>) {
    let end = draws.len() + DRAWS;
    let distance = sum / DRAWS as f64;
    let (mut cumulated, mut next, mut last) = (0.0, offset * distance, none);
    for (token, &p) in (0..).zip(probabilities).filter(|(_, p)| **p > 0.0) {
        cumulated += f64::from(p);
        last = token;
        while next < cumulated && draws.len() < end {
            draws.push(token);
            next += distance;
        }
    }
    // Rounding may leave the last one out.
    draws.resize(end, last);
}
