//! Cost model of the prefix cache: read a prefix from its files or recompute it.
//!
//! Two measured rates: bytes read per second, verification included, and tokens per second of
//! prefill. Reading wins if `bytes / read_rate <= tokens / prefill_rate`, and until both rates are
//! known, because a first read measures them.

use std::time::Duration;

use parking_lot::Mutex;

/// Weight of a new measurement in the running mean.
const WEIGHT: f64 = 0.25;

/// Factor on the read rate each time recomputing was chosen, so that a folder that was slow once
/// (cold page cache) is tried again.
const FORGIVENESS: f64 = 1.05;

/// Measured rates of reading prefixes and of prefill, as running means.
#[derive(Debug, Default)]
pub(super) struct ReuseCost(Mutex<Rates>);

#[derive(Debug, Default)]
struct Rates {
    /// Bytes per second.
    read: Option<f64>,
    /// Tokens per second.
    prefill: Option<f64>,
}

impl ReuseCost {
    /// Records a read of `bytes` bytes.
    pub(super) fn observe_read(&self, bytes: u64, time: Duration) {
        add(&mut self.0.lock().read, bytes as f64, time);
    }

    /// Records a prefill of `tokens` tokens.
    pub(super) fn observe_prefill(&self, tokens: usize, time: Duration) {
        add(&mut self.0.lock().prefill, tokens as f64, time);
    }

    /// True if reading `bytes` bytes takes no longer than recomputing their `tokens` tokens, and
    /// until both rates are measured.
    pub(super) fn reading_is_quicker(&self, bytes: u64, tokens: usize) -> bool {
        let Rates { read: Some(read), prefill: Some(prefill) } = *self.0.lock() else { return true };
        bytes as f64 / read <= tokens as f64 / prefill
    }

    /// Cost of restoring a MiB of such blocks, in units of the prefill time of one token; the pool
    /// orders evictions by it. In this unit noise of the prefill rate does not reorder blocks; the
    /// cost of reading is rounded up to a power of two for the same reason.
    pub(super) fn of_mib(&self, bytes: usize, tokens: usize, has_files: bool) -> u64 {
        let computing = ((tokens << 20) / bytes.max(1)) as u64;
        match *self.0.lock() {
            Rates { read: Some(read), prefill: Some(prefill) } if has_files => {
                let reading = ((1 << 20) as f64 / read * prefill) as u64;
                computing.min(reading.next_power_of_two())
            }
            _ => computing,
        }
    }

    /// Raises the read rate slightly after a recompute: see [`FORGIVENESS`].
    pub(super) fn forgive_reading(&self) {
        if let Some(read) = &mut self.0.lock().read {
            *read *= FORGIVENESS;
        }
    }
}

/// Adds the rate `amount / time` to a running mean.
fn add(mean: &mut Option<f64>, amount: f64, time: Duration) {
    let rate = amount / time.as_secs_f64().max(1e-9);
    *mean = Some(mean.map_or(rate, |mean| mean + WEIGHT * (rate - mean)));
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_quicker_way_is_chosen() {
        let cost = ReuseCost::default();
        assert!(cost.reading_is_quicker(u64::MAX, 1), "nothing is known yet");
        cost.observe_read(100 << 20, SECOND);
        assert!(cost.reading_is_quicker(u64::MAX, 1), "nothing to compare with");
        cost.observe_prefill(1000, SECOND);
        // 32 tokens take 32 ms to compute, and 3.2 MiB as long to read.
        assert!(cost.reading_is_quicker(3 << 20, 32));
        assert!(!cost.reading_is_quicker(4 << 20, 32));
        assert!(cost.reading_is_quicker(4 << 20, 64), "twice the tokens in as many bytes");
    }

    #[test]
    fn a_mib_costs_what_the_quicker_way_takes() {
        let cost = ReuseCost::default();
        // 32 tokens in half a MiB: 64 tokens to compute for a MiB.
        assert_eq!(cost.of_mib(512 << 10, 32, true), 64);
        cost.observe_prefill(1000, SECOND);
        cost.observe_read(100 << 20, SECOND);
        // Read in the time of 10 tokens.
        assert_eq!((cost.of_mib(512 << 10, 32, true), cost.of_mib(512 << 10, 32, false)), (16, 64));
        assert_eq!(cost.of_mib(8 << 20, 32, true), 4, "large blocks are computed");
    }

    #[test]
    fn the_rates_follow_what_is_measured() {
        let cost = ReuseCost::default();
        cost.observe_prefill(1000, SECOND);
        cost.observe_read(1 << 20, SECOND);
        assert!(!cost.reading_is_quicker(2 << 20, 1000));
        (0..20).for_each(|_| cost.observe_read(100 << 20, SECOND));
        assert!(cost.reading_is_quicker(2 << 20, 1000));
        (0..20).for_each(|_| cost.observe_prefill(1_000_000, SECOND));
        assert!(!cost.reading_is_quicker(2 << 20, 1000));
    }

    #[test]
    fn reading_is_tried_again_after_a_while() {
        let cost = ReuseCost::default();
        cost.observe_prefill(1000, SECOND);
        cost.observe_read(1 << 20, SECOND);
        let refusals = (0..1000).take_while(|_| {
            let refused = !cost.reading_is_quicker(2 << 20, 1000);
            cost.forgive_reading();
            refused
        });
        // 1.05^15 is the first power above two.
        assert_eq!(refusals.count(), 15);
    }
}
