//! Parts of keys of kernels for layers that differ: norms of values, gates of inputs per layer,
//! parts of rows (ADR-0151).

/// Values of heads behind [`Gpu::head_norm`](crate::Gpu::head_norm).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum HeadValues {
    /// As they are.
    #[default]
    Kept,
    /// Each head normed, without weights.
    Normed,
    /// The keys before their norm, each head normed without weights.
    Keys,
}

/// A part of longer rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RowPart {
    /// Values of the part; those of an output row behind them are zeros.
    pub values: u32,
    /// Values of a row.
    pub width: u32,
    /// Offset of the part in a row.
    pub first: u32,
}

impl RowPart {
    pub(crate) fn name(&self) -> String {
        let Self { values, width, first } = self;
        format!("{values}at{first}of{width}")
    }
}
