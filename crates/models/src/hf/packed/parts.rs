//! Names of the tensors that a quantized matrix consists of.

use std::collections::BTreeMap;

use super::super::shards::Stored;
use super::scheme::Method;
use crate::error::{Error, Result};

/// Ends of names of the parts of a matrix.
pub(super) const QWEIGHT: &str = "qweight";
pub(super) const QZEROS: &str = "qzeros";
pub(super) const SCALES: &str = "scales";
pub(super) const G_IDX: &str = "g_idx";
pub(super) const WEIGHT: &str = "weight";
pub(super) const WEIGHT_PACKED: &str = "weight_packed";
pub(super) const WEIGHT_SCALE: &str = "weight_scale";
pub(super) const WEIGHT_SCALE_INV: &str = "weight_scale_inv";
pub(super) const WEIGHT_SHAPE: &str = "weight_shape";
pub(super) const WEIGHT_ZERO_POINT: &str = "weight_zero_point";
pub(super) const WEIGHT_G_IDX: &str = "weight_g_idx";

/// Ends of names of scales of activations and KV caches, which are not quantized here.
pub(super) const OF_ACTIVATIONS: [&str; 9] = [
    "input_scale",
    "input_scale_ub",
    "input_zero_point",
    "activation_scale",
    "output_scale",
    "q_scale",
    "k_scale",
    "v_scale",
    "kv_scale",
];

impl Method {
    /// Ends of names of the parts of a matrix; the first one that a matrix has are its quants.
    pub(super) fn parts(self) -> &'static [&'static str] {
        match self {
            Self::Awq { .. } => &[QWEIGHT, QZEROS, SCALES],
            Self::Gptq { .. } => &[QWEIGHT, QZEROS, SCALES, G_IDX],
            Self::Float8 { .. } => &[WEIGHT, WEIGHT_SCALE_INV, WEIGHT_SCALE],
            Self::Compressed { .. } => {
                &[WEIGHT_PACKED, WEIGHT, WEIGHT_SCALE, WEIGHT_SHAPE, WEIGHT_ZERO_POINT, WEIGHT_G_IDX]
            }
        }
    }

    /// Rows and columns with one scale, in FP8.
    pub(super) fn tile(self) -> Option<[u64; 2]> {
        match self {
            Self::Float8 { tile } | Self::Compressed { tile, .. } => tile,
            Self::Awq { .. } | Self::Gptq { .. } => None,
        }
    }

    pub(super) fn has_activation_scales(self) -> bool {
        matches!(self, Self::Float8 { .. } | Self::Compressed { .. })
    }
}

/// The parts of a matrix, by the ends of their names.
#[derive(Default)]
pub(super) struct Parts(BTreeMap<&'static str, Stored>);

impl Parts {
    pub(super) fn insert(&mut self, end: &'static str, stored: Stored) {
        self.0.insert(end, stored);
    }

    /// True if the quants are among them.
    pub(super) fn has_quants(&self) -> bool {
        [QWEIGHT, WEIGHT_PACKED, WEIGHT].iter().any(|end| self.0.contains_key(end))
    }

    /// Quants in FP8 without scales beside them.
    pub(super) fn without_scales(&self) -> Option<&Stored> {
        let has_scales = [WEIGHT_SCALE, WEIGHT_SCALE_INV].iter().any(|end| self.0.contains_key(end));
        self.0.get(WEIGHT).filter(|_| !has_scales)
    }

    pub(super) fn take(&mut self, end: &str) -> Option<Stored> {
        self.0.remove(end)
    }

    pub(super) fn require(&mut self, stem: &str, end: &str) -> Result<Stored> {
        self.take(end).ok_or_else(|| Error::MissingTensor { name: format!("{stem}.{end}") })
    }
}
