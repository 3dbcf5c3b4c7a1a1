//! Blocks of columns of a head's state.

use crate::lanes::LANES;

/// Vectors of a block: these, as many results and as many changes of the state are in registers.
pub(super) const BROAD: usize = 4;

/// `W` vectors of a row, from `column` on.
#[inline(always)]
pub(super) fn block<const W: usize>(row: &[f32], column: usize) -> &[[f32; LANES]] {
    row[column..][..W * LANES].as_chunks().0
}

/// As [`block`], to be changed.
#[inline(always)]
pub(super) fn block_mut<const W: usize>(row: &mut [f32], column: usize) -> &mut [[f32; LANES]] {
    row[column..][..W * LANES].as_chunks_mut().0
}
