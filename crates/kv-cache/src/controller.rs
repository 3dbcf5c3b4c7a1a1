//! Quality controller: sizes the hot tier by the error that migration would add.

use std::ops::RangeInclusive;

use crate::error::{Error, Result};

/// Weight of a new observation in the running estimate: an outlier moves it by an eighth.
const WEIGHT: f32 = 0.125;

/// First bytes of a saved state, with its version.
const MAGIC: [u8; 4] = *b"kvc1";

/// Bytes of a saved state: magic, target, estimate, then three counts.
const STATE_BYTES: usize = 4 + 2 * 4 + 3 * 8;

/// Chooses how many tokens stay hot, so that the error of attention's output stays at a target.
///
/// It observes the errors that [`Sequence::sample`](crate::Sequence::sample) estimates; its result
/// goes to [`Sequence::set_hot_tokens`](crate::Sequence::set_hot_tokens). The number of hot tokens
/// rises by a quarter while the estimate is above the target and falls by a tenth while it is below
/// half of it.
///
/// # Examples
/// ```
/// use ruvllm_kv_cache::Controller;
///
/// let mut controller = Controller::new(0.02, 256..=4096);
/// (0..10).for_each(|_| controller.observe(0.1));
/// assert!(controller.hot_tokens() > 256);
/// let restored = Controller::from_bytes(&controller.to_bytes())?;
/// assert_eq!(restored, controller);
/// # Ok::<(), ruvllm_kv_cache::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Controller {
    target: f32,
    /// Running mean of the errors; negative before the first.
    estimate: f32,
    least: usize,
    most: usize,
    hot_tokens: usize,
}

impl Controller {
    /// A controller for a relative error of `target`, within `hot_tokens`; it begins at the lower
    /// end.
    pub fn new(target: f32, hot_tokens: RangeInclusive<usize>) -> Self {
        let (least, most) = hot_tokens.into_inner();
        Self { target, estimate: -1.0, least, most: most.max(least), hot_tokens: least }
    }

    /// Adds a measured error. One that is not finite counts as 1.
    pub fn observe(&mut self, error: f32) {
        let error = if error.is_finite() { error.max(0.0) } else { 1.0 };
        self.estimate = match self.estimate() {
            Some(estimate) => estimate + WEIGHT * (error - estimate),
            None => error,
        };
        if self.estimate > self.target {
            self.hot_tokens = self.hot_tokens.saturating_add(self.hot_tokens / 4 + 1);
        } else if self.estimate < self.target / 2.0 {
            self.hot_tokens -= self.hot_tokens / 10;
        }
        self.hot_tokens = self.hot_tokens.clamp(self.least, self.most);
    }

    /// Takes over the estimate and hot tokens of another sequence's controller, within its own
    /// range; without effect for another target.
    pub fn resume(&mut self, learned: &Self) {
        if learned.target == self.target {
            self.estimate = learned.estimate;
            self.hot_tokens = learned.hot_tokens.clamp(self.least, self.most);
        }
    }

    /// Lowers the hot tokens by a tenth, as an error far below the target does. For sequences that
    /// stayed shorter than the hot tokens and measured nothing: these would never fall otherwise.
    pub fn relax(&mut self) {
        self.hot_tokens = (self.hot_tokens - self.hot_tokens / 10).max(self.least);
    }

    /// Target relative error.
    pub fn target(&self) -> f32 {
        self.target
    }

    /// Running estimate of the error; `None` before the first observation.
    pub fn estimate(&self) -> Option<f32> {
        (self.estimate >= 0.0).then_some(self.estimate)
    }

    /// Tokens at the end that should stay hot.
    pub fn hot_tokens(&self) -> usize {
        self.hot_tokens
    }

    /// Serialized state, for [`from_bytes`](Self::from_bytes).
    pub fn to_bytes(&self) -> [u8; STATE_BYTES] {
        let mut bytes = [0; STATE_BYTES];
        let counts = [self.least, self.most, self.hot_tokens];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&self.target.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.estimate.to_le_bytes());
        for (place, count) in bytes[12..].chunks_exact_mut(8).zip(counts) {
            place.copy_from_slice(&(count as u64).to_le_bytes());
        }
        bytes
    }

    /// A state from [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    /// [`Error::ControllerState`] if the bytes are something else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let bytes: &[u8; STATE_BYTES] = bytes.try_into().map_err(|_| Error::ControllerState)?;
        let (numbers, counts) = bytes.split_at(12);
        let (numbers, _) = numbers.as_chunks::<4>();
        let (counts, _) = counts.as_chunks::<8>();
        let count = |index: usize| usize::try_from(u64::from_le_bytes(counts[index])).ok();
        let (Some(least), Some(most), Some(hot_tokens)) = (count(0), count(1), count(2)) else {
            return Err(Error::ControllerState);
        };
        let (target, estimate) = (f32::from_le_bytes(numbers[1]), f32::from_le_bytes(numbers[2]));
        let valid = numbers[0] == MAGIC
            && (least..=most).contains(&hot_tokens)
            && (0.0..f32::INFINITY).contains(&target)
            && (-1.0..f32::INFINITY).contains(&estimate);
        if valid {
            Ok(Self { target, estimate, least, most, hot_tokens })
        } else {
            Err(Error::ControllerState)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs against something whose error falls as more tokens stay hot.
    fn settle(controller: &mut Controller, error: impl Fn(usize) -> f32, steps: usize) {
        for _ in 0..steps {
            controller.observe(error(controller.hot_tokens()));
        }
    }

    #[test]
    fn the_border_settles_where_the_error_is_at_the_target() {
        let error = |hot: usize| 10.0 / hot as f32;
        let mut controller = Controller::new(0.02, 64..=100_000);
        settle(&mut controller, error, 500);
        let found = error(controller.hot_tokens());
        assert!((0.005..=0.02).contains(&found), "an error of {found} at {} tokens", controller.hot_tokens());
        // A gentler text: fewer hot tokens do.
        let before = controller.hot_tokens();
        settle(&mut controller, |hot| 1.0 / hot as f32, 500);
        assert!(controller.hot_tokens() < before);
    }

    #[test]
    fn the_border_stays_within_its_range() {
        let mut controller = Controller::new(0.02, 64..=512);
        settle(&mut controller, |_| f32::NAN, 100);
        assert_eq!(controller.hot_tokens(), 512);
        settle(&mut controller, |_| 0.0, 500);
        assert_eq!(controller.hot_tokens(), 64);
    }

    #[test]
    fn another_sequence_goes_on_within_its_own_range() {
        let mut learned = Controller::new(0.02, 64..=4096);
        settle(&mut learned, |_| 0.5, 20);
        assert!(learned.hot_tokens() > 1000, "{learned:?}");
        let resumed = |target, range| {
            let mut controller = Controller::new(target, range);
            controller.resume(&learned);
            (controller.hot_tokens(), controller.estimate())
        };
        assert_eq!(resumed(0.02, 64..=8192), (learned.hot_tokens(), Some(0.5)));
        assert_eq!(resumed(0.02, 64..=100), (100, Some(0.5)));
        assert_eq!(resumed(0.01, 64..=8192), (64, None), "another target");
        let before = learned.hot_tokens();
        learned.relax();
        assert_eq!(learned.hot_tokens(), before - before / 10);
        (0..100).for_each(|_| learned.relax());
        // A tenth of less than ten is nothing, and 64 is the least.
        assert_eq!(learned.hot_tokens(), 64);
    }

    #[test]
    fn a_state_comes_back_and_other_bytes_are_refused() {
        let mut controller = Controller::new(0.02, 64..=512);
        assert_eq!(Controller::from_bytes(&controller.to_bytes()).ok().as_ref(), Some(&controller));
        settle(&mut controller, |_| 0.5, 3);
        let bytes = controller.to_bytes();
        assert_eq!(Controller::from_bytes(&bytes).ok().as_ref(), Some(&controller));
        for at in [0, 3, 7, 11, 19, 35] {
            let mut damaged = bytes;
            damaged[at] ^= 0xff;
            assert!(matches!(Controller::from_bytes(&damaged), Err(Error::ControllerState)), "byte {at}");
        }
        assert!(Controller::from_bytes(&bytes[1..]).is_err());
        assert!(Controller::from_bytes(&[]).is_err());
    }
}
