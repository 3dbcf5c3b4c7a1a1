//! Ratings of responses.

use crate::error::{Error, Result};

/// Rating of a response: finite, in [-1, 1].
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
#[cfg_attr(feature = "store", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "store", serde(try_from = "f32", into = "f32"))]
pub struct Rating(f32);

impl Rating {
    /// Checks a rating.
    ///
    /// # Errors
    /// [`Error::Rating`] for NaN and values outside [-1, 1].
    pub fn new(value: f32) -> Result<Self> {
        if (-1.0..=1.0).contains(&value) { Ok(Self(value)) } else { Err(Error::Rating { value }) }
    }

    /// Value in [-1, 1].
    pub fn value(self) -> f32 {
        self.0
    }
}

impl TryFrom<f32> for Rating {
    type Error = Error;

    fn try_from(value: f32) -> Result<Self> {
        Self::new(value)
    }
}

impl From<Rating> for f32 {
    fn from(rating: Rating) -> Self {
        rating.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratings_outside_their_range_are_refused() {
        for value in [-1.0, -0.0, 0.25, 1.0] {
            assert_eq!(Rating::new(value).expect("in range").value(), value);
        }
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.000_001, -1.000_001, 100.0] {
            assert!(matches!(Rating::new(value), Err(Error::Rating { .. })), "{value}");
        }
    }
}
