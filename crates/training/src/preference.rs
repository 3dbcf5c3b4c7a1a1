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
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PreferenceLoss {
    /// Mean loss per pair, in nats.
    pub loss: f64,
    /// Mean of `beta` times the difference of log-ratios.
    pub margin: f64,
    /// Share of pairs whose margin is positive.
    pub accuracy: f64,
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
    if pairs.is_empty() {
        return Err(Error::NothingScored { what: "the pairs" });
    }
    if reference.len() != pairs.len() {
        return Err(Error::Length { what: "the reference", expected: pairs.len(), found: reference.len() });
    }
    let mut pass = backprop.forward(lora, &sequences(pairs))?;
    let probabilities = pass.log_probabilities();
    let n = pairs.len() as f64;
    let mut result = PreferenceLoss { loss: 0.0, margin: 0.0, accuracy: 0.0 };
    let mut coefficients = Vec::with_capacity(2 * pairs.len());
    for (sums, [chosen, rejected]) in probabilities.sums().as_chunks::<2>().0.iter().zip(reference) {
        let margin = beta * ((sums[0] - chosen) - (sums[1] - rejected));
        // ln(1 + e^-m) without overflow, and its derivative -1 / (1 + e^m).
        result.loss += ((-margin.abs()).exp().ln_1p() + (-margin).max(0.0)) / n;
        result.margin += margin / n;
        result.accuracy += f64::from(u8::from(margin > 0.0)) / n;
        let slope = beta / (1.0 + margin.exp()) / n;
        coefficients.extend([-slope, slope]);
    }
    pass.backward(&probabilities.spread(&coefficients)?, gradients)?;
    Ok(result)
}

/// Both answers of each pair.
fn sequences<'a>(pairs: &[&'a Preference]) -> Vec<&'a Sequence> {
    pairs.iter().flat_map(|pair| [&pair.chosen, &pair.rejected]).collect()
}
