//! Splits of the columns of a product (split-K).

/// Splits of the columns of a [`CooperativeKernel`](crate::CooperativeKernel): sums of so many
/// columns each, a multiple of 64, which are added in their order.
///
/// The number of columns changes bits; where the splits are added changes none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ColumnSplits {
    /// One sum over all columns.
    Whole,
    /// A workgroup computes its splits one after the other. Not with squares of 8 (Metal).
    InTurn(u32),
    /// Splits have workgroups of their own, and [`SumSplitsKernel`] adds them.
    Apart(u32),
}

/// Sum of the splits of a [`CooperativeKernel`](crate::CooperativeKernel), in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SumSplitsKernel {
    /// Weight rows.
    pub rows: u32,
    /// Number of splits.
    pub splits: u32,
    /// Values per output row; `rows` of them from `first` on are stored.
    pub width: u32,
    /// Offset of the first stored value in an output row.
    pub first: u32,
}

/// Most bytes of the sums of splits that are apart in [`Matrix::gemm`](crate::Matrix::gemm).
pub const MAX_SPLIT_BYTES: u64 = 16 << 20;
/// Divisor of the columns of a split: whole stages of every tile.
pub(crate) const SPLIT_UNIT: u32 = 64;
/// Fewest columns of a split.
const LEAST_COLS: u32 = 512;
/// Weight rows that fill a GPU with 64 activation rows: 200 workgroups of 64.
const ENOUGH_ROWS: u32 = 12_800;
/// Most activation rows of splits that are apart.
const MOST_APART: u32 = 128;

impl ColumnSplits {
    /// Splits for a matrix and a number of activation rows, by figures of an H200
    /// (`docs/performance-gpu.md`).
    ///
    /// Their columns depend on the matrix alone, so that a row's bits do not depend on the rows
    /// beside it: a matrix that alone fills a GPU has none. They are apart where the tiles of all
    /// rows would leave multiprocessors without work.
    pub(crate) fn choose(rows: u32, cols: u32, batch: u32) -> Self {
        let splits = ENOUGH_ROWS.div_ceil(rows).min(cols / LEAST_COLS);
        if splits <= 1 {
            return Self::Whole;
        }
        let split = cols.div_ceil(splits).next_multiple_of(SPLIT_UNIT);
        if batch <= MOST_APART && rows * batch.div_ceil(64) < ENOUGH_ROWS {
            Self::Apart(split)
        } else {
            Self::InTurn(split)
        }
    }

    /// Columns of a split; `None` without splits.
    pub(crate) fn cols(self) -> Option<u32> {
        match self {
            Self::Whole => None,
            Self::InTurn(split) | Self::Apart(split) => Some(split),
        }
    }

    /// Number of workgroups that share the columns of an output.
    pub(crate) fn apart(self, cols: u32) -> u32 {
        if let Self::Apart(split) = self { cols.div_ceil(split) } else { 1 }
    }

    /// Part of the name of a kernel.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Whole => String::new(),
            Self::InTurn(split) => format!("_every{split}"),
            Self::Apart(split) => format!("_split{split}"),
        }
    }
}

impl SumSplitsKernel {
    pub(crate) fn name(&self) -> String {
        let Self { rows, splits, width, first } = *self;
        format!("sum_splits_{splits}x{rows}_at{first}of{width}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_fill_a_gpu_and_are_whole_stages() {
        let choose = ColumnSplits::choose;
        for (rows, cols) in [(14_336, 4096), (128_256, 2048), (512, 1023), (16, 576)] {
            assert_eq!(choose(rows, cols, 1), ColumnSplits::Whole, "{rows} x {cols}");
        }
        for (rows, cols, splits) in
            [(4096, 4096, 4), (4096, 14_336, 4), (1024, 4096, 8), (2048, 8192, 7), (512, 2048, 4)]
        {
            let split = choose(rows, cols, 1).cols().expect("few rows");
            assert_eq!((cols.div_ceil(split), split % SPLIT_UNIT), (splits, 0), "{rows} x {cols}");
        }
    }

    #[test]
    fn columns_of_splits_do_not_follow_the_batch_and_their_sums_are_bounded() {
        const COLS: u32 = 1 << 24;
        for rows in 1..=ENOUGH_ROWS {
            for batch in [1, 64, 65, 128, 129, 512] {
                let splits = ColumnSplits::choose(rows, COLS, batch);
                assert_eq!(splits.cols(), ColumnSplits::choose(rows, COLS, 1).cols(), "{rows} rows");
                let apart = splits.apart(COLS);
                let sums = u64::from(apart) * u64::from(rows) * u64::from(batch.next_multiple_of(64));
                assert!(apart == 1 || sums * 4 <= MAX_SPLIT_BYTES, "{rows} rows, batch {batch}");
            }
        }
    }
}
