//! Importance of the values of a quant block: weights of their squared errors.

/// Weights of the values of a quant block; all equal without an importance matrix.
#[derive(Clone, Copy)]
pub(crate) struct Importance<'a>(Option<&'a [f32]>);

/// Smallest weight, relative to the mean of the quant block: no value is free.
const LEAST: f32 = 1e-4;

impl<'a> Importance<'a> {
    /// Equal weights.
    pub(super) const EQUAL: Self = Self(None);

    /// Weights of one quant block relative to their mean, written to `to`; equal ones if they have
    /// no positive finite mean.
    pub(super) fn relative(weights: &[f32], to: &'a mut [f32]) -> Self {
        let mean = weights.iter().sum::<f32>() / weights.len() as f32;
        if !(mean.is_finite() && mean > 0.0) {
            return Self::EQUAL;
        }
        for (to, &w) in to.iter_mut().zip(weights) {
            *to = (w / mean).max(LEAST);
        }
        Self(Some(to))
    }

    /// True if the weights differ.
    pub(super) fn is_given(self) -> bool {
        self.0.is_some()
    }

    /// Weights of group `g` of `LEN` values.
    #[inline(always)]
    pub(super) fn group<const LEN: usize>(self, g: usize) -> [f32; LEN] {
        match self.0.and_then(|weights| weights.as_chunks::<LEN>().0.get(g)) {
            Some(group) => *group,
            None => [1.0; LEN],
        }
    }
}
