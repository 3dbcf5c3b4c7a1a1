//! Attention span of the layers: full, sliding window or chunks.

use crate::config::keys::Keys;
use crate::error::Result;

/// Largest window that a file may name; positions are counted in 32 bits.
const MAX_WINDOW: usize = u32::MAX as usize;

/// Attention span of the layers of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Window {
    /// To the first token.
    Full,
    /// A query sees itself and the tokens before it, this many in all, in every layer.
    Sliding(usize),
    /// So in some layers; in the others to the first token.
    Mixed {
        /// Window size in tokens, the query included.
        tokens: usize,
        /// True for layers with the window, `[n_layers]`.
        windowed: Vec<bool>,
    },
    /// Chunked attention: a query sees itself and the tokens before it in its own chunk, in some
    /// layers; in the others to the first token. Source: Llama 4.
    Chunked {
        /// Tokens of a chunk; the first begins at position 0.
        tokens: usize,
        /// True for layers with chunks, `[n_layers]`.
        chunked: Vec<bool>,
    },
}

/// Defaults for files without the keys.
pub(super) struct Usual {
    /// Tokens of the window; 0 is none.
    pub(super) tokens: usize,
    /// The last of every `period` layers sees all tokens; 0 is no layer.
    pub(super) period: usize,
}

impl Usual {
    /// No window, or if the file has one, in every layer.
    pub(super) const EVERY_LAYER: Self = Self { tokens: 0, period: 0 };
}

impl Window {
    /// Sliding-window size of `layer` in tokens, or the length of its chunks, beyond which no query
    /// sees either; `None` for full attention.
    pub fn of_layer(&self, layer: usize) -> Option<usize> {
        match self {
            Self::Full => None,
            Self::Sliding(tokens) => Some(*tokens),
            Self::Mixed { tokens, windowed } => windowed.get(layer)?.then_some(*tokens),
            Self::Chunked { .. } => self.chunk_of_layer(layer),
        }
    }

    /// Length in tokens of the chunks of `layer`; `None` without.
    pub fn chunk_of_layer(&self, layer: usize) -> Option<usize> {
        match self {
            Self::Chunked { tokens, chunked } => chunked.get(layer)?.then_some(*tokens),
            _ => None,
        }
    }

    /// True if some layer has chunked attention.
    pub fn is_chunked(&self) -> bool {
        matches!(self, Self::Chunked { .. })
    }

    /// Chunks in the place of windows, in the same layers of `n_layers`.
    pub(super) fn into_chunks(self, n_layers: usize) -> Self {
        match self {
            Self::Sliding(tokens) => Self::Chunked { tokens, chunked: vec![true; n_layers] },
            Self::Mixed { tokens, windowed } => Self::Chunked { tokens, chunked: windowed },
            other => other,
        }
    }

    /// Reads `attention.sliding_window` and its pattern, a truth value for each layer or a period.
    pub(super) fn read(keys: &Keys<'_>, n_layers: usize, usual: Usual) -> Result<Self> {
        let tokens = keys.count("attention.sliding_window", 0..=MAX_WINDOW)?.unwrap_or(usual.tokens);
        if tokens == 0 {
            return Ok(Self::Full);
        }
        let pattern = "attention.sliding_window_pattern";
        let windowed = if let Some(windowed) = keys.flags(pattern, n_layers)? {
            windowed
        } else {
            let period = keys.count(pattern, 0..=usize::MAX)?.unwrap_or(usual.period);
            (0..n_layers).map(|layer| period == 0 || layer % period != period - 1).collect()
        };
        Ok(match (windowed.contains(&true), windowed.contains(&false)) {
            (true, true) => Self::Mixed { tokens, windowed },
            (true, false) => Self::Sliding(tokens),
            (false, _) => Self::Full,
        })
    }
}
