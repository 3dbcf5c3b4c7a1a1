//! Head of a decoder that ranks documents.

use super::source::TensorSource;
use crate::error::Result;
use crate::ranking::SCORES;

/// Head of a decoder that ranks documents: the output rows of the answers `yes` and `no`.
#[derive(Debug)]
pub struct RankHead {
    /// `[2, model_dim]`.
    rows: Vec<f32>,
    /// `[2]`.
    bias: [f32; 2],
}

impl RankHead {
    /// Loads the head if the file has one.
    ///
    /// # Errors
    /// A tensor of another shape, such as one of a classifier with more labels.
    pub(crate) fn load(source: &mut TensorSource<'_>, model_dim: usize) -> Result<Option<Self>> {
        if !source.has(SCORES) {
            return Ok(None);
        }
        let rows = source.values(SCORES, &[model_dim, 2])?;
        let bias = source.optional_vector("cls.output.bias", 2)?;
        Ok(Some(Self { rows, bias: bias.map_or([0.0; 2], |bias| [bias[0], bias[1]]) }))
    }

    /// Logit of `yes` less that of `no` for the final hidden state of the last token,
    /// `[model_dim]`: the logit of the probability of `yes` among the two. Sums are f64 in order.
    pub fn logit(&self, state: &[f32]) -> f32 {
        let (yes, no) = self.rows.split_at(self.rows.len() / 2);
        let product = |row: &[f32]| -> f64 {
            row.iter().zip(state).map(|(&weight, &value)| f64::from(weight) * f64::from(value)).sum()
        };
        let [of_yes, of_no] = self.bias.map(f64::from);
        (product(yes) + of_yes - product(no) - of_no) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_are_differences_with_biases() {
        let head = RankHead { rows: vec![1.0, 2.0, 0.5, -1.0], bias: [0.25, 1.0] };
        assert_eq!(head.logit(&[2.0, 3.0]), (2.0 + 6.0 + 0.25) - (1.0 - 3.0 + 1.0));
    }
}
