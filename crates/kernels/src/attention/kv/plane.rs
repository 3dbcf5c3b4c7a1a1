//! Planes: the keys or values of a block, with the context for reading and writing them.

use super::nuq::NuqContext;
use super::{KEY_TILE, KvFormat, KvLayout, KvRole, KvTile, SquatCorrection};

/// Keys or values of one block, written by [`Kernels::store_kv`] or [`Kernels::convert_kv`].
///
/// [`Kernels::store_kv`]: crate::Kernels::store_kv
/// [`Kernels::convert_kv`]: crate::Kernels::convert_kv
#[derive(Debug, Clone, Copy)]
pub struct KvPlane<'a> {
    layout: KvLayout,
    role: KvRole,
    bytes: &'a [u8],
    nuq: Option<NuqContext<'a>>,
}

/// Writable plane: memory for the keys or values of one block.
///
/// Written by [`Kernels::store_kv`] or [`Kernels::convert_kv`].
///
/// [`Kernels::store_kv`]: crate::Kernels::store_kv
/// [`Kernels::convert_kv`]: crate::Kernels::convert_kv
#[derive(Debug)]
pub struct KvPlaneMut<'a> {
    pub(super) layout: KvLayout,
    pub(super) role: KvRole,
    pub(super) bytes: &'a mut [u8],
    pub(super) nuq: Option<NuqContext<'a>>,
    pub(super) corrections: Option<&'a [SquatCorrection]>, // [n_kv_heads]
}

impl<'a> KvPlane<'a> {
    /// Creates a plane over `bytes`, aligned for the format's element type (64 bytes is best).
    ///
    /// # Panics
    /// If the length is not [`KvLayout::plane_bytes`].
    #[track_caller]
    pub fn new(layout: KvLayout, role: KvRole, bytes: &'a [u8]) -> Self {
        check_bytes(&layout, bytes.len());
        Self { layout, role, bytes, nuq: None }
    }

    /// Sets the context required by [`KvFormat::Nuq3`]; other formats ignore it.
    ///
    /// # Panics
    /// If its head count or size differs, or its RoPE tables hold too few positions.
    #[must_use]
    #[track_caller]
    pub fn with_nuq(self, nuq: impl Into<Option<NuqContext<'a>>>) -> Self {
        Self { nuq: used(nuq.into(), &self.layout), ..self }
    }

    /// Layout of the plane.
    pub fn layout(&self) -> KvLayout {
        self.layout
    }

    /// Storage format.
    pub fn format(&self) -> KvFormat {
        self.layout.format
    }

    /// Role: keys or values.
    pub fn role(&self) -> KvRole {
        self.role
    }

    /// Contents of the plane.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Tile of `head` starting at position `offset` of the block.
    #[inline(always)]
    pub(in crate::attention) fn tile(&self, head: usize, offset: usize) -> KvTile<'a> {
        let KvLayout { format, block_tokens, .. } = self.layout;
        let index = (head * block_tokens + offset) / KEY_TILE;
        let nuq = self.nuq.map(|nuq| nuq.tile(head, offset));
        KvTile { nuq, ..self.layout.run(self.role).tile(format, self.bytes, index) }
    }

    /// Panics if the format needs a context and the plane has none.
    #[track_caller]
    pub(in crate::attention) fn check_context(&self) {
        check_context(&self.layout, self.nuq.is_some());
    }
}

impl<'a> KvPlaneMut<'a> {
    /// Creates a writable plane; see [`KvPlane::new`].
    ///
    /// # Panics
    /// If the length is not [`KvLayout::plane_bytes`].
    #[track_caller]
    pub fn new(layout: KvLayout, role: KvRole, bytes: &'a mut [u8]) -> Self {
        check_bytes(&layout, bytes.len());
        Self { layout, role, bytes, nuq: None, corrections: None }
    }

    /// Sets the context required by [`KvFormat::Nuq3`]; see [`KvPlane::with_nuq`].
    ///
    /// # Panics
    /// If its head count or size differs, or its RoPE tables hold too few positions.
    #[must_use]
    #[track_caller]
    pub fn with_nuq(self, nuq: impl Into<Option<NuqContext<'a>>>) -> Self {
        Self { nuq: used(nuq.into(), &self.layout), ..self }
    }

    /// Sets `SQuat` corrections, `[n_kv_heads]`, for conversions to [`KvFormat::Kivi`] keys.
    ///
    /// They choose quants that minimize the score errors of the queries they were computed from.
    /// Values and other formats ignore them.
    ///
    /// # Panics
    /// If there is not one correction of matching size per head.
    #[must_use]
    #[track_caller]
    pub fn with_corrections(self, corrections: impl Into<Option<&'a [SquatCorrection]>>) -> Self {
        let corrections = corrections.into();
        let KvLayout { n_kv_heads, head_dim, .. } = self.layout;
        if let Some(corrections) = corrections {
            assert!(
                corrections.len() == n_kv_heads && corrections.iter().all(|c| c.head_dim() == head_dim),
                "squat: {} corrections for {n_kv_heads} heads of {head_dim} values",
                corrections.len()
            );
        }
        Self { corrections, ..self }
    }

    /// Panics if the format needs a context and the plane has none.
    #[track_caller]
    pub(super) fn check_context(&self) {
        check_context(&self.layout, self.nuq.is_some());
    }
}

#[track_caller]
fn check_bytes(layout: &KvLayout, bytes: usize) {
    assert_eq!(bytes, layout.plane_bytes(), "bytes of a plane of {layout:?}");
}

#[track_caller]
fn check_context(layout: &KvLayout, has_context: bool) {
    let format = layout.format;
    assert!(has_context || !format.needs_calibration(), "a plane in {format} without its context");
}

/// Returns the context if the format needs one.
#[track_caller]
fn used<'a>(nuq: Option<NuqContext<'a>>, layout: &KvLayout) -> Option<NuqContext<'a>> {
    let nuq = nuq.filter(|_| layout.format.needs_calibration());
    if let Some(nuq) = nuq {
        nuq.check(layout.n_kv_heads, layout.head_dim, layout.block_tokens);
    }
    nuq
}
