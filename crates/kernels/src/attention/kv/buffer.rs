//! Cache-line-aligned memory, so that a wide vector never spans two lines.

use bytemuck::{Pod, Zeroable};

use super::WIDE;
use crate::lanes::LANES;

/// Cache line of sixteen f32 values.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C, align(64))]
pub(in crate::attention) struct Line([[f32; LANES]; 2]);

impl Line {
    /// Values as two groups of lanes.
    #[inline(always)]
    pub(in crate::attention) fn halves(&self) -> &[[f32; LANES]; 2] {
        &self.0
    }

    /// Values as two groups of lanes.
    #[inline(always)]
    pub(in crate::attention) fn halves_mut(&mut self) -> &mut [[f32; LANES]; 2] {
        &mut self.0
    }
}

/// Values of the lines.
#[inline(always)]
pub(in crate::attention) fn floats(lines: &[Line]) -> &[f32] {
    bytemuck::cast_slice(lines)
}

/// Values of the lines.
#[inline(always)]
pub(in crate::attention) fn floats_mut(lines: &mut [Line]) -> &mut [f32] {
    bytemuck::cast_slice_mut(lines)
}

/// Number of lines for `n_values`.
pub(in crate::attention) fn as_lines_len(n_values: usize) -> usize {
    n_values.div_ceil(WIDE)
}

/// Buffer for planes of keys and values, aligned to cache lines.
#[derive(Debug, Default)]
pub struct KvBuffer(Vec<Line>);

impl KvBuffer {
    /// Allocates `bytes` zeros, rounded up to a multiple of 64; `None` if the allocation fails.
    pub fn zeroed(bytes: usize) -> Option<Self> {
        let n_lines = bytes.div_ceil(size_of::<Line>());
        let mut lines = Vec::new();
        lines.try_reserve_exact(n_lines).ok()?;
        lines.resize(n_lines, Line::zeroed());
        Some(Self(lines))
    }

    /// Contents of the buffer.
    pub fn as_bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }

    /// Mutable contents of the buffer.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.0)
    }
}
