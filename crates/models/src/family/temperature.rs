//! Attention temperature: a factor of queries that grows with their position.

use crate::config::keys::{Keys, Limits, Real};
use crate::error::Result;

/// Position-dependent attention temperature: queries are multiplied by `1 + scale * ln(1 +
/// floor((position + offset) / every))`, so that attention stays as sharp with more keys. Source:
/// Llama 4.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct AttentionTemperature {
    /// Growth of the factor.
    pub scale: f32,
    /// Positions from one step to the next; there is no effect before the first.
    pub every: usize,
    /// Added to positions: 1 if they are counted from 1.
    pub offset: usize,
    /// True if layers that rotate queries and keys have none.
    pub unrotated_layers: bool,
}

impl AttentionTemperature {
    /// The factor of a query.
    pub fn factor(&self, position: usize) -> f32 {
        let steps = (position.saturating_add(self.offset) / self.every.max(1)) as f64;
        (1.0 + f64::from(self.scale) * steps.ln_1p()) as f32
    }
}

/// Slopes of the attention temperature; published models have 0.1, and 0 is none.
pub(super) const TEMPERATURE_SCALES: Limits = Limits { least: 0.0, most: 1e3 };

/// The steps are as long as the file says, or as the context before it was scaled.
pub(super) fn read_temperature(keys: &Keys<'_>) -> Result<Option<AttentionTemperature>> {
    let scale = keys.real("attention.temperature_scale", Real::Within(TEMPERATURE_SCALES))?;
    let Some(scale) = scale.filter(|&scale| scale > 0.0) else { return Ok(None) };
    let steps = 1..=u32::MAX as usize;
    let every = match keys.count("attention.temperature_length", steps.clone())? {
        Some(every) => every,
        None => keys.require_count("rope.scaling.original_context_length", steps)?,
    };
    Ok(Some(AttentionTemperature { scale, every, offset: 0, unrotated_layers: false }))
}
