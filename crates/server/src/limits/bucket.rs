//! Token bucket over time that the caller passes.

use std::time::{Duration, Instant};

/// A bucket that holds one minute's worth and refills evenly.
#[derive(Debug, Clone)]
pub(super) struct Bucket {
    per_minute: f64,
    level: f64,
    at: Instant,
}

impl Bucket {
    /// A full bucket.
    pub(super) fn new(per_minute: u32, now: Instant) -> Self {
        Self { per_minute: f64::from(per_minute), level: f64::from(per_minute), at: now }
    }

    /// Changes the size and the rate; what has been used stays used.
    pub(super) fn resize(&mut self, per_minute: u32, now: Instant) {
        self.refill(now);
        let used = self.per_minute - self.level;
        self.per_minute = f64::from(per_minute);
        self.level = self.per_minute - used;
    }

    /// Refills up to `now`. A time before the last one changes nothing.
    fn refill(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.at).as_secs_f64();
        self.level = (self.level + elapsed * self.per_minute / 60.0).min(self.per_minute);
        self.at = self.at.max(now);
    }

    /// Time until `wanted` are there; zero if they are.
    pub(super) fn wait(&mut self, wanted: f64, now: Instant) -> Duration {
        self.refill(now);
        self.time_to(wanted)
    }

    /// Takes `count`, which may leave less than nothing.
    pub(super) fn take(&mut self, count: f64, now: Instant) {
        self.refill(now);
        self.level -= count;
    }

    /// State for the headers of a response.
    pub(super) fn state(&mut self, now: Instant) -> BucketState {
        self.refill(now);
        BucketState {
            limit: self.per_minute as u64,
            remaining: self.level.max(0.0) as u64,
            reset: self.time_to(self.per_minute),
        }
    }

    fn time_to(&self, wanted: f64) -> Duration {
        // A year is below what `Instant` and `Duration` can add.
        let seconds = (wanted - self.level).max(0.0) * 60.0 / self.per_minute;
        Duration::from_secs_f64(seconds.min(31_536_000.0))
    }
}

/// State of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BucketState {
    /// Size of the bucket, which is the limit per minute.
    pub(crate) limit: u64,
    /// Content of the bucket.
    pub(crate) remaining: u64,
    /// Time until it is full.
    pub(crate) reset: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_refills_evenly() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut bucket = Bucket::new(60, start);
        bucket.take(60.0, start);
        assert_eq!(bucket.wait(1.0, start), Duration::from_secs(1));
        assert_eq!(bucket.wait(1.0, after(1)), Duration::ZERO);
        let state = bucket.state(after(10));
        assert_eq!((state.limit, state.remaining, state.reset), (60, 10, Duration::from_secs(50)));
        assert_eq!(bucket.state(after(1000)).remaining, 60);
    }

    #[test]
    fn a_clock_that_goes_back_gives_nothing() {
        let start = Instant::now() + Duration::from_secs(100);
        let mut bucket = Bucket::new(60, start);
        bucket.take(60.0, start);
        assert_eq!(bucket.state(start - Duration::from_secs(50)).remaining, 0);
        assert_eq!(bucket.state(start + Duration::from_secs(5)).remaining, 5);
    }

    #[test]
    fn debts_are_paid_before_the_next_and_sizes_change() {
        let start = Instant::now();
        let mut bucket = Bucket::new(60, start);
        bucket.take(120.0, start);
        assert_eq!(bucket.wait(1.0, start), Duration::from_secs(61));
        bucket.resize(600, start);
        assert_eq!(bucket.state(start).remaining, 480);
        bucket.resize(60, start);
        assert_eq!(bucket.state(start).remaining, 0);
    }
}
