//! Direct preference optimization (Rafailov et al., arXiv 2305.18290).

use crate::batch::Sequence;
use crate::error::{Error, Result};
use crate::lora::Lora;
use crate::pass::Backprop;

/// A preferred and a rejected answer to one prompt, which their masks leave out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preference {
    /// The better sequence.
    pub chosen: Sequence,
    /// The worse sequence.
    pub rejected: Sequence,
}

/// Result of a batch of preferences.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PreferenceLoss {
    /// Mean loss per pair, in nats.
    pub loss: f64,
    /// Mean of `beta` times the difference of log-ratios.
    pub margin: f64,
    /// Share of pairs whose margin is positive.
    pub accuracy: f64,
    /// Share of pairs whose chosen answer is likelier than the rejected one.
    pub preferred: f64,
}

impl PreferenceLoss {
    /// Adds the means of `share` of all pairs.
    pub(crate) fn add(&mut self, part: &Self, share: f64) {
        self.loss += share * part.loss;
        self.margin += share * part.margin;
        self.accuracy += share * part.accuracy;
        self.preferred += share * part.preferred;
    }
}

/// Log-probabilities of both answers of each pair under the model alone, the reference of the loss.
///
/// # Errors
/// Errors of [`Backprop::log_probabilities`].
pub fn reference(backprop: &mut Backprop<'_>, pairs: &[&Preference]) -> Result<Vec<[f64; 2]>> {
    let sums = backprop.log_probabilities(None, &sequences(pairs))?.sums();
    Ok(sums.as_chunks::<2>().0.to_vec())
}

/// Adds the gradients of the mean loss `-ln σ(beta (r_chosen - r_rejected))` of some pairs, `r` the
/// log-ratio of an answer to the `reference`, to `gradients`.
///
/// # Errors
/// Errors of [`Backprop::forward`]; [`Error::Length`] unless there is one reference per pair;
/// [`Error::NothingScored`] without pairs.
pub fn preference_gradients(
    backprop: &mut Backprop<'_>,
    lora: &Lora,
    pairs: &[&Preference],
    reference: &[[f64; 2]],
    beta: f64,
    gradients: &mut [f32],
) -> Result<PreferenceLoss> {
    add_preference_gradients(backprop, lora, pairs, reference, beta, 1.0, gradients)
}

/// As [`preference_gradients`], with `share` of the gradients.
pub(crate) fn add_preference_gradients(
    backprop: &mut Backprop<'_>,
    lora: &Lora,
    pairs: &[&Preference],
    reference: &[[f64; 2]],
    beta: f64,
    share: f64,
    gradients: &mut [f32],
) -> Result<PreferenceLoss> {
    check(pairs, reference)?;
    let mut pass = backprop.forward(lora, &sequences(pairs))?;
    let probabilities = pass.log_probabilities();
    let (result, mut coefficients) = compare(&probabilities.sums(), reference, beta);
    coefficients.iter_mut().for_each(|coefficient| *coefficient *= share);
    pass.backward(&probabilities.spread(&coefficients)?, gradients)?;
    Ok(result)
}

/// Mean loss of some pairs, without gradients; `lora` = `None` is the model alone.
///
/// # Errors
/// As [`preference_gradients`].
pub fn preference_loss(
    backprop: &mut Backprop<'_>,
    lora: Option<&Lora>,
    pairs: &[&Preference],
    reference: &[[f64; 2]],
    beta: f64,
) -> Result<PreferenceLoss> {
    check(pairs, reference)?;
    let sums = backprop.log_probabilities(lora, &sequences(pairs))?.sums();
    Ok(compare(&sums, reference, beta).0)
}

fn check(pairs: &[&Preference], reference: &[[f64; 2]]) -> Result<()> {
    if pairs.is_empty() {
        return Err(Error::NothingScored { what: "the pairs" });
    }
    if reference.len() != pairs.len() {
        return Err(Error::Length { what: "the reference", expected: pairs.len(), found: reference.len() });
    }
    Ok(())
}

/// Means over pairs, and the derivatives of the loss with respect to each sequence.
fn compare(sums: &[f64], reference: &[[f64; 2]], beta: f64) -> (PreferenceLoss, Vec<f64>) {
    let n = reference.len() as f64;
    let mut result = PreferenceLoss::default();
    let mut coefficients = Vec::with_capacity(sums.len());
    for (sums, [chosen, rejected]) in sums.as_chunks::<2>().0.iter().zip(reference) {
        let margin = beta * ((sums[0] - chosen) - (sums[1] - rejected));
        // ln(1 + e^-m) without overflow, and its derivative -1 / (1 + e^m).
        result.loss += ((-margin.abs()).exp().ln_1p() + (-margin).max(0.0)) / n;
        result.margin += margin / n;
        result.accuracy += f64::from(u8::from(margin > 0.0)) / n;
        result.preferred += f64::from(u8::from(sums[0] > sums[1])) / n;
        let slope = beta / (1.0 + margin.exp()) / n;
        coefficients.extend([-slope, slope]);
    }
    (result, coefficients)
}

/// Both answers of each pair.
fn sequences<'a>(pairs: &[&'a Preference]) -> Vec<&'a Sequence> {
    pairs.iter().flat_map(|pair| [&pair.chosen, &pair.rejected]).collect()
}
