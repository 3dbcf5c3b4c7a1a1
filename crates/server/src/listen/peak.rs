//! Number of connections that have closed since most of them were open.

/// Closed connections whose memory is worth giving back: some 5 MB.
const WORTHWHILE: u64 = 256;

/// Largest number of connections since the last fall.
#[derive(Debug, Default)]
pub(crate) struct Peak(u64);

impl Peak {
    /// True if the number has fallen by 256 or more since its largest value; that value is then
    /// forgotten.
    pub(crate) fn has_fallen(&mut self, now: u64) -> bool {
        let falls = self.0.saturating_sub(now) >= WORTHWHILE;
        self.0 = if falls { now } else { self.0.max(now) };
        falls
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fall_counts_once_and_small_ones_add_up() {
        let mut peak = Peak::default();
        let falls: Vec<bool> = [0, 1000, 900, 745, 744, 500, 487, 2000, 3000, 0, 0]
            .into_iter()
            .map(|now| peak.has_fallen(now))
            .collect();
        let expected = [false, false, false, false, true, false, true, false, false, true, false];
        assert_eq!(falls, expected);
    }
}
