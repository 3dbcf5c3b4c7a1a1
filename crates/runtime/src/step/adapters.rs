//! Adapters of a request: names resolved to versions, factors while it runs.

use std::sync::{Arc, Weak};

use ruvllm_adapters::{Acquired, Adapter, AdapterVersion, FactorFormat, GatedBy, ScaledAdapter, Tier};

use crate::adapter_choice::ServedAdapter;

/// Adapters of a request, from its submission to its end.
///
/// The versions are those of the submission. The factors are there while the request runs: an `Arc`
/// is the pin. The format in which a request began stays its format when it is preempted and takes
/// them again.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestAdapters {
    list: Vec<RequestAdapter>,
    /// Alive while the request waits for loads that it has asked for.
    attempt: Option<Arc<()>>,
    /// True once keys and values were computed with the formats.
    has_begun: bool,
}

#[derive(Debug, Clone)]
struct RequestAdapter {
    scale: f32,
    gate: Option<GatedBy>,
    /// Version of the registry, from which the factors can be taken again.
    version: Option<Arc<AdapterVersion>>,
    /// True if the version was cold at the submission.
    was_cold: bool,
    adapter: Option<Arc<Adapter>>,
    /// Report of a named one, once it has factors.
    served: Option<ServedAdapter>,
}

/// Factors that a request lacks.
#[derive(Debug)]
pub(super) struct Missing {
    /// Index in the list of the request.
    pub(super) index: usize,
    pub(super) version: Arc<AdapterVersion>,
    /// Format that the request began with.
    pub(super) format: Option<FactorFormat>,
}

impl RequestAdapters {
    /// Adds an adapter that the caller has loaded.
    pub(crate) fn push_loaded(&mut self, scaled: ScaledAdapter) {
        let ScaledAdapter { adapter, scale, gate } = scaled;
        let adapter = Some(adapter);
        self.list.push(RequestAdapter { scale, gate, version: None, was_cold: false, adapter, served: None });
    }

    /// Adds the current version of an adapter that changes.
    pub(crate) fn push_current(&mut self, name: &str, adapter: Arc<Adapter>, scale: f32) {
        let served = Some(ServedAdapter {
            name: name.to_owned(),
            version: adapter.version(),
            found: None,
            format: adapter.layout().format(),
        });
        let adapter = Some(adapter);
        self.list.push(RequestAdapter { scale, gate: None, version: None, was_cold: false, adapter, served });
    }

    /// Adds a version of the registry that is in `tier` now.
    pub(crate) fn push_version(&mut self, version: Arc<AdapterVersion>, scale: f32, tier: Tier) {
        let (version, was_cold) = (Some(version), tier == Tier::Cold);
        self.list.push(RequestAdapter { scale, gate: None, version, was_cold, adapter: None, served: None });
    }

    /// Begins an attempt to get all factors. What it asks for is void once the attempt is dropped.
    pub(super) fn begin_attempt(&mut self) -> Weak<()> {
        Arc::downgrade(self.attempt.insert(Arc::new(())))
    }

    /// True for the attempt that goes on.
    pub(super) fn is_attempt(&self, attempt: &Weak<()>) -> bool {
        self.attempt.as_ref().is_some_and(|own| Arc::as_ptr(own) == attempt.as_ptr())
    }

    /// Factors that are not there.
    pub(super) fn missing(&self) -> Vec<Missing> {
        let lacking = self.list.iter().enumerate().filter(|(_, entry)| entry.adapter.is_none());
        let missing = lacking.filter_map(|(index, entry)| {
            let format = entry.served.as_ref().filter(|_| self.has_begun).map(|served| served.format);
            Some(Missing { index, version: Arc::clone(entry.version.as_ref()?), format })
        });
        missing.collect()
    }

    /// Takes factors that were missing.
    pub(super) fn set(&mut self, index: usize, acquired: Acquired) {
        let Some(RequestAdapter { version: Some(version), was_cold, adapter, served, .. }) =
            self.list.get_mut(index)
        else {
            return;
        };
        if !self.has_begun {
            let found = if *was_cold { Tier::Cold } else { acquired.found };
            *served = Some(ServedAdapter {
                name: version.name().to_owned(),
                version: version.number(),
                found: Some(found),
                format: acquired.format(),
            });
        }
        *adapter = Some(acquired.adapter);
    }

    /// The adapters of the request's sequence; `None` while factors are missing.
    pub(super) fn scaled(&self) -> Option<Arc<[ScaledAdapter]>> {
        let scaled = |entry: &RequestAdapter| {
            let adapter = Arc::clone(entry.adapter.as_ref()?);
            Some(ScaledAdapter { adapter, scale: entry.scale, gate: entry.gate.clone() })
        };
        self.list.iter().map(scaled).collect()
    }

    /// Notes that the sequence begins: the formats stay from now on.
    pub(super) fn begin(&mut self) {
        self.has_begun = true;
    }

    /// Drops the factors of the registry's versions, of a request that waits again.
    pub(super) fn release(&mut self) {
        self.attempt = None;
        for entry in self.list.iter_mut().filter(|entry| entry.version.is_some()) {
            entry.adapter = None;
        }
    }

    /// Goes on with the factors and formats of another choice of the same prompt, whose sequence
    /// this one is a fork of.
    pub(super) fn follow(&mut self, leader: &Self) {
        *self = Self { attempt: None, ..leader.clone() };
    }

    /// Value that tells adapters of requests apart whose prompts may share a prefix; 0 without any.
    pub(super) fn prefix_hash(&self, hasher: &mut impl std::hash::Hasher) {
        use std::hash::Hash;
        for RequestAdapter { scale, gate, version, adapter, .. } in &self.list {
            scale.to_bits().hash(hasher);
            gate.as_ref().map(|by| (by.gate().digest(), by.index())).hash(hasher);
            version.as_ref().map(|version| version.number()).hash(hasher);
            if version.is_none() {
                adapter.as_ref().map(|adapter| adapter.digest()).hash(hasher);
            }
        }
    }

    /// Adapters of the registry that have served.
    pub(super) fn into_served(self) -> Vec<ServedAdapter> {
        let entries = if self.has_begun { self.list } else { Vec::new() };
        entries.into_iter().filter_map(|entry| entry.served).collect()
    }
}
