//! Figures of learning since a model was loaded, for metrics.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use ruvllm::crates::sona::RecorderStatus;

/// Results of feedback: those of its reply, and `refused` for an error in its place.
const RESULTS: [&str; 4] = ["learned", "outlier", "quarantined", "refused"];
/// Results of consolidations.
const CONSOLIDATED: [&str; 3] = ["accepted", "rejected", "skipped"];

/// Counters of a model's learning.
#[derive(Debug, Default)]
pub(crate) struct LearningCounters {
    lessons: [AtomicU64; RESULTS.len()],
    consolidations: [AtomicU64; CONSOLIDATED.len()],
    /// Adapters by tenant and name.
    adapters: Mutex<BTreeMap<(String, String), AdapterState>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct AdapterState {
    is_quarantined: bool,
    harm: Option<f64>,
}

/// Values of the counters.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LearningFigures {
    /// Feedback by result.
    pub(crate) lessons: [(&'static str, u64); RESULTS.len()],
    /// Consolidations by result.
    pub(crate) consolidations: [(&'static str, u64); CONSOLIDATED.len()],
    /// Requests that were stored for feedback.
    pub(crate) recorded: u64,
    /// Requests that were not, by cause.
    pub(crate) dropped: [(&'static str, u64); 6],
    /// Adapters of tenants that were seen, by standing.
    pub(crate) adapters: [(&'static str, u64); 2],
    /// Largest rise of the loss at ordinary text of an adapter, when each was last judged.
    pub(crate) harm: Option<f64>,
}

impl LearningCounters {
    /// Counts feedback by its result.
    pub(crate) fn count(&self, result: &str) {
        if let Some(index) = RESULTS.iter().position(|name| *name == result) {
            self.lessons[index].fetch_add(1, Relaxed);
        }
    }

    /// Counts a consolidation by its result.
    pub(crate) fn count_consolidation(&self, result: &str) {
        if let Some(index) = CONSOLIDATED.iter().position(|name| *name == result) {
            self.consolidations[index].fetch_add(1, Relaxed);
        }
    }

    /// Sets the standing of an adapter, and its harm if it was judged.
    pub(crate) fn set_adapter(&self, tenant: &str, name: &str, is_quarantined: bool, harm: Option<f64>) {
        let mut adapters = self.adapters.lock();
        let state = adapters.entry((tenant.to_owned(), name.to_owned())).or_default();
        *state = AdapterState { is_quarantined, harm: harm.or(state.harm) };
    }

    /// The values, with those of the recorder.
    pub(crate) fn read(&self, recorder: &RecorderStatus) -> LearningFigures {
        let lessons = std::array::from_fn(|index| (RESULTS[index], self.lessons[index].load(Relaxed)));
        let consolidations =
            std::array::from_fn(|index| (CONSOLIDATED[index], self.consolidations[index].load(Relaxed)));
        let adapters = self.adapters.lock();
        let quarantined = adapters.values().filter(|state| state.is_quarantined).count() as u64;
        LearningFigures {
            lessons,
            consolidations,
            recorded: recorder.stored,
            dropped: [
                ("queue_full", recorder.dropped_queue_full),
                ("queue_bytes", recorder.dropped_queue_bytes),
                ("memory_budget", recorder.dropped_memory_budget),
                ("invalid", recorder.dropped_invalid),
                ("closed", recorder.dropped_closed),
                ("refused", recorder.duplicates + recorder.refused),
            ],
            adapters: [("learning", adapters.len() as u64 - quarantined), ("quarantined", quarantined)],
            harm: adapters.values().filter_map(|state| state.harm).reduce(f64::max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_count_by_standing_and_the_largest_harm_is_kept() {
        let counters = LearningCounters::default();
        let read = || counters.read(&RecorderStatus::default());
        assert_eq!((read().adapters, read().harm), ([("learning", 0), ("quarantined", 0)], None));
        counters.set_adapter("a", "tone", false, Some(0.01));
        counters.set_adapter("b", "tone", true, Some(0.3));
        counters.set_adapter("b", "law", false, None);
        assert_eq!(read().adapters, [("learning", 2), ("quarantined", 1)]);
        assert_eq!(read().harm, Some(0.3));
        counters.set_adapter("b", "tone", false, None);
        assert_eq!(read().adapters, [("learning", 3), ("quarantined", 0)]);
        assert_eq!(read().harm, Some(0.3), "a standing without a judgement keeps the last one");
        for result in ["learned", "learned", "refused", "unknown"] {
            counters.count(result);
        }
        let lessons = [("learned", 2), ("outlier", 0), ("quarantined", 0), ("refused", 1)];
        assert_eq!(read().lessons, lessons);
        counters.count_consolidation("rejected");
        assert_eq!(read().consolidations, [("accepted", 0), ("rejected", 1), ("skipped", 0)]);
    }
}
