//! The whole ladder: the rungs, the watermarks, and the order in which each policy takes them.

use std::fmt;
use std::str::FromStr;

use crate::Error;

/// Use at which the first rung of a policy yields: the pool's, or that of a tenant's hard quota.
const FIRST_FROM: f64 = 0.80;

/// Use at which the second rung yields as well.
const SECOND_FROM: f64 = 0.85;

/// Use at which both stop, and from which the first rung of tenants beyond their soft quota yields.
pub(super) const UNTIL: f64 = 0.70;

/// Uses at which the rungs of [`PressurePolicy::at_marks`] begin to yield.
pub(crate) const FROM: [f64; 2] = [FIRST_FROM, SECOND_FROM];

/// Memory that yields in one stage of the ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Rung {
    /// Older tokens of the sequence that asks, to the lowest tier.
    Precision,
    /// Prefixes that no sequence uses: evicted, or spilled to files.
    Prefix,
    /// Part of the request itself: it goes on with a shorter pass.
    Pass,
    /// Hot tokens of the sequence that asks, to the lowest tier, all but its last block.
    Hot,
    /// The oldest tokens of the sequence that asks, behind its attention sinks.
    Oldest,
}

/// Number of rungs.
pub(super) const N_RUNGS: usize = 5;

/// The rungs that yield memory for a request, in order.
///
/// | policy | from 80 % of the pages until 70 % | from 85 % until 70 % | when a request finds no room |
/// |---|---|---|---|
/// | `lower-precision` | precision | prefixes | precision, prefixes, shorter passes, hot tokens |
/// | `evict-prefixes`, `spill` | prefixes | precision | prefixes, precision, shorter passes |
/// | `reject` | - | - | - |
/// | `drop-oldest` | precision | prefixes | as `lower-precision`, then the oldest tokens |
///
/// Spare pages of slabs yield before everything else, for every policy. `spill` asks for a folder
/// that evicted prefixes are written to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PressurePolicy {
    /// Tokens lose precision before prefixes are evicted.
    #[default]
    LowerPrecision,
    /// Prefixes are evicted before tokens lose precision; hot tokens never do.
    EvictPrefixes,
    /// As [`EvictPrefixes`](Self::EvictPrefixes), with files for what is evicted.
    Spill,
    /// Nothing yields: the request fails at once.
    Reject,
    /// As [`LowerPrecision`](Self::LowerPrecision); then the sequence drops its oldest tokens
    /// behind the attention sinks (`StreamingLLM`, arXiv 2309.17453), so that it goes on beyond the
    /// budget.
    DropOldest,
}

impl PressurePolicy {
    /// All policies.
    pub const ALL: [Self; 5] =
        [Self::LowerPrecision, Self::EvictPrefixes, Self::Spill, Self::Reject, Self::DropOldest];

    /// Its name in flags.
    pub fn name(self) -> &'static str {
        match self {
            Self::LowerPrecision => "lower-precision",
            Self::EvictPrefixes => "evict-prefixes",
            Self::Spill => "spill",
            Self::Reject => "reject",
            Self::DropOldest => "drop-oldest",
        }
    }

    /// Rungs that yield from the first watermark on and from the second.
    pub fn at_marks(self) -> &'static [Rung] {
        match self {
            Self::LowerPrecision | Self::DropOldest => &[Rung::Precision, Rung::Prefix],
            Self::EvictPrefixes | Self::Spill => &[Rung::Prefix, Rung::Precision],
            Self::Reject => &[],
        }
    }

    /// Rungs that yield for a request without room.
    pub fn for_request(self) -> &'static [Rung] {
        use Rung::{Hot, Oldest, Pass, Precision, Prefix};
        match self {
            Self::LowerPrecision => &[Precision, Prefix, Pass, Hot],
            Self::EvictPrefixes | Self::Spill => &[Prefix, Precision, Pass],
            Self::Reject => &[],
            Self::DropOldest => &[Precision, Prefix, Pass, Hot, Oldest],
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
