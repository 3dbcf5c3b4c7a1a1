//! Learner of KV policies by embedding.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::routing::bits;
use crate::routing::vector::{dot, normalized};

/// Weight of the newest observation at least.
const MIN_RATE: f64 = 0.05;

/// Settings of a [`KvPolicyLearner`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LearnerSettings {
    /// Values of an embedding.
    pub dim: usize,
    /// Quality, 0 to 1, from which an observation becomes a pattern.
    pub learn_from: f64,
    /// Expected quality above which a policy is suggested.
    pub use_from: f64,
    /// Cosine similarity from which a pattern says something about a prompt.
    pub min_similarity: f32,
    /// Cosine similarity from which an observation belongs to a pattern.
    pub same: f32,
    /// Largest number of patterns; the least recently used goes first.
    pub capacity: usize,
}

impl LearnerSettings {
    /// Default settings for embeddings of `dim` values.
    pub fn new(dim: usize) -> Self {
        Self { dim, learn_from: 0.7, use_from: 0.6, min_similarity: 0.6, same: 0.95, capacity: 1024 }
    }

    fn check(&self) -> Result<()> {
        let in_unit = |name, value: f64| {
            let is_allowed = (0.0..=1.0).contains(&value);
            is_allowed.then_some(()).ok_or(Error::Setting { name, value: value.to_string(), range: "0 to 1" })
        };
        in_unit("learn_from", self.learn_from)?;
        in_unit("use_from", self.use_from)?;
        in_unit("min_similarity", f64::from(self.min_similarity))?;
        in_unit("same", f64::from(self.same))?;
        for (name, value) in [("dim", self.dim), ("capacity", self.capacity)] {
            if value == 0 {
                return Err(Error::Setting { name, value: "0".into(), range: "above 0" });
            }
        }
        Ok(())
    }
}

/// Outcome of a request under a KV policy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Observation<'o> {
    /// Embedding of the prompt.
    pub embedding: &'o [f32],
    /// Name of the policy.
    pub policy: &'o str,
    /// Quality of the answer, 0 to 1.
    pub quality: f64,
    /// Bytes of KV cache per token.
    pub bytes_per_token: f64,
}

/// A policy for a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Suggestion {
    /// Name of the policy.
    pub policy: String,
    /// Expected quality.
    pub quality: f64,
    /// Expected bytes of KV cache per token.
    pub bytes_per_token: f64,
    /// Patterns that it rests on.
    pub patterns: usize,
}

/// Suggests the cheapest KV policy that kept its quality on similar prompts of one tenant.
///
/// A pattern begins with an answer of at least `learn_from`. Every later answer near it counts, bad
/// ones included: a policy whose answers got worse is not suggested any more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KvPolicyLearner {
    settings: LearnerSettings,
    clock: u64,
    patterns: Vec<Pattern>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Pattern {
    #[serde(with = "bits")]
    unit: Vec<f32>,
    policy: String,
    /// Mean quality and bytes per token.
    #[serde(with = "bits")]
    means: Vec<f64>,
    count: u64,
    used: u64,
}

impl KvPolicyLearner {
    /// Makes a learner without patterns.
    ///
    /// # Errors
    /// [`Error::Setting`] names a setting out of range.
    pub fn new(settings: LearnerSettings) -> Result<Self> {
        settings.check()?;
        Ok(Self { settings, clock: 0, patterns: Vec::new() })
    }

    /// Number of patterns.
    pub fn len(&self) -> usize {
        self.patterns.len()
    }

    /// True without patterns.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    fn unit(&self, embedding: &[f32]) -> Result<Vec<f32>> {
        if embedding.len() != self.settings.dim {
            let (expected, got) = (self.settings.dim, embedding.len());
            return Err(Error::Dimension { what: "embedding of a prompt", expected, got });
        }
        if !embedding.iter().all(|v| v.is_finite()) {
            return Err(Error::NotFinite { what: "embedding of a prompt" });
        }
        Ok(normalized(embedding))
    }

    /// Learns from an answer.
    ///
    /// # Errors
    /// [`Error::Dimension`], [`Error::NotFinite`], [`Error::Input`] for a quality or size out of
    /// range. The learner stays as it was.
    pub fn observe(&mut self, observation: &Observation<'_>) -> Result<()> {
        let Observation { embedding, policy, quality, bytes_per_token } = *observation;
        if !(0.0..=1.0).contains(&quality) {
            return Err(Error::Input { what: "quality", value: quality, range: "0 to 1" });
        }
        if !(0.0..=1e9).contains(&bytes_per_token) {
            return Err(Error::Input { what: "bytes_per_token", value: bytes_per_token, range: "0 to 1e9" });
        }
        let unit = self.unit(embedding)?;
        self.clock += 1;
        let mut is_known = false;
        for pattern in self.patterns.iter_mut().filter(|pattern| pattern.policy == policy) {
            let similarity = dot(&pattern.unit, &unit);
            let is_same = similarity >= self.settings.same;
            // A bad answer warns all near patterns, a good one strengthens its own alone.
            let is_warning = quality < self.settings.learn_from && similarity >= self.settings.min_similarity;
            if is_same || is_warning {
                let rate = (1.0 / (pattern.count + 1) as f64).max(MIN_RATE) * f64::from(similarity);
                pattern.means[0] += rate * (quality - pattern.means[0]);
                pattern.means[1] += rate * (bytes_per_token - pattern.means[1]);
                pattern.count += 1;
                pattern.used = self.clock;
                is_known |= is_same;
            }
        }
        if !is_known && quality >= self.settings.learn_from {
            if self.patterns.len() >= self.settings.capacity {
                let oldest = (0..self.patterns.len()).min_by_key(|&i| self.patterns[i].used);
                oldest.map(|oldest| self.patterns.swap_remove(oldest));
            }
            let (means, used) = (vec![quality, bytes_per_token], self.clock);
            self.patterns.push(Pattern { unit, policy: policy.to_owned(), means, count: 1, used });
        }
        Ok(())
    }

    /// The policy with the fewest bytes per token of those whose expected quality suffices; absent
    /// where nothing similar is known.
    ///
    /// # Errors
    /// [`Error::Dimension`], [`Error::NotFinite`].
    pub fn suggest(&mut self, embedding: &[f32]) -> Result<Option<Suggestion>> {
        let unit = self.unit(embedding)?;
        self.clock += 1;
        // Sums of weights, quality and bytes, and the number of patterns.
        let mut sums = BTreeMap::<&str, (f64, f64, f64, usize)>::new();
        for pattern in &mut self.patterns {
            let similarity = dot(&pattern.unit, &unit);
            if similarity >= self.settings.min_similarity {
                pattern.used = self.clock;
                let weight = f64::from(similarity).powi(4).max(f64::MIN_POSITIVE);
                let (weights, quality, bytes, count) = sums.entry(&pattern.policy).or_default();
                (*weights, *count) = (*weights + weight, *count + 1);
                (*quality, *bytes) =
                    (*quality + weight * pattern.means[0], *bytes + weight * pattern.means[1]);
            }
        }
        let policies = sums.into_iter().map(|(policy, (weights, quality, bytes, patterns))| Suggestion {
            policy: policy.to_owned(),
            quality: quality / weights,
            bytes_per_token: bytes / weights,
            patterns,
        });
        let good = policies.filter(|policy| policy.quality > self.settings.use_from);
        Ok(good.min_by(|a, b| a.bytes_per_token.total_cmp(&b.bytes_per_token)))
    }

    /// Checks a learner that was deserialized.
    ///
    /// # Errors
    /// [`Error::Setting`], [`Error::Damaged`].
    pub fn check(&self) -> Result<()> {
        self.settings.check()?;
        let is_valid = |pattern: &Pattern| {
            pattern.unit.len() == self.settings.dim
                && pattern.means.len() == 2
                && pattern.unit.iter().all(|v| v.is_finite())
                && pattern.means.iter().all(|v| v.is_finite())
        };
        let is_bounded = self.patterns.len() <= self.settings.capacity;
        (is_bounded && self.patterns.iter().all(is_valid))
            .then_some(())
            .ok_or(Error::Damaged { what: "saved learner of KV policies" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn learner(capacity: usize) -> KvPolicyLearner {
        KvPolicyLearner::new(LearnerSettings { capacity, ..LearnerSettings::new(2) }).unwrap()
    }

    fn observe(learner: &mut KvPolicyLearner, embedding: [f32; 2], policy: &str, quality: f64) {
        let bytes_per_token = if policy == "q4" { 9e3 } else { 32e3 };
        learner.observe(&Observation { embedding: &embedding, policy, quality, bytes_per_token }).unwrap();
    }

    #[test]
    fn cheapest_policy_of_sufficient_quality_is_suggested() {
        let mut learner = learner(8);
        let policy =
            |learner: &mut KvPolicyLearner, x, y| learner.suggest(&[x, y]).unwrap().map(|s| s.policy);
        observe(&mut learner, [1.0, 0.0], "q4", 0.69);
        assert!(learner.is_empty());
        observe(&mut learner, [1.0, 0.0], "f16", 0.9);
        assert_eq!(policy(&mut learner, 1.0, 0.1).as_deref(), Some("f16"));
        observe(&mut learner, [1.0, 0.0], "q4", 0.8);
        assert_eq!(policy(&mut learner, 1.0, 0.1).as_deref(), Some("q4"));
        assert_eq!(policy(&mut learner, 0.0, 1.0), None);
        // Bad answers nearby end it; a single one does not.
        observe(&mut learner, [1.0, 0.5], "q4", 0.5);
        assert_eq!(policy(&mut learner, 1.0, 0.1).as_deref(), Some("q4"));
        (0..10).for_each(|_| observe(&mut learner, [1.0, 0.5], "q4", 0.3));
        assert_eq!(policy(&mut learner, 1.0, 0.1).as_deref(), Some("f16"));
    }

    #[test]
    fn memory_is_bounded_and_bad_input_refused() {
        let (mut learner, mut random) = (learner(16), Random::new(1));
        for _ in 0..500 {
            let embedding = [random.normal() as f32, random.normal() as f32];
            observe(&mut learner, embedding, if random.below(2) == 0 { "q4" } else { "f16" }, 0.9);
        }
        assert!(learner.len() <= 16);
        let before = learner.clone();
        for (embedding, quality, bytes_per_token) in [
            (&[1.0][..], 0.9, 1.0),
            (&[1.0, f32::NAN][..], 0.9, 1.0),
            (&[1.0, 0.0][..], f64::NAN, 1.0),
            (&[1.0, 0.0][..], 1.1, 1.0),
            (&[1.0, 0.0][..], 0.9, -1.0),
        ] {
            let observation = Observation { embedding, policy: "q4", quality, bytes_per_token };
            assert!(learner.observe(&observation).is_err());
        }
        assert_eq!(learner, before);
        let text = serde_json::to_string(&learner).unwrap();
        let loaded: KvPolicyLearner = serde_json::from_str(&text).unwrap();
        loaded.check().unwrap();
        assert_eq!(loaded, learner);
        learner.patterns[0].unit.pop();
        assert!(matches!(learner.check(), Err(Error::Damaged { .. })));
    }
}
