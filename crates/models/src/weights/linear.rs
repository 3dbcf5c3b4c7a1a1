//! Loading of projections, alone or several in one tensor.

use super::Linear;
use super::source::{MatrixRows, TensorSource};
use crate::error::Result;

pub(super) fn linear(source: &mut TensorSource<'_>, name: &str, rows: usize, cols: usize) -> Result<Linear> {
    Ok(Linear {
        weights: source.matrix(&format!("{name}.weight"), rows, cols)?,
        bias: source.optional_vector(&format!("{name}.bias"), rows)?,
    })
}

/// Several projections of one input in one tensor, the outputs of one below those of the other.
pub(crate) struct Joint {
    weights: MatrixRows,
    bias: Option<Vec<f32>>,
}

impl Joint {
    pub(crate) fn load(source: &mut TensorSource<'_>, name: &str, rows: usize, cols: usize) -> Result<Self> {
        Ok(Self {
            weights: source.matrix_rows(&format!("{name}.weight"), rows, cols)?,
            bias: source.optional_vector(&format!("{name}.bias"), rows)?,
        })
    }

    /// The projection to the next `rows` outputs.
    pub(crate) fn next(&mut self, rows: usize) -> Result<Linear> {
        let bias = self.bias.as_mut().map(|bias| bias.drain(..rows).collect());
        Ok(Linear { weights: self.weights.next(rows)?, bias })
    }
}
