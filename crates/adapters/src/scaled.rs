//! Adapters of a sequence with their scales.

use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use crate::adapter::Adapter;
use crate::error::{Error, Result};
use crate::gate::AdapterGate;

/// A loaded adapter, its scale and its gate in one request.
#[derive(Debug, Clone)]
pub struct ScaledAdapter {
    /// The adapter.
    pub adapter: Arc<Adapter>,
    /// Multiplier of the adapter's update, on top of the scale that it was loaded with; 1 = as
    /// loaded, 0 = as without the adapter.
    pub scale: f32,
    /// Gate that multiplies the update token by token, on top of `scale`
    /// ([`AdapterGate::over`](crate::AdapterGate::over)); `None` = 1 for all tokens.
    pub gate: Option<GatedBy>,
}

impl ScaledAdapter {
    /// An adapter at a scale, without a gate.
    pub fn new(adapter: Arc<Adapter>, scale: f32) -> Self {
        Self { adapter, scale, gate: None }
    }
}

/// An adapter as it was loaded.
impl From<Arc<Adapter>> for ScaledAdapter {
    fn from(adapter: Arc<Adapter>) -> Self {
        Self::new(adapter, 1.0)
    }
}

/// Gate of an adapter of a list, made by [`AdapterGate::over`].
#[derive(Debug, Clone)]
pub struct GatedBy {
    gate: Arc<AdapterGate>,
    index: usize,
}

impl AdapterGate {
    /// Binds the adapters of a list to the gate, in its order; the gate of each multiplies its
    /// update on top of its scale. Replaces former gates.
    ///
    /// # Errors
    /// [`Error::GateAdapters`] for another number of adapters, [`Error::GateModel`] for adapters of
    /// another model.
    pub fn over(self: &Arc<Self>, adapters: Vec<ScaledAdapter>) -> Result<Vec<ScaledAdapter>> {
        let (found, expected) = (adapters.len(), self.config().n_adapters);
        if found != expected {
            return Err(Error::GateAdapters { found, expected });
        }
        if let Some(other) = adapters.iter().find(|scaled| scaled.adapter.base() != self.base()) {
            let (found, expected) = (other.adapter.base().to_string(), self.base().to_string());
            return Err(Error::GateModel { found, expected });
        }
        let bind = |(index, scaled)| {
            let gate = Some(GatedBy { gate: Arc::clone(self), index });
            ScaledAdapter { gate, ..scaled }
        };
        Ok(adapters.into_iter().enumerate().map(bind).collect())
    }
}

impl GatedBy {
    /// The gate.
    pub fn gate(&self) -> &Arc<AdapterGate> {
        &self.gate
    }

    /// Position of the adapter among those of the gate.
    pub fn index(&self) -> usize {
        self.index
    }
}

/// Digest of everything in a list of adapters that cached keys and values depend on: the
/// [`kv_digest`](Adapter::kv_digest), the scale and the gate of each, in order. `None` if they
/// depend on none: keys and values are those of the model itself.
pub fn kv_digest(adapters: &[ScaledAdapter]) -> Option<[u8; 32]> {
    let mut hash = None;
    for ScaledAdapter { adapter, scale, gate } in adapters.iter().filter(|scaled| scaled.scale != 0.0) {
        if let Some(digest) = adapter.kv_digest() {
            let hash = hash.get_or_insert_with(Sha256::new);
            hash.update(digest);
            hash.update(scale.to_bits().to_le_bytes());
            if let Some(by) = gate {
                hash.update(b"gate");
                hash.update(by.gate().digest());
                hash.update((by.index() as u64).to_le_bytes());
            }
        }
    }
    hash.map(|hash| hash.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::GateConfig;
    use crate::place::BaseModel;
    use crate::testing::{adapters, base};

    const CONFIG: GateConfig = GateConfig { n_adapters: 3, temperature: 1.0, top_k: None };

    fn gate(seed: usize) -> Arc<AdapterGate> {
        let values = |n: usize| (0..n).map(|i| ((i * 37 + seed * 11) % 17) as f32 / 8.0).collect();
        let gate = AdapterGate::new(&base(), CONFIG, values(2 * 3 * 6), values(2 * 3));
        Arc::new(gate.expect("a gate"))
    }

    #[test]
    fn a_gate_binds_as_many_adapters_of_its_model() {
        let gate = gate(1);
        let [adapter, _] = adapters(1, 2).map(Arc::new);
        let list = |n: usize| vec![ScaledAdapter::new(Arc::clone(&adapter), 0.5); n];
        for n in [0, 2, 4] {
            let refused = gate.over(list(n));
            assert!(matches!(refused, Err(Error::GateAdapters { found, expected: 3 }) if found == n));
        }
        let bound = gate.over(list(3)).expect("three adapters");
        for (index, scaled) in bound.iter().enumerate() {
            let by = scaled.gate.as_ref().expect("a gate");
            assert!(Arc::ptr_eq(by.gate(), &gate) && by.index() == index && scaled.scale == 0.5);
        }
        let other = Arc::new(BaseModel { vocab_size: 13, ..BaseModel::clone(&base()) });
        let (weights, biases) = (vec![0.0; 2 * 3 * 6], vec![0.0; 2 * 3]);
        let other = Arc::new(AdapterGate::new(&other, CONFIG, weights, biases).expect("a gate"));
        assert!(matches!(other.over(list(3)), Err(Error::GateModel { .. })));
    }

    #[test]
    fn kv_digests_follow_gate_and_position() {
        let [adapter, _] = adapters(1, 2).map(Arc::new);
        let list = vec![ScaledAdapter::from(adapter); 3];
        let bound = |seed| gate(seed).over(list.clone()).expect("three adapters");
        let (first, second) = (bound(1), bound(2));
        let digests = [
            kv_digest(&list),
            kv_digest(&first),
            kv_digest(&second),
            kv_digest(&[first[1].clone(), first[0].clone(), first[2].clone()]),
            kv_digest(&[first[0].clone(), first[1].clone(), list[2].clone()]),
            kv_digest(&first[..1]),
            kv_digest(&first[1..2]),
        ];
        for (index, digest) in digests.iter().enumerate() {
            assert!(digest.is_some() && !digests[..index].contains(digest), "list {index}");
        }
        assert_eq!(kv_digest(&first), kv_digest(&bound(1)), "the same gate loaded again");
        let off: Vec<_> = first.into_iter().map(|scaled| ScaledAdapter { scale: 0.0, ..scaled }).collect();
        assert_eq!(kv_digest(&off), None);
    }
}
