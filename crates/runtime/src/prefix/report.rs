//! Failures of prefix files: counted and kept as warnings, because they fail no request.

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

/// Maximum number of warnings kept until they are taken; further ones are only counted.
const MOST_WARNINGS: usize = 64;

/// Counter and warnings of failures.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    failures: AtomicU64,
    warnings: Mutex<Vec<String>>,
}

impl Reports {
    /// Adds an error with its sources, in one line.
    pub(crate) fn add_error(&self, error: &dyn Error) {
        let causes = std::iter::successors(error.source(), |&error| error.source());
        self.add(causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}")));
    }

    /// Adds a failure.
    pub(crate) fn add(&self, text: String) {
        self.failures.fetch_add(1, Relaxed);
        let mut warnings = self.warnings.lock();
        if warnings.len() < MOST_WARNINGS {
            warnings.push(text);
        }
    }

    /// Number of failures so far.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Relaxed)
    }

    /// Takes the warnings since the last call.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.warnings.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_takes_is_counted_and_bounded() {
        let reports = Reports::default();
        (0..100).for_each(|i| reports.add(format!("failure {i}")));
        let warnings = reports.take();
        assert_eq!((warnings.len(), reports.failures()), (64, 100));
        assert_eq!((warnings[0].as_str(), warnings[63].as_str()), ("failure 0", "failure 63"));
        reports.add_error(&std::io::Error::other("the disk is full"));
        assert_eq!(reports.take(), ["the disk is full"]);
        assert!(reports.take().is_empty());
    }
}
