//! Observations: positions of a text with what the model computed there.

use ruvllm_kernels::Kernels;

use super::bytes::Reader;
use crate::error::{Error, Result};

/// Tail of a position whose candidates are the whole vocabulary.
const NO_TAIL: f32 = f32::NEG_INFINITY;

/// Positions of one text: final hidden state, token that followed, and the tokens that the model
/// found most likely.
///
/// The gradient of the loss needs the probability of every token; here are those of the
/// `candidates` most likely ones and of the target. The others are one number, the log-sum-exp of
/// their logits (`tail`), which learning takes as constant.
///
/// # Error bound
/// Let `m` be the probability of the tail and `w` the largest norm of a row of the output
/// projection. The gradient with respect to the hidden state lacks `sum of p_v W_v` over the tail,
/// so it is off by at most `m w`.
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
    /// `[positions]`
    tails: Vec<f32>,
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
    /// Log-sum-exp of the logits of all other tokens.
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
            tails: Vec::new(),
        })
    }

    /// Adds a position: its hidden state, `[model_dim]`, the logits of the next token,
    /// `[vocab_size]`, under any version of the adapter, and the token that followed. `best` is
    /// memory for indices.
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
        best: &mut Vec<u32>,
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
        kernels.top_k(logits, self.candidates + 1, best);
        best.retain(|&token| token != target);
        best.truncate(self.candidates);
        // A vocabulary that is smaller than the number of candidates repeats none.
        let known = best.len();
        best.resize(self.candidates, target);

        let share = |token: u32| f64::from(logits[token as usize] - all).exp();
        let seen: f64 = best[..known].iter().map(|&token| share(token)).sum::<f64>() + share(target);
        let rest = 1.0 - seen;
        // Rounding of f32 logits leaves about 1e-7 of the mass uncertain.
        let tail = if known + 1 >= logits.len() || rest < 1e-7 { NO_TAIL } else { all + rest.ln() as f32 };
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
        4 * (self.hidden.len() + self.targets.len() + self.others.len() + self.tails.len())
    }

    /// A position; `None` behind the last one.
    pub fn get(&self, index: usize) -> Option<Observation<'_>> {
        let target = *self.targets.get(index)?;
        Some(Observation {
            hidden: &self.hidden[index * self.model_dim..][..self.model_dim],
            target,
            others: &self.others[index * self.candidates..][..self.candidates],
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
        self.tails.push(of.tail);
        Ok(())
    }

    /// Replaces a position.
    pub(super) fn replace(&mut self, index: usize, by: Observation<'_>) -> Result<()> {
        self.fits(by)?;
        self.hidden[index * self.model_dim..][..self.model_dim].copy_from_slice(by.hidden);
        self.targets[index] = by.target;
        self.others[index * self.candidates..][..self.candidates].copy_from_slice(by.others);
        self.tails[index] = by.tail;
        Ok(())
    }

    /// Largest token id of all positions.
    pub(super) fn largest_token(&self) -> Option<u32> {
        self.targets.iter().chain(&self.others).copied().max()
    }

    fn fits(&self, position: Observation<'_>) -> Result<()> {
        let wanted = [
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
        let tokens = self.targets.iter().chain(&self.others).copied();
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
        let [Some(others), Some(hidden)] = [candidates, model_dim].map(|width| width.checked_mul(positions))
        else {
            return Err(wrong);
        };
        observations.targets = from.tokens(positions)?;
        observations.others = from.tokens(others)?;
        observations.hidden = from.any_floats(hidden)?;
        observations.tails = from.any_floats(positions)?;
        let is_finite = observations.hidden.iter().all(|value| value.is_finite());
        let has_tails = observations.tails.iter().all(|tail| tail.is_finite() || *tail == NO_TAIL);
        if is_finite && has_tails { Ok(observations) } else { Err(wrong) }
    }
}
