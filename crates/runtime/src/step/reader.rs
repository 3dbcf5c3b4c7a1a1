//! Times at which the reader of a request is woken.
//!
//! A reader that is woken takes a core from the threads that compute: two context switches per
//! token. Where a step takes a few hundred microseconds, as with the smallest models, that is much
//! of it, so their text is handed over in intervals. The first piece is handed over at once, and
//! with steps of half the interval or more each piece is.

use std::time::{Duration, Instant};

/// Longest time that text waits beyond the step it was generated in (ADR-0071).
const INTERVAL: Duration = Duration::from_millis(1);

/// State of the reader of one request, as the step loop knows it.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// Time of the last wake-up.
    woken: Option<Instant>,
    /// True if text is there that the reader was not woken for.
    has_text: bool,
}

impl Reader {
    /// Notes that text is there. True if the reader is to be woken at once: the first time.
    pub(super) fn has_first_text(&mut self) -> bool {
        self.has_text = true;
        self.woken.is_none()
    }

    /// True if text is there that the reader was not woken for.
    pub(super) fn has_text(&self) -> bool {
        self.has_text
    }

    /// Notes that the reader is woken.
    pub(super) fn wake(&mut self, now: Instant) {
        (self.woken, self.has_text) = (Some(now), false);
    }

    /// True if the text that is there would wait too long until the end of the next step, which is
    /// expected to take so long; `None` if that is unknown.
    pub(super) fn is_due(&self, now: Instant, next_step: Option<Duration>) -> bool {
        let in_time = |woken: Instant| {
            next_step.is_some_and(|step| now.saturating_duration_since(woken).saturating_add(step) < INTERVAL)
        };
        self.has_text && !self.woken.is_some_and(in_time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wake-ups, in steps after the first, of a reader whose request gets text in every step of the
    /// given duration.
    fn wakes(step: Duration, steps: u32) -> Vec<u32> {
        let (start, mut reader) = (Instant::now(), Reader::default());
        assert!(reader.has_first_text());
        reader.wake(start);
        let mut wakes = Vec::new();
        for index in 1..=steps {
            let now = start + step * index;
            assert!(!reader.has_first_text(), "only the first text is handed over at once");
            if reader.is_due(now, Some(step)) {
                reader.wake(now);
                wakes.push(index);
            }
        }
        wakes
    }

    #[test]
    fn short_steps_share_a_wake_up_and_long_ones_have_their_own() {
        assert_eq!(wakes(Duration::from_micros(100), 30), [9, 18, 27]);
        assert_eq!(wakes(Duration::from_micros(400), 8), [2, 4, 6, 8]);
        assert_eq!(wakes(Duration::from_micros(500), 4), [1, 2, 3, 4]);
        assert_eq!(wakes(Duration::from_secs(1), 3), [1, 2, 3]);
    }

    #[test]
    fn text_does_not_wait_for_a_long_or_unknown_step() {
        let (now, mut reader) = (Instant::now(), Reader::default());
        assert!(!reader.is_due(now, None), "there is no text");
        assert!(reader.has_first_text());
        reader.wake(now);
        assert!(!reader.has_first_text());
        assert!(!reader.is_due(now, Some(Duration::from_micros(100))));
        assert!(reader.is_due(now, Some(Duration::from_millis(100))), "a prompt is next");
        assert!(reader.is_due(now, None));
    }
}
