//! Target error of a policy.

use std::fmt;
use std::num::NonZeroU32;

/// Steps of an error of 1.
const STEPS: f64 = 1e6;

/// A relative error of attention's output above 0 and at most 1, in steps of a millionth: policies
/// can then be compared, and their text says exactly what they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ErrorTarget(NonZeroU32);

impl ErrorTarget {
    /// The nearest step to `error`; `None` for what is not above 0 (nearer to the first step than
    /// to it) and at most 1.
    pub fn new(error: f64) -> Option<Self> {
        // A NaN is in no range, and 10^6 fits.
        let steps = (0.0..=1.0).contains(&error).then(|| (error * STEPS).round() as u32);
        steps.and_then(NonZeroU32::new).map(Self)
    }

    /// The error.
    pub fn get(self) -> f32 {
        (f64::from(self.0.get()) / STEPS) as f32
    }
}

impl fmt::Display for ErrorTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (f64::from(self.0.get()) / STEPS).fmt(f)
    }
}
