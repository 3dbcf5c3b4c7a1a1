//! Windows of attention: tokens that a query sees.

/// Tokens that a query sees, itself included; without a window all before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttentionWindow {
    /// The last ones, this many.
    Sliding(u32),
    /// Tokens of its own chunk, of this many; the first chunk begins at position 0.
    Chunk(u32),
}

impl AttentionWindow {
    /// Most tokens that a query sees.
    pub(crate) fn tokens(self) -> u32 {
        match self {
            Self::Sliding(tokens) | Self::Chunk(tokens) => tokens,
        }
    }

    /// First token that the query at `position` sees.
    pub(crate) fn begin(self, position: u32) -> u32 {
        match self {
            Self::Sliding(tokens) => (position + 1).saturating_sub(tokens),
            Self::Chunk(tokens) => position / tokens * tokens,
        }
    }

    /// [`AttentionWindow::begin`] as WGSL, of the query before token `end`.
    pub(crate) fn begin_source(self, end: &str) -> String {
        match self {
            Self::Sliding(tokens) => format!("(max({end}, {tokens}u) - {tokens}u)"),
            Self::Chunk(tokens) => format!("(({end} - 1u) / {tokens}u * {tokens}u)"),
        }
    }

    /// Part of kernel names.
    pub(crate) fn name(window: Option<Self>) -> String {
        match window {
            None => String::new(),
            Some(Self::Sliding(tokens)) => format!("_window{tokens}"),
            Some(Self::Chunk(tokens)) => format!("_chunk{tokens}"),
        }
    }
}
