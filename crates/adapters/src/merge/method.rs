//! Merge methods and their parameters.

use crate::error::{Error, Result};

/// Formula that makes one delta per matrix of the deltas of the inputs.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Method {
    /// Task arithmetic: the sum of weighted deltas (Ilharco et al., arXiv 2212.04089). Exact as
    /// factors, whose ranks add up.
    Linear,
    /// Weighted mean, as of a model soup (Wortsman et al., arXiv 2203.05482): weights are divided
    /// by their sum.
    Average,
    /// Spherical interpolation of two deltas at `t` in 0..=1; weights are not used. Exact as
    /// factors.
    Slerp {
        /// Place between the first delta (0) and the second (1).
        t: f64,
    },
    /// Trim, elect sign, disjoint mean (Yadav et al., arXiv 2306.01708).
    Ties(Ties),
    /// Random entries are dropped and the rest rescaled, then summed (Yu et al., arXiv 2311.03099).
    DareLinear(Dare),
    /// DARE, then TIES.
    DareTies(Dare, Ties),
}

/// Parameters of TIES.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ties {
    /// Fraction of entries of each delta that are kept, those of largest magnitude; above 0, at
    /// most 1.
    pub density: f64,
    /// Factor of the result.
    pub lambda: f64,
}

/// Parameters of DARE.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dare {
    /// Probability that an entry is dropped; at least 0, below 1.
    pub p: f64,
    /// Seed of the masks.
    pub seed: u64,
}

impl Method {
    /// Name on the command line.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::Average => "average",
            Self::Slerp { .. } => "slerp",
            Self::Ties(_) => "ties",
            Self::DareLinear(_) => "dare-linear",
            Self::DareTies(..) => "dare-ties",
        }
    }

    /// True if the result is a sum of multiples of the deltas, so that factors can be joined.
    pub fn is_linear(&self) -> bool {
        matches!(self, Self::Linear | Self::Average | Self::Slerp { .. })
    }

    /// Checks the parameters and the weights of the inputs.
    pub(super) fn check(&self, weights: &[f64]) -> Result<()> {
        let (fits, needed) = match (self, weights.len()) {
            (Self::Slerp { .. }, found) => (found == 2, "exactly 2 adapters"),
            (_, found) => (found > 0, "at least 1 adapter"),
        };
        if !fits {
            return Err(Error::MergeInputs { method: self.name(), needed, found: weights.len() });
        }
        if let Some(&weight) = weights.iter().find(|weight| !weight.is_finite()) {
            return Err(parameter("weight", weight, "a finite number"));
        }
        match *self {
            Self::Linear => Ok(()),
            Self::Average => {
                let sum: f64 = weights.iter().sum();
                if sum.abs() < f64::EPSILON * weights.iter().map(|weight| weight.abs()).sum::<f64>()
                    || sum == 0.0
                {
                    return Err(parameter("sum of the weights", sum, "not 0"));
                }
                Ok(())
            }
            Self::Slerp { t } if (0.0..=1.0).contains(&t) => Ok(()),
            Self::Slerp { t } => Err(parameter("t", t, "0 to 1")),
            Self::Ties(ties) => ties.check(),
            Self::DareLinear(dare) => dare.check(),
            Self::DareTies(dare, ties) => dare.check().and_then(|()| ties.check()),
        }
    }
}

impl Ties {
    fn check(self) -> Result<()> {
        if !(self.density > 0.0 && self.density <= 1.0) {
            return Err(parameter("density", self.density, "above 0, at most 1"));
        }
        if !self.lambda.is_finite() {
            return Err(parameter("lambda", self.lambda, "a finite number"));
        }
        Ok(())
    }
}

impl Dare {
    fn check(self) -> Result<()> {
        if !(0.0..1.0).contains(&self.p) {
            return Err(parameter("p", self.p, "at least 0, below 1"));
        }
        Ok(())
    }
}

fn parameter(name: &'static str, found: f64, expected: &'static str) -> Error {
    Error::MergeParameter { name, found, expected }
}
