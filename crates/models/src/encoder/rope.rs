//! Rotary positions of an encoder: one table for layers that see the whole text, one for those with
//! a window.

use std::sync::Arc;

use ruvllm_kernels::rope::{RopeConfig, RopeTable};

use super::config::EncoderConfig;
use crate::error::Result;
use crate::rope::Rope;

/// The rotary embeddings of a model.
pub(super) struct Ropes {
    full: Rope,
    windowed: Rope,
}

/// The tables of one pass.
pub(super) struct RopeTables {
    full: Arc<RopeTable>,
    windowed: Arc<RopeTable>,
}

impl Ropes {
    /// The frequencies of a model; `None` without rotary positions.
    ///
    /// # Errors
    /// [`Error::Kernels`](crate::Error::Kernels) for parameters without meaning.
    pub(super) fn new(config: &EncoderConfig) -> Result<Option<Self>> {
        let rope = |base: f32| -> Result<Rope> {
            let rope = RopeConfig::new(base.into(), config.head_dim);
            Ok(Rope::new(rope.frequencies(config.context_length)?))
        };
        let Some(bases) = config.spec.rotary else { return Ok(None) };
        Ok(Some(Self { full: rope(bases.full)?, windowed: rope(bases.windowed)? }))
    }

    /// Tables for texts of up to `longest` tokens.
    pub(super) fn tables(&self, longest: usize) -> RopeTables {
        RopeTables { full: self.full.table(longest), windowed: self.windowed.table(longest) }
    }
}

impl RopeTables {
    /// The table of layers with a window, or of those without.
    pub(super) fn of(&self, is_windowed: bool) -> &RopeTable {
        if is_windowed { &self.windowed } else { &self.full }
    }
}
