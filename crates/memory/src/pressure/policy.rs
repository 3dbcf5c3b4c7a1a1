//! The pressure ladder: rungs, watermarks, and the order of rungs in each policy.

use std::fmt;
use std::str::FromStr;

use crate::Error;

/// High watermark of a policy's first rung, as a fraction of the pool or a tenant's hard quota.
const FIRST_FROM: f64 = 0.80;

/// High watermark of the second rung.
const SECOND_FROM: f64 = 0.85;

/// Low watermark: both rungs stop here; the first rung starts here for tenants beyond their soft
/// quota.
pub(super) const UNTIL: f64 = 0.70;

/// High watermarks of [`PressurePolicy::at_marks`].
pub(crate) const FROM: [f64; 2] = [FIRST_FROM, SECOND_FROM];

/// A rung of the ladder: kind of memory that is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Rung {
    /// Migrates older tokens of the requesting sequence to the lowest tier.
    Precision,
    /// Evicts adapters that no request uses; their files restore them.
    Adapter,
    /// Evicts (or spills to files) prefixes that no sequence uses.
    Prefix,
    /// Shortens the pass of the request.
    Pass,
    /// Migrates hot tokens of the requesting sequence, all but its last block, to the lowest tier.
    Hot,
    /// Drops the oldest tokens of the requesting sequence after its attention sinks.
    Oldest,
}

/// Number of rungs.
pub(super) const N_RUNGS: usize = 6;

/// Policy under memory pressure: which rungs release memory, in which order.
///
/// | policy | from 80 % of the pages until 70 % | from 85 % until 70 % | when a request finds no room |
/// |---|---|---|---|
/// | `lower-precision` | precision | prefixes | precision, prefixes, shorter passes, hot tokens |
/// | `evict-prefixes`, `spill` | prefixes | precision | prefixes, precision, shorter passes |
/// | `reject` | - | - | - |
/// | `drop-oldest` | precision | prefixes | as `lower-precision`, then the oldest tokens |
///
/// Idle adapters are evicted wherever prefixes are, before them: reading a file restores an adapter
/// in milliseconds, a prefix is computed.
///
/// Spare pages of slabs are released first under every policy. `spill` requires a folder for
/// evicted prefixes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PressurePolicy {
    /// Tokens lose precision before prefixes are evicted.
    #[default]
    LowerPrecision,
    /// Prefixes are evicted before tokens lose precision; hot tokens keep theirs.
    EvictPrefixes,
    /// As [`EvictPrefixes`](Self::EvictPrefixes); evicted prefixes are written to files.
    Spill,
    /// Nothing is released: the request fails at once.
    Reject,
    /// As [`LowerPrecision`](Self::LowerPrecision); then the sequence drops its oldest tokens.
    /// Attention sinks stay (`StreamingLLM`, arXiv 2309.17453), and the sequence can continue
    /// beyond the budget.
    DropOldest,
}

impl PressurePolicy {
    /// All policies.
    pub const ALL: [Self; 5] =
        [Self::LowerPrecision, Self::EvictPrefixes, Self::Spill, Self::Reject, Self::DropOldest];

    /// Name in flags.
    pub fn name(self) -> &'static str {
        match self {
            Self::LowerPrecision => "lower-precision",
            Self::EvictPrefixes => "evict-prefixes",
            Self::Spill => "spill",
            Self::Reject => "reject",
            Self::DropOldest => "drop-oldest",
        }
    }

    /// Rungs above the first and the second high watermark, in order.
    pub fn at_marks(self) -> [&'static [Rung]; FROM.len()] {
        match self {
            Self::LowerPrecision | Self::DropOldest => [&[Rung::Precision], &[Rung::Adapter, Rung::Prefix]],
            Self::EvictPrefixes | Self::Spill => [&[Rung::Adapter, Rung::Prefix], &[Rung::Precision]],
            Self::Reject => [&[], &[]],
        }
    }

    /// Rungs for a request without room, in order.
    pub fn for_request(self) -> &'static [Rung] {
        use Rung::{Adapter, Hot, Oldest, Pass, Precision, Prefix};
        match self {
            Self::LowerPrecision => &[Precision, Adapter, Prefix, Pass, Hot],
            Self::EvictPrefixes | Self::Spill => &[Adapter, Prefix, Precision, Pass],
            Self::Reject => &[],
            Self::DropOldest => &[Precision, Adapter, Prefix, Pass, Hot, Oldest],
        }
    }
}

impl fmt::Display for PressurePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for PressurePolicy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let found = Self::ALL.into_iter().find(|policy| policy.name() == text);
        found.ok_or_else(|| Error::UnknownPressurePolicy { text: text.to_owned() })
    }
}
