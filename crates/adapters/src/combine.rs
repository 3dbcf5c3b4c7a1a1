//! Sums of adapters in memory, each with a scale of its own.

use std::collections::BTreeSet;
use std::ops::Range;

use ruvllm_kernels::quant::SharedBytes;
use ruvllm_memory::{PagePool, Request};
use sha2::{Digest, Sha256};

use crate::adapter::{Adapter, Memory, Resident, Written};
use crate::error::{Error, Result};
use crate::low_rank::{Expansion, LowRank};
use crate::place::Site;

impl Adapter {
    /// The sum of loaded adapters of one model, each times its scale, in pages of `pool` of its
    /// own. The factors `B` take the scales; `parts` in another order may round differently.
    ///
    /// # Errors
    /// [`Error::Combination`] for adapters of different models or no adapter,
    /// [`Error::NotFinite`] if a scaled value is not finite, [`Error::Memory`] without memory.
    pub fn combined(parts: &[(&Self, f32)], pool: &PagePool, request: &Request) -> Result<Self> {
        let (first, others) = parts.split_first().ok_or(Error::Combination)?;
        let base = first.0.base();
        if others.iter().any(|(adapter, _)| adapter.base() != base) {
            return Err(Error::Combination);
        }
        let bytes = parts.iter().map(|(adapter, _)| adapter.bytes()).fold(0, usize::saturating_add);
        let mut pages = pool
            .allocate(bytes.div_ceil(pool.page_bytes()).max(1), request)
            .map_err(|source| Error::Memory { bytes, source })?;
        let mut memory = Memory::new(bytemuck::cast_slice_mut(&mut pages.bytes_mut()[..bytes]));
        let sites: BTreeSet<(usize, Site)> =
            parts.iter().flat_map(|(adapter, _)| adapter.sites.keys().copied()).collect();
        let (mut written, mut hash) = (Vec::with_capacity(sites.len()), Sha256::new());
        hash.update("combined;");
        for at in sites {
            let parts: Vec<(&LowRank, f32)> =
                parts.iter().filter_map(|(adapter, scale)| Some((adapter.sites.get(&at)?, *scale))).collect();
            let site = write(&parts, &mut memory)
                .ok_or_else(|| Error::NotFinite { name: format!("the sum of adapters in layer {}", at.0) })?;
            hash.update(format!("{at:?} {} {:?};", site.rank, site.expansions));
            written.push((at, site));
        }
        hash.update(bytemuck::cast_slice::<f32, u8>(memory.values()));
        let shared = SharedBytes::new(Resident(pages));
        let sites = written
            .into_iter()
            .map(|(at, written)| (at, written.low_rank(base.inputs(at.1), &shared)))
            .collect();
        Ok(Self { base: base.clone(), sites, digest: hash.finalize().into(), bytes })
    }
}

/// Writes the factors of a site: `A` of all parts, then the scaled `B` of each. `None` if a value
/// is not finite.
fn write(parts: &[(&LowRank, f32)], memory: &mut Memory<'_>) -> Option<Written> {
    let (mut rank, mut shrink) = (0, memory.bytes()..memory.bytes());
    for (part, _) in parts {
        let factors: &[f32] = bytemuck::cast_slice(part.shrink().bytes());
        let (values, bytes) = memory.take(factors.len());
        values.copy_from_slice(factors);
        rank += part.rank();
        shrink.end = bytes.end;
    }
    let (mut expansions, mut first) = (Vec::new(), 0);
    for (part, scale) in parts {
        for expansion in part.expansions() {
            let weights: Range<usize> = first + expansion.weights.start..first + expansion.weights.end;
            let factors = part.rows(expansion);
            let (values, rows) = memory.take(factors.len());
            for (value, factor) in values.iter_mut().zip(factors) {
                *value = factor * scale;
            }
            if !values.iter().all(|value| value.is_finite()) {
                return None;
            }
            let Expansion { target, outputs, .. } = *expansion;
            expansions.push(Expansion { target, weights, outputs, rows });
        }
        first += part.rank();
    }
    Some(Written { rank, shrink, expansions })
}
