//! Key of the cut of heads that were filled up, and their sizes.

use crate::error::{Result, expect_multiple};

/// Attention takes heads of a multiple of so many values.
const UNIT: u32 = 8;

/// Values of a head of `head_dim` values in queries, keys and values of attention: the next
/// multiple of 8. Those behind `head_dim` are zeros.
pub fn stored_head_dim(head_dim: u32) -> u32 {
    head_dim.next_multiple_of(UNIT)
}

/// Copy of the first values of each head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CutHeadsKernel {
    /// Heads per row.
    pub heads: u32,
    /// Values of a head that are copied, of [`stored_head_dim`].
    pub head_dim: u32,
}

impl CutHeadsKernel {
    pub(crate) fn name(&self) -> String {
        format!("cut_heads_{}x{}", self.heads, self.head_dim)
    }

    pub(crate) fn check(&self) -> Result<()> {
        expect_multiple("heads", 1, self.heads.into())?;
        expect_multiple("head dimension", 1, self.head_dim.into())
    }
}
