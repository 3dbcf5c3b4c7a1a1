//! A calibration at work: codebooks, and the tables by which keys are turned.

use std::sync::Arc;

use parking_lot::RwLock;
use ruvllm_kernels::{KeyRotation, RopeFrequencies, RopeLayout};

use crate::calibration::KvCalibration;

/// Positions that the tables cover at first; they double when a sequence goes beyond.
const FIRST_POSITIONS: usize = 1024;

/// How a model turns its keys: its rotary embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct KvRope {
    /// Frequencies of the pairs, at most half as many as a head has values.
    pub frequencies: RopeFrequencies,
    /// Which dimensions are pairs.
    pub layout: RopeLayout,
}

/// What a store knows of its model.
pub(crate) struct Learned {
    calibration: Arc<KvCalibration>,
    rope: KvRope,
    /// Grows with the longest sequence; a step holds on to the tables it began with.
    rotation: RwLock<Arc<KeyRotation>>,
}

impl KvRope {
    /// Tables of the positions before `n_positions`.
    pub fn rotation(&self, n_positions: usize) -> KeyRotation {
        KeyRotation::new(&self.frequencies, self.layout, n_positions)
    }
}

impl Learned {
    pub(crate) fn new(calibration: Arc<KvCalibration>, rope: KvRope) -> Self {
        let rotation = rope.rotation(FIRST_POSITIONS);
        Self { calibration, rope, rotation: RwLock::new(Arc::new(rotation)) }
    }

    pub(crate) fn calibration(&self) -> &KvCalibration {
        &self.calibration
    }

    /// Tables of at least the positions before `n_positions`.
    pub(crate) fn rotation(&self, n_positions: usize) -> Arc<KeyRotation> {
        let present = self.rotation.read().clone();
        if present.positions() >= n_positions {
            return present;
        }
        let mut rotation = self.rotation.write();
        if rotation.positions() < n_positions {
            *rotation = Arc::new(self.rope.rotation(n_positions.next_power_of_two()));
        }
        rotation.clone()
    }
}
