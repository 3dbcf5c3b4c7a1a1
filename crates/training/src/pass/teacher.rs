//! Scores of a student's tokens against a teacher's distributions over the same vocabulary.

use ruvllm_kernels::Kernels;
use ruvllm_models::Model;

use super::head::{Logits, TeacherStates, differentiate, norm_rows};
use super::{Backprop, Pass, check_length};
use crate::batch::{Rows, Sequence};
use crate::error::{Error, Result};
use crate::lora::Lora;

/// Settings of [`Distillation`](crate::Distillation).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DistillationConfig {
    /// Share `a` of the teacher in the loss, 0 to 1; the rest is cross-entropy of the tokens.
    pub teacher_share: f64,
    /// Temperature `T` of both distributions; positive.
    pub temperature: f64,
}

impl Default for DistillationConfig {
    /// 0.9 of the teacher, at temperature 1.
    fn default() -> Self {
        Self { teacher_share: 0.9, temperature: 1.0 }
    }
}

/// Agreement of both distributions of one token.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct TokenAgreement {
    /// `KL(teacher || student)` in nats.
    pub(crate) kl: f64,
    /// `sum_x min(p(x), q(x))`.
    pub(crate) acceptance: f64,
    /// True if both have the same likeliest token.
    pub(crate) is_same_argmax: bool,
}

impl TeacherStates<'_> {
    /// Checks that a student with this vocabulary can be scored at these tokens.
    fn check(&self, student: &Model, rows: &Rows) -> Result<()> {
        check_vocabularies(self.model, student)?;
        let dim = self.model.config().model_dim;
        check_length("states of the teacher", rows.scored().len(), self.normed.len() / dim)
    }
}

/// Compares the sizes of both vocabularies.
///
/// # Errors
/// [`Error::Vocabularies`] if they differ.
pub(crate) fn check_vocabularies(teacher: &Model, student: &Model) -> Result<()> {
    let [teacher, student] = [teacher, student].map(|model| model.config().vocab_size);
    if teacher == student { Ok(()) } else { Err(Error::Vocabularies { teacher, student }) }
}

impl<'m> Backprop<'m> {
    /// Final hidden states at the scored tokens of a batch, for the model as a teacher.
    ///
    /// # Errors
    /// As [`log_probabilities`](Self::log_probabilities).
    pub(crate) fn teacher_states(
        &mut self,
        lora: Option<&Lora>,
        sequences: &[&Sequence],
    ) -> Result<TeacherStates<'m>> {
        let rows = self.forward_only(lora, sequences)?;
        let mut normed = vec![0.0; rows.scored().len() * self.model.config().model_dim];
        let parts = (self.model, &self.compute.kernels);
        norm_rows(parts, &self.memory.hidden, rows.scored(), &mut normed);
        Ok(TeacherStates { model: self.model, normed })
    }

    /// Distillation scores of the scored tokens of a batch, without gradients:
    /// [`Pass::distillation_scores`].
    ///
    /// # Errors
    /// As [`log_probabilities`](Self::log_probabilities); [`Error::Vocabularies`];
    /// [`Error::Length`] for states of other tokens.
    pub(crate) fn distillation_scores(
        &mut self,
        lora: Option<&Lora>,
        sequences: &[&Sequence],
        teacher: &TeacherStates<'_>,
        config: DistillationConfig,
    ) -> Result<Vec<f64>> {
        let rows = self.forward_only(lora, sequences)?;
        teacher.check(self.model, &rows)?;
        Ok(self.score_with(&rows, Some(teacher), false, |kernels, logits| {
            distillation_score(kernels, logits, config, false)
        }))
    }

    /// Agreement with a teacher at each scored token of a batch.
    ///
    /// # Errors
    /// As [`distillation_scores`](Self::distillation_scores).
    pub(crate) fn token_agreements(
        &mut self,
        lora: Option<&Lora>,
        sequences: &[&Sequence],
        teacher: &TeacherStates<'_>,
    ) -> Result<Vec<TokenAgreement>> {
        let rows = self.forward_only(lora, sequences)?;
        teacher.check(self.model, &rows)?;
        Ok(self.score_with(&rows, Some(teacher), false, token_agreement))
    }
}

impl Pass<'_, '_> {
    /// Score of each scored token, the negative of its loss:
    /// `(1 - a) log p(token) - a T^2 KL(teacher_T || student_T)`. [`backward`](Self::backward)
    /// propagates its gradients.
    ///
    /// # Errors
    /// [`Error::Vocabularies`]; [`Error::Length`] for states of other tokens.
    pub(crate) fn distillation_scores(
        &mut self,
        teacher: &TeacherStates<'_>,
        config: DistillationConfig,
    ) -> Result<Vec<f64>> {
        teacher.check(self.backprop.model, &self.rows)?;
        Ok(self.backprop.score_with(&self.rows, Some(teacher), true, |kernels, logits| {
            distillation_score(kernels, logits, config, true)
        }))
    }
}

/// Score of a token; with gradients the student's logits become its derivatives,
/// `(1 - a) (1[token] - p) + a T (q_T - p_T)`.
fn distillation_score(
    kernels: &Kernels,
    Logits { student, teacher, token }: Logits<'_>,
    config: DistillationConfig,
    with_gradients: bool,
) -> f64 {
    let (share, temperature) = (config.teacher_share, config.temperature);
    let log_probability = student[token] - kernels.log_sum_exp(student);
    let mut soft = student.to_vec();
    for logits in [&mut soft[..], &mut *teacher] {
        logits.iter_mut().for_each(|logit| *logit /= temperature as f32);
    }
    let kl = relative_entropy(kernels, &soft, teacher);
    if with_gradients {
        differentiate(kernels, student, token);
        kernels.softmax(&mut soft);
        let (own, taught) = ((1.0 - share) as f32, (share * temperature) as f32);
        for ((gradient, p), q) in student.iter_mut().zip(&soft).zip(&*teacher) {
            *gradient = own * *gradient + taught * (q - p);
        }
    }
    (1.0 - share) * f64::from(log_probability) - share * temperature * temperature * kl
}

/// `KL(teacher || student)` of two rows of logits, in nats. The teacher's become its probabilities.
///
/// The absolute error is about that of two log-sums in f32, 1e-6 times their size; equal rows give
/// exactly 0.
fn relative_entropy(kernels: &Kernels, student: &[f32], teacher: &mut [f32]) -> f64 {
    let sums = [kernels.log_sum_exp(student), kernels.log_sum_exp(teacher)];
    let shift = f64::from(sums[0]) - f64::from(sums[1]);
    let mut ratios: Vec<f32> = teacher.to_vec();
    kernels.softmax(teacher);
    ratios.iter_mut().zip(student).for_each(|(ratio, student)| *ratio -= student);
    // A probability of 0 adds 0, even where the ratio is infinite.
    let terms = teacher.iter().zip(&ratios).filter(|(q, _)| **q != 0.0);
    terms.map(|(&q, &ratio)| f64::from(q) * (f64::from(ratio) + shift)).sum()
}

/// Compares two rows of logits at temperature 1.
fn token_agreement(kernels: &Kernels, Logits { student, teacher, .. }: Logits<'_>) -> TokenAgreement {
    let is_same_argmax = argmax(student) == argmax(teacher);
    let kl = relative_entropy(kernels, student, teacher);
    kernels.softmax(student);
    let acceptance = student.iter().zip(&*teacher).map(|(&p, &q)| f64::from(p.min(q))).sum();
    TokenAgreement { kl, acceptance, is_same_argmax }
}

/// Index of the largest value, the first of equal ones.
fn argmax(row: &[f32]) -> usize {
    let larger = |best: usize, at: usize| if row[at] > row[best] { at } else { best };
    (0..row.len()).reduce(larger).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Probabilities of a row of logits at a temperature, in f64.
    fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weight = |logit: &f32| ((f64::from(*logit) - f64::from(largest)) / temperature).exp();
        let weights: Vec<f64> = logits.iter().map(weight).collect();
        let sum: f64 = weights.iter().sum();
        weights.into_iter().map(|weight| weight / sum).collect()
    }

    fn kl(q: &[f64], p: &[f64]) -> f64 {
        q.iter().zip(p).filter(|(q, _)| **q > 0.0).map(|(q, p)| q * (q / p).ln()).sum()
    }

    fn logits<'l>(student: &'l mut [f32], teacher: &'l mut [f32], token: usize) -> Logits<'l> {
        Logits { student, teacher, token }
    }

    fn close(found: f64, expected: f64) -> bool {
        (found - expected).abs() < 3e-5 * (1.0 + expected.abs())
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Any two rows have the score, gradient and agreement of plain sums in f64, with the same
        /// bits on every instruction set.
        #[test]
        fn rows_agree_with_sums_in_f64(
            rows in prop::collection::vec((-15f32..15.0, -15f32..15.0), 1..200),
            (share, temperature) in (0.0..=1.0, 0.5..8.0),
            token in any::<prop::sample::Index>(),
        ) {
            let (student, teacher): (Vec<f32>, Vec<f32>) = rows.into_iter().unzip();
            let token = token.index(student.len());
            let config = DistillationConfig { teacher_share: share, temperature };
            let [p, q] = [&student, &teacher].map(|row| softmax(row, 1.0));
            let [soft_p, soft_q] = [&student, &teacher].map(|row| softmax(row, temperature));
            let expected = (1.0 - share) * p[token].ln() - share * temperature.powi(2) * kl(&soft_q, &soft_p);
            let acceptance: f64 = p.iter().zip(&q).map(|(p, q)| p.min(*q)).sum();
            let mut bits = Vec::new();
            for kernels in Kernels::available() {
                let (mut found, mut other) = (student.clone(), teacher.clone());
                let score = distillation_score(&kernels, logits(&mut found, &mut other, token), config, true);
                // The divergence at temperature T is computed with the rounding of log-sums in f32.
                let tolerance = 3e-5 * (1.0 + share * temperature.powi(2) + expected.abs());
                prop_assert!((score - expected).abs() < tolerance, "{score} {expected}");
                for (at, gradient) in found.iter().enumerate() {
                    let own = (1.0 - share) * (f64::from(u8::from(at == token)) - p[at]);
                    let expected = own + share * temperature * (soft_q[at] - soft_p[at]);
                    prop_assert!(close(f64::from(*gradient), expected), "{gradient} {expected}");
                }
                let (mut one, mut other) = (student.clone(), teacher.clone());
                let agreement = token_agreement(&kernels, logits(&mut one, &mut other, token));
                prop_assert!(close(agreement.kl, kl(&q, &p)), "{agreement:?} {}", kl(&q, &p));
                prop_assert!(close(agreement.acceptance, acceptance), "{agreement:?} {acceptance}");
                bits.push((score.to_bits(), found, agreement));
            }
            prop_assert!(bits.windows(2).all(|pair| pair[0] == pair[1]));
        }
    }

    #[test]
    fn impossible_tokens_add_nothing_and_ties_go_to_the_first() {
        for kernels in Kernels::available() {
            let (mut student, mut teacher) = ([2.0, 1.0, f32::NEG_INFINITY], [1.0, 1.0, f32::NEG_INFINITY]);
            let found = token_agreement(&kernels, logits(&mut student, &mut teacher, 0));
            let p = softmax(&[2.0, 1.0], 1.0);
            assert!(close(found.kl, kl(&[0.5, 0.5], &p)) && close(found.acceptance, 0.5 + p[1]), "{found:?}");
            assert!(found.is_same_argmax);
            // A token that the teacher samples and the student never does.
            let (mut student, mut teacher) = ([f32::NEG_INFINITY, 0.0], [0.0, 0.0]);
            let found = token_agreement(&kernels, logits(&mut student, &mut teacher, 0));
            assert!(found.kl == f64::INFINITY && !found.is_same_argmax, "{found:?}");
        }
    }
}
