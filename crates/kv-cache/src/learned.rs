//! A calibration in use: codebooks, and the RoPE tables of keys.

use std::sync::Arc;

use parking_lot::RwLock;
use ruvllm_kernels::attention::KeyRope;
use ruvllm_kernels::rope::{RopeFrequencies, RopeLayout};

use crate::calibration::KvCalibration;

/// Positions that the tables cover at first; they double when a sequence goes beyond.
const FIRST_POSITIONS: usize = 1024;

/// Parameters of one rotary embedding (RoPE).
#[derive(Debug, Clone, PartialEq)]
pub struct KvRope {
    /// Frequencies of the pairs, at most half as many as a head has values.
    pub frequencies: RopeFrequencies,
    /// Dimensions that form pairs.
    pub layout: RopeLayout,
}

/// RoPE parameters of a model: one set, or others by layer or by capacity of the sequence.
///
/// Sequences on both sides of that capacity have different keys and must not share blocks.
#[derive(Debug, Clone, PartialEq)]
pub struct KvRopes {
    /// Default of layers and sequences without parameters of their own.
    pub usual: KvRope,
    /// Parameters of local layers, and a mask of these: `[n_layers]`.
    pub local: Option<(KvRope, Vec<bool>)>,
    /// Parameters of sequences above a capacity in tokens, in layers that are not local.
    pub long: Option<(usize, KvRope)>,
}

impl From<KvRope> for KvRopes {
    fn from(usual: KvRope) -> Self {
        Self { usual, local: None, long: None }
    }
}

impl KvRopes {
    /// Tables of the positions before `n_positions` of a sequence of at most `capacity` tokens.
    pub fn key_ropes(&self, n_positions: usize, capacity: usize) -> KeyRopes {
        ModelRopes::new(self, n_positions).key_ropes(n_positions, capacity)
    }

    /// Panics if the pairs exceed a head, or the mask of local layers has another length.
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

/// RoPE tables for the keys of one sequence. Clones share them.
#[derive(Debug, Clone)]
pub struct KeyRopes {
    usual: Arc<KeyRope>,
    local: Option<(Arc<KeyRope>, Arc<[bool]>)>,
}

impl KeyRopes {
    /// Tables of a layer.
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

/// RoPE parameters and their tables.
struct RopeTables {
    rope: KvRope,
    /// Grow with the longest sequence; a step keeps the tables it began with.
    tables: RwLock<Arc<KeyRope>>,
}

impl RopeTables {
    fn new(rope: &KvRope, n_positions: usize) -> Self {
        let tables = KeyRope::new(&rope.frequencies, rope.layout, n_positions);
        Self { rope: rope.clone(), tables: RwLock::new(Arc::new(tables)) }
    }

    /// Tables of at least the positions before `n_positions`.
    fn covering(&self, n_positions: usize) -> Arc<KeyRope> {
        let present = self.tables.read().clone();
        if present.positions() >= n_positions {
            return present;
        }
        let mut tables = self.tables.write();
        if tables.positions() < n_positions {
            let KvRope { frequencies, layout } = &self.rope;
            *tables = Arc::new(KeyRope::new(frequencies, *layout, n_positions.next_power_of_two()));
        }
        tables.clone()
    }
}

/// RoPE tables of a model.
struct ModelRopes {
    usual: RopeTables,
    local: Option<(RopeTables, Arc<[bool]>)>,
    long: Option<(usize, RopeTables)>,
}

impl ModelRopes {
    fn new(ropes: &KvRopes, n_positions: usize) -> Self {
        let table = |rope: &KvRope| RopeTables::new(rope, n_positions);
        Self {
            usual: table(&ropes.usual),
            local: ropes.local.as_ref().map(|(rope, layers)| (table(rope), layers.as_slice().into())),
            long: ropes.long.as_ref().map(|(above, rope)| (*above, table(rope))),
        }
    }

    fn key_ropes(&self, n_positions: usize, capacity: usize) -> KeyRopes {
        let usual = match &self.long {
            Some((above, long)) if capacity > *above => long,
            _ => &self.usual,
        };
        let local = self.local.as_ref();
        KeyRopes {
            usual: usual.covering(n_positions),
            local: local.map(|(tables, layers)| (tables.covering(n_positions), Arc::clone(layers))),
        }
    }
}

/// Calibration and RoPE tables of a store's model.
pub(crate) struct Learned {
    calibration: Arc<KvCalibration>,
    ropes: ModelRopes,
}

impl Learned {
    pub(crate) fn new(calibration: Arc<KvCalibration>, ropes: &KvRopes) -> Self {
        Self { calibration, ropes: ModelRopes::new(ropes, FIRST_POSITIONS) }
    }

    pub(crate) fn calibration(&self) -> &KvCalibration {
        &self.calibration
    }

    /// Tables of at least the positions before `n_positions` of a sequence of at most `capacity`
    /// tokens.
    pub(crate) fn key_ropes(&self, n_positions: usize, capacity: usize) -> KeyRopes {
        self.ropes.key_ropes(n_positions, capacity)
    }
}
