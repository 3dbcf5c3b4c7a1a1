//! Rules of consolidation.

/// Rules of an [`AgentMemory`](super::AgentMemory).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Time after which a working entry that is not seen again expires.
    pub working_ms: u64,
    /// Sightings from which a working entry becomes an episode.
    pub repeated: u32,
    /// Importance from which it becomes one at once.
    pub important: f32,
    /// Sessions whose episodes say the same from which they become a fact.
    pub sessions: usize,
    /// Confidence that each of these sessions gives to the fact.
    pub session_confidence: f32,
    /// Cosine from which two texts with equal numbers, negations and names say the same.
    pub same_cosine: f32,
}

impl Default for Settings {
    /// Makes rules of four hours, two sightings, importance 0.7, three sessions of confidence 0.3
    /// and cosine 0.95.
    fn default() -> Self {
        Self {
            working_ms: 4 * 3_600_000,
            repeated: 2,
            important: 0.7,
            sessions: 3,
            session_confidence: 0.3,
            same_cosine: 0.95,
        }
    }
}
