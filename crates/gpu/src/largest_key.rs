//! Keys of kernels that find the largest values of rows.

/// Argmax of the first values of each row, the first among equals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ArgmaxKernel {
    /// Values of a row.
    pub width: u32,
    /// Number of the first of them that are compared.
    pub values: u32,
}

/// Values per row that [`Gpu::largest`](crate::Gpu::largest) finds.
pub const LARGEST_VALUES: u32 = 64;

/// The largest of each 1024 candidates of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LargestKernel {
    /// Values of a row.
    pub width: u32,
    /// Candidates of a row: its first values, or those that a launch before has left.
    pub candidates: u32,
    /// Candidates are values of the row.
    pub is_first: bool,
    /// One list is left: its values are stored, in the place of their order.
    pub is_last: bool,
}

impl ArgmaxKernel {
    pub(crate) fn name(&self) -> String {
        format!("argmax_{}of{}", self.values, self.width)
    }
}

impl LargestKernel {
    pub(crate) fn name(&self) -> String {
        let from = if self.is_first { "" } else { "_lists" };
        let to = if self.is_last { "_last" } else { "" };
        format!("largest_{}of{}{from}{to}", self.candidates, self.width)
    }
}
