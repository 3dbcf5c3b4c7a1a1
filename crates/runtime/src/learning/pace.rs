//! Turns of lessons, which leave most of the time to requests that run.

use std::thread::sleep;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Time after which a waiting lesson looks again for requests.
const LOOK: Duration = Duration::from_millis(5);

/// Turns of the lessons of an engine, whatever adapter they teach: one at a time.
#[derive(Debug)]
pub(crate) struct LessonTurns {
    /// End of the rest that follows the last lesson.
    rested: Mutex<Instant>,
}

impl Default for LessonTurns {
    fn default() -> Self {
        Self { rested: Mutex::new(Instant::now()) }
    }
}

impl LessonTurns {
    /// Runs a lesson in its turn. As long as requests run, lessons take at most this share of the
    /// time, above 0 to 1: each rests first for what the one before it took.
    pub(super) fn run<T>(&self, share: f64, is_busy: impl Fn() -> bool, lesson: impl FnOnce() -> T) -> T {
        let mut rested = self.rested.lock();
        wait_until(*rested, is_busy);
        let begun = Instant::now();
        let result = lesson();
        *rested = end_of_rest(share, begun.elapsed());
        result
    }

    /// Rests behind a piece of work of this time that is no lesson: both take the share, each of
    /// its own.
    pub(super) fn rest(share: f64, is_busy: impl Fn() -> bool, worked: Duration) {
        wait_until(end_of_rest(share, worked), is_busy);
    }
}

/// Waits for a moment, at most as long as requests run.
fn wait_until(end: Instant, is_busy: impl Fn() -> bool) {
    while is_busy() {
        let rest = end.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            return;
        }
        sleep(rest.min(LOOK));
    }
}

/// End of a rest that begins now, behind work of this time.
fn end_of_rest(share: f64, worked: Duration) -> Instant {
    let now = Instant::now();
    let rest = Duration::try_from_secs_f64(worked.as_secs_f64() * (1.0 / share - 1.0));
    // A share so small that the time is none has work where no request runs.
    let end = rest.ok().and_then(|rest| now.checked_add(rest));
    end.unwrap_or(now + Duration::from_secs(u64::from(u32::MAX)))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn lessons_rest_while_requests_run() {
        let (turns, time) = (LessonTurns::default(), Duration::from_millis(10));
        let begun = Instant::now();
        (0..4).for_each(|_| turns.run(0.25, || true, || sleep(time)));
        // Four lessons, and three rests of three times as long.
        assert!(begun.elapsed() >= 13 * time);
    }

    #[test]
    fn lessons_wait_for_nobody_without_requests() {
        let turns = LessonTurns::default();
        for share in [1e-9, f64::MIN_POSITIVE] {
            turns.run(share, || false, || sleep(Duration::from_millis(1)));
        }
        // Its rest would last for days; the requests end before.
        let looks = Cell::new(0);
        let is_busy = || looks.replace(looks.get() + 1) < 3;
        assert_eq!(turns.run(1.0, is_busy, || "learned"), "learned");
        assert_eq!(looks.get(), 4);
    }
}
