//! A calibration at work: codebooks, and the tables by which keys are turned.

use std::sync::Arc;

use parking_lot::RwLock;
use ruvllm_kernels::attention::KeyRope;
use ruvllm_kernels::rope::{RopeFrequencies, RopeLayout};

use crate::calibration::KvCalibration;

/// Positions that the tables cover at first; they double when a sequence goes beyond.
const FIRST_POSITIONS: usize = 1024;

/// One rotary embedding: how keys are turned.
#[derive(Debug, Clone, PartialEq)]
pub struct KvRope {
    /// Frequencies of the pairs, at most half as many as a head has values.
    pub frequencies: RopeFrequencies,
    /// Which dimensions are pairs.
    pub layout: RopeLayout,
}

/// How a model turns its keys: in one way, or in another one by layer or by the capacity of the
/// sequence.
///
/// Sequences on both sides of the capacity have other keys from the first token on and must not
/// share blocks.
#[derive(Debug, Clone, PartialEq)]
pub struct KvRopes {
    /// The embedding of all that has none of its own.
    pub usual: KvRope,
    /// That of some layers, and which: `[n_layers]`.
    pub local: Option<(KvRope, Vec<bool>)>,
    /// That of sequences whose capacity is above so many tokens, in layers that are not local.
    pub long: Option<(usize, KvRope)>,
}

impl From<KvRope> for KvRopes {
    fn from(usual: KvRope) -> Self {
        Self { usual, local: None, long: None }
    }
}

impl KvRopes {
    /// Tables of the positions before `n_positions` of a sequence of at most `capacity` tokens.
    pub fn rotations(&self, n_positions: usize, capacity: usize) -> KeyRotations {
        Tables::new(self, n_positions).rotations(n_positions, capacity)
    }

    /// Panics if more dimensions turn than a head has, or local layers are named for another number
    /// of layers.
    #[track_caller]
    pub(crate) fn check(&self, n_layers: usize, head_dim: usize) {
        let local = self.local.as_ref().map(|(rope, _)| rope);
        let long = self.long.as_ref().map(|(_, rope)| rope);
        for rope in [Some(&self.usual), local, long].into_iter().flatten() {
            let pairs = rope.frequencies.inverse.len();
            assert!(2 * pairs <= head_dim, "{pairs} pairs turn in heads of {head_dim}");
        }
        let named = self.local.as_ref().map_or(n_layers, |(_, layers)| layers.len());
        assert!(named == n_layers, "local layers among {named}, of {n_layers}");
    }
}

/// Tables by which the keys of one sequence are turned. Clones share them.
#[derive(Debug, Clone)]
pub struct KeyRotations {
    usual: Arc<KeyRope>,
    local: Option<(Arc<KeyRope>, Arc<[bool]>)>,
}

impl KeyRotations {
    /// That of a layer.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn of_layer(&self, layer: usize) -> &KeyRope {
        match &self.local {
            Some((local, layers)) if layers[layer] => local,
            _ => &self.usual,
        }
    }
}

/// A rotary embedding with its table.
struct Table {
    rope: KvRope,
    /// Grows with the longest sequence; a step holds on to the table it began with.
    rotation: RwLock<Arc<KeyRope>>,
}

impl Table {
    fn new(rope: &KvRope, n_positions: usize) -> Self {
        let rotation = KeyRope::new(&rope.frequencies, rope.layout, n_positions);
        Self { rope: rope.clone(), rotation: RwLock::new(Arc::new(rotation)) }
    }

    /// A table of at least the positions before `n_positions`.
    fn rotation(&self, n_positions: usize) -> Arc<KeyRope> {
        let present = self.rotation.read().clone();
        if present.positions() >= n_positions {
            return present;
        }
        let mut rotation = self.rotation.write();
        if rotation.positions() < n_positions {
            let KvRope { frequencies, layout } = &self.rope;
            *rotation = Arc::new(KeyRope::new(frequencies, *layout, n_positions.next_power_of_two()));
        }
        rotation.clone()
    }
}

/// The tables of all embeddings of a model.
struct Tables {
    usual: Table,
    local: Option<(Table, Arc<[bool]>)>,
    long: Option<(usize, Table)>,
}

impl Tables {
    fn new(ropes: &KvRopes, n_positions: usize) -> Self {
        let table = |rope: &KvRope| Table::new(rope, n_positions);
        Self {
            usual: table(&ropes.usual),
            local: ropes.local.as_ref().map(|(rope, layers)| (table(rope), layers.as_slice().into())),
            long: ropes.long.as_ref().map(|(above, rope)| (*above, table(rope))),
        }
    }

    fn rotations(&self, n_positions: usize, capacity: usize) -> KeyRotations {
        let usual = match &self.long {
            Some((above, long)) if capacity > *above => long,
            _ => &self.usual,
        };
        let local = self.local.as_ref();
        KeyRotations {
            usual: usual.rotation(n_positions),
            local: local.map(|(table, layers)| (table.rotation(n_positions), Arc::clone(layers))),
        }
    }
}

/// What a store knows of its model.
pub(crate) struct Learned {
    calibration: Arc<KvCalibration>,
    tables: Tables,
}

impl Learned {
    pub(crate) fn new(calibration: Arc<KvCalibration>, ropes: &KvRopes) -> Self {
        Self { calibration, tables: Tables::new(ropes, FIRST_POSITIONS) }
    }

    pub(crate) fn calibration(&self) -> &KvCalibration {
        &self.calibration
    }

    /// Tables of at least the positions before `n_positions` of a sequence of at most `capacity`
    /// tokens.
    pub(crate) fn rotations(&self, n_positions: usize, capacity: usize) -> KeyRotations {
        self.tables.rotations(n_positions, capacity)
    }
}
