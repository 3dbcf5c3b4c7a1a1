//! Cost model of the prefix cache: read a prefix from its files, take it from another engine, or
//! recompute it.
//!
//! Three measured rates: bytes read per second, verification included, bytes received per second
//! likewise, and tokens per second of prefill. Reading wins if `bytes / read_rate <= tokens /
//! prefill_rate`, and until both rates are known, because a first read measures them; so do
//! transfers.

use std::time::Duration;

use parking_lot::Mutex;

/// Weight of a new measurement in the running mean.
const WEIGHT: f64 = 0.25;

/// Factor on the read rate each time recomputing was chosen. A folder that was slow once (cold page
/// cache) is tried again.
const FORGIVENESS: f64 = 1.05;

/// Measured rates of reading prefixes and of prefill, as running means.
#[derive(Debug, Default)]
pub(super) struct ReuseCost(Mutex<Rates>);

#[derive(Debug, Default)]
struct Rates {
    /// Bytes per second.
    read: Option<f64>,
    /// Bytes per second.
    transfer: Option<f64>,
    /// Tokens per second.
    prefill: Option<f64>,
}

impl ReuseCost {
    /// Records a read of `bytes` bytes.
    pub(super) fn observe_read(&self, bytes: u64, time: Duration) {
        add(&mut self.0.lock().read, bytes as f64, time);
    }

    /// Records a transfer of `bytes` bytes from another engine.
    pub(super) fn observe_transfer(&self, bytes: u64, time: Duration) {
        add(&mut self.0.lock().transfer, bytes as f64, time);
    }

    /// Records a prefill of `tokens` tokens.
    pub(super) fn observe_prefill(&self, tokens: usize, time: Duration) {
        add(&mut self.0.lock().prefill, tokens as f64, time);
    }

    /// True if reading `bytes` bytes takes no longer than recomputing their `tokens` tokens. Also
    /// true until both rates are measured.
    pub(super) fn reading_is_quicker(&self, bytes: u64, tokens: usize) -> bool {
        let Rates { read, prefill, .. } = *self.0.lock();
        is_quicker(bytes, read, tokens, prefill)
    }

    /// As [`reading_is_quicker`](Self::reading_is_quicker), for a transfer.
    pub(super) fn transfer_is_quicker(&self, bytes: u64, tokens: usize) -> bool {
        let Rates { transfer, prefill, .. } = *self.0.lock();
        is_quicker(bytes, transfer, tokens, prefill)
    }

    /// Estimated seconds of a transfer of `bytes` bytes and of a prefill of `tokens` tokens, where
    /// their rates are measured.
    pub(super) fn estimates(&self, bytes: u64, tokens: usize) -> (Option<f64>, Option<f64>) {
        let Rates { transfer, prefill, .. } = *self.0.lock();
        (transfer.map(|rate| bytes as f64 / rate), prefill.map(|rate| tokens as f64 / rate))
    }

    /// Cost of restoring a MiB of such blocks, in units of the prefill time of one token; the pool
    /// orders evictions by it. In this unit noise of the prefill rate does not reorder blocks; the
    /// cost of reading is rounded up to a power of two for the same reason.
    pub(super) fn of_mib(&self, bytes: usize, tokens: usize, has_files: bool) -> u64 {
        let computing = ((tokens << 20) / bytes.max(1)) as u64;
        match *self.0.lock() {
            Rates { read: Some(read), prefill: Some(prefill), .. } if has_files => {
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

    /// As [`forgive_reading`](Self::forgive_reading), for transfers.
    pub(super) fn forgive_transfer(&self) {
        if let Some(transfer) = &mut self.0.lock().transfer {
            *transfer *= FORGIVENESS;
        }
    }
}

/// True if moving `bytes` bytes takes no longer than computing `tokens` tokens, or a rate is
/// unknown.
fn is_quicker(bytes: u64, rate: Option<f64>, tokens: usize, prefill: Option<f64>) -> bool {
    rate.zip(prefill).is_none_or(|(rate, prefill)| bytes as f64 / rate <= tokens as f64 / prefill)
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
    fn transfers_have_a_rate_of_their_own() {
        let cost = ReuseCost::default();
        cost.observe_prefill(1000, SECOND);
        cost.observe_read(1, SECOND);
        assert!(cost.transfer_is_quicker(u64::MAX, 1), "no transfer is known yet");
        assert_eq!(cost.estimates(1 << 20, 500), (None, Some(0.5)));
        cost.observe_transfer(1 << 20, SECOND);
        assert_eq!(cost.estimates(2 << 20, 500), (Some(2.0), Some(0.5)));
        assert!(cost.transfer_is_quicker(1 << 20, 1000) && !cost.transfer_is_quicker(2 << 20, 1000));
        // 1.05^15 is the first power above two.
        (0..15).for_each(|_| cost.forgive_transfer());
        assert!(cost.transfer_is_quicker(2 << 20, 1000) && !cost.reading_is_quicker(2, 1000));
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
