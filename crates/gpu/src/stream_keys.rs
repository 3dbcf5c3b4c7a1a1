//! Keys of the kernels of several residual streams, and of gates of which few pass (ADR-0151).

use crate::error::{Error, Result, expect_multiple};

/// Largest number of residual streams.
pub const MAX_STREAMS: u32 = 8;

/// Residual streams of a row, which lie one behind the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamRows {
    /// Number of streams, 2 to [`MAX_STREAMS`].
    pub count: u32,
    /// Values of a stream.
    pub dim: u32,
    /// The stream that layers compute.
    pub active: u32,
    /// Bits of `eps`, added to the mean square by norms.
    pub eps_bits: u32,
}

/// Cut of the gates of a row at a number of standard deviations above their mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CutGatesKernel {
    /// Gates of a row, its first values.
    pub cols: u32,
    /// Values of a row.
    pub width: u32,
    /// Bits of the number of standard deviations.
    pub deviations_bits: u32,
}

/// A kernel of several residual streams, or of gates of which few pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StreamKernel {
    /// Copy of the first stream, and the magnitude of the others.
    Split(StreamRows),
    /// Prediction of all streams from themselves.
    Predict(StreamRows),
    /// Correction of all streams by the active one.
    Correct(StreamRows),
    /// Addition to all streams but the first.
    AddToOthers(StreamRows),
    /// Mean of the first stream and of projections of the others with its magnitude.
    Merge(StreamRows),
    /// Cut of gates.
    CutGates(CutGatesKernel),
}

impl StreamKernel {
    pub(crate) fn check(&self) -> Result<()> {
        let rows = match self {
            Self::CutGates(k) => {
                expect_multiple("gates", 4, k.cols.into())?;
                expect_multiple("values of a row", 4, k.width.into())?;
                if k.cols <= k.width {
                    return Ok(());
                }
                let expected = format!("at most {}", k.width);
                return Err(Error::Shape { what: "gates", expected, found: k.cols.into() });
            }
            Self::Split(rows)
            | Self::Predict(rows)
            | Self::Correct(rows)
            | Self::AddToOthers(rows)
            | Self::Merge(rows) => rows,
        };
        expect_multiple("values of a stream", 4, rows.dim.into())?;
        if (2..=MAX_STREAMS).contains(&rows.count) && rows.active < rows.count {
            return Ok(());
        }
        let expected = format!("2 to {MAX_STREAMS}, more than {}", rows.active);
        Err(Error::Shape { what: "residual streams", expected, found: rows.count.into() })
    }

    pub(crate) fn name(&self) -> String {
        let (name, rows) = match self {
            Self::CutGates(CutGatesKernel { cols, width, deviations_bits }) => {
                return format!("cut_gates_{cols}of{width}_{deviations_bits:x}");
            }
            Self::Split(rows) => ("split", rows),
            Self::Predict(rows) => ("predict", rows),
            Self::Correct(rows) => ("correct", rows),
            Self::AddToOthers(rows) => ("add_to", rows),
            Self::Merge(rows) => ("merge", rows),
        };
        let StreamRows { count, dim, active, eps_bits } = rows;
        format!("{name}_streams_{count}x{dim}_active{active}_{eps_bits:x}")
    }
}
