//! Offsets of the tiles of a plane, and the sections of a tile.

use half::f16;

use super::nuq::{NuqTile, n_halves};
use super::{GROUP, KEY_TILE, KiviBits, KvFormat, KvRole, turbo};
use crate::{Error, Result};

/// Format and sizes of the planes of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLayout {
    pub(super) format: KvFormat,
    pub(super) n_kv_heads: usize,
    pub(super) block_tokens: usize,
    pub(super) head_dim: usize,
}

impl KvLayout {
    /// Creates the layout of blocks of `block_tokens` positions.
    ///
    /// # Errors
    /// [`Error::KvHeadDim`] if `head_dim` is zero or not a multiple of the format's group,
    /// [`Error::KvBlockTokens`] if `block_tokens` is not a positive multiple of 32 and of the
    /// positions per scale.
    pub fn new(format: KvFormat, n_kv_heads: usize, block_tokens: usize, head_dim: usize) -> Result<Self> {
        let multiple = format.head_dim_multiple();
        if head_dim == 0 || !head_dim.is_multiple_of(multiple) {
            return Err(Error::KvHeadDim { format: format.name(), head_dim, multiple });
        }
        let multiple = format.block_tokens_multiple();
        if block_tokens == 0 || !block_tokens.is_multiple_of(multiple) {
            return Err(Error::KvBlockTokens { format: format.name(), block_tokens, multiple });
        }
        Ok(Self { format, n_kv_heads, block_tokens, head_dim })
    }

    /// Storage format.
    pub fn format(&self) -> KvFormat {
        self.format
    }

    /// Number of key/value heads.
    pub fn n_kv_heads(&self) -> usize {
        self.n_kv_heads
    }

    /// Positions per block.
    pub fn block_tokens(&self) -> usize {
        self.block_tokens
    }

    /// Values per head.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Bytes of the keys of a block, and of its values, with scales and minima.
    ///
    /// A multiple of 64; saturates.
    pub fn plane_bytes(&self) -> usize {
        self.run(KvRole::Values).bytes().saturating_mul(self.n_tiles())
    }

    /// Number of tiles per plane.
    pub(super) fn n_tiles(&self) -> usize {
        self.n_kv_heads.saturating_mul(self.block_tokens / KEY_TILE)
    }

    /// Sections of the plane's runs.
    pub(super) fn run(&self, role: KvRole) -> TileRun {
        TileRun::new(self.format, role, self.head_dim)
    }
}

/// Sections of a *run*: tiles that share scales (one tile, except for keys in large groups),
/// followed by scales and minima.
#[derive(Clone, Copy)]
pub(super) struct TileRun {
    /// Number of tiles.
    pub(super) tiles: usize,
    /// Bytes of the quants or floats of one tile.
    pub(super) tile_bytes: usize,
    /// Half-precision numbers after the tiles: scales, then minima if the format has them; ranges
    /// and outliers of `nuq3`; scales of `turbo3`, then its means in bytes.
    pub(super) scales: usize,
}

impl TileRun {
    /// Sections of a run; sizes saturate.
    #[inline(always)]
    pub(super) fn new(format: KvFormat, role: KvRole, head_dim: usize) -> Self {
        let bits = match format {
            KvFormat::F32 => 32,
            KvFormat::F16 | KvFormat::BF16 => 16,
            KvFormat::Q8 => 8,
            KvFormat::Q4 | KvFormat::Kivi { bits: KiviBits::Four, .. } => 4,
            KvFormat::Nuq3 | KvFormat::Turbo3 => 3,
            KvFormat::Kivi { bits: KiviBits::Two, .. } => 2,
        };
        // Number of groups of dimensions at 32 positions.
        let groups = |group: usize| (head_dim / group).saturating_mul(KEY_TILE);
        let (tiles, scales) = match (format, role) {
            (KvFormat::F32 | KvFormat::F16 | KvFormat::BF16, _) => (1, 0),
            (KvFormat::Q8, _) => (1, groups(GROUP)),
            (KvFormat::Q4, _) => (1, groups(GROUP).saturating_mul(2)),
            (KvFormat::Kivi { group, .. }, KvRole::Keys) => {
                (group.get() / KEY_TILE, head_dim.saturating_mul(2))
            }
            (KvFormat::Kivi { group, .. }, KvRole::Values) => (1, groups(group.get()).saturating_mul(2)),
            (KvFormat::Nuq3, _) => (1, n_halves(head_dim)),
            (KvFormat::Turbo3, _) => (1, turbo::n_halves(head_dim)),
        };
        Self { tiles, tile_bytes: head_dim.saturating_mul(KEY_TILE / 8 * bits), scales }
    }

    /// Bytes per run.
    #[inline(always)]
    pub(super) fn bytes(&self) -> usize {
        let scales = self.scales.saturating_mul(size_of::<f16>());
        self.tile_bytes.saturating_mul(self.tiles).saturating_add(scales)
    }

    /// Splits a run into quants (or floats) and scales.
    #[inline(always)]
    pub(super) fn split_mut<'a>(&self, run: &'a mut [u8]) -> (&'a mut [u8], &'a mut [f16]) {
        let (numbers, scales) = run.split_at_mut(self.tiles * self.tile_bytes);
        (numbers, bytemuck::cast_slice_mut(scales))
    }

    /// Tile `index` of a plane.
    #[inline(always)]
    pub(super) fn tile<'a>(&self, format: KvFormat, plane: &'a [u8], index: usize) -> KvTile<'a> {
        let run = &plane[index / self.tiles * self.bytes()..][..self.bytes()];
        let (numbers, scales) = run.split_at(self.tiles * self.tile_bytes);
        let numbers = &numbers[index % self.tiles * self.tile_bytes..][..self.tile_bytes];
        KvTile { format, numbers, scales: bytemuck::cast_slice(scales), nuq: None }
    }
}

/// Keys or values of 32 positions of one head, in storage format.
#[derive(Clone, Copy)]
pub(in crate::attention) struct KvTile<'a> {
    pub(in crate::attention) format: KvFormat,
    /// Floats or quants.
    pub(in crate::attention) numbers: &'a [u8],
    /// Scales, then minima if the format has them; ranges and outliers of `nuq3`; scales and means
    /// of `turbo3`.
    pub(in crate::attention) scales: &'a [f16],
    /// Context of a `nuq3` tile; `None` in other formats.
    pub(in crate::attention) nuq: Option<NuqTile<'a>>,
}

impl<'a> KvTile<'a> {
    /// Creates a tile over f32 values.
    #[inline(always)]
    pub(in crate::attention) fn of_f32(numbers: &'a [super::Line]) -> Self {
        Self { format: KvFormat::F32, numbers: bytemuck::cast_slice(numbers), scales: &[], nuq: None }
    }
}
