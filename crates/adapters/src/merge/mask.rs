//! Masks of DARE: a function of seed, matrix, input and place alone, so that the order of work and
//! the number of threads do not change a merge.

use super::modules::Module;
use crate::place::Projection;

/// Seeded mask of one input's delta of one matrix.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mask {
    key: u64,
    p: f64,
}

impl Mask {
    pub(super) fn new(seed: u64, p: f64, module: &Module, input: usize) -> Self {
        let mut key = mix(seed);
        for part in [module.layer as u64, number(module.projection), input as u64] {
            key = mix(key ^ mix(part));
        }
        Self { key, p }
    }

    /// True with probability `1 - p`.
    pub(super) fn keeps(self, index: usize) -> bool {
        let bits = mix(self.key.wrapping_add((index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)));
        // 53 bits: a uniform number in [0, 1).
        (bits >> 11) as f64 * (1.0 / (1_u64 << 53) as f64) >= self.p
    }
}

/// Number of a projection, which must never change: masks depend on it.
fn number(projection: Projection) -> u64 {
    match projection {
        Projection::Query => 0,
        Projection::Key => 1,
        Projection::Value => 2,
        Projection::QueryKeyValue => 3,
        Projection::AttentionOutput => 4,
        Projection::Gate => 5,
        Projection::Up => 6,
        Projection::GateUp => 7,
        Projection::Down => 8,
        Projection::Logits => 9,
        Projection::FinalHidden => 10,
    }
}

/// Finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
pub(super) fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}
