//! Keys of kernels: everything that a kernel's source depends on.

use crate::repack::Format;

/// Largest number of activation rows of a [`Product`].
pub const MAX_BATCH: u32 = 8;

/// Features of the device that kernels are generated for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Target {
    /// Subgroup size for shuffles; `None`: sums go through workgroup memory.
    pub subgroup: Option<u32>,
    /// f16 values in storage buffers.
    pub f16: bool,
}

/// Division of a matrix product over threads. Changing `lanes` changes the order of sums, the rest
/// does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Weight rows per team.
    pub rows: u32,
    /// Threads of a team; they share each row's columns. A power of two, at most 256.
    pub lanes: u32,
    /// Teams per workgroup.
    pub teams: u32,
    /// Steps whose loads are issued together.
    pub unroll: u32,
}

/// Matrix product of few activation rows: `y[b, r] = sum_c w[r, c] x[b, c]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Product {
    /// Weight format.
    pub format: Format,
    /// Weight rows.
    pub rows: u32,
    /// Weight columns.
    pub cols: u32,
    /// Activation rows, 1 to 8.
    pub batch: u32,
    /// Division over threads.
    pub tile: Tile,
}

/// Activation function of [`RowOp::Gated`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x / (1 + exp(-x))`.
    Silu,
    /// `x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`.
    GeluTanh,
}

/// Operation on each row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RowOp {
    /// The row itself.
    Copy,
    /// `x / sqrt(mean(x^2) + eps) * weight`; holds the bits of `eps`.
    RmsNorm(u32),
    /// `residual += delta`, then [`RowOp::RmsNorm`] of the residual.
    AddRmsNorm(u32),
    /// `f(gate) * up`, both halves of a row of `2 cols` values.
    Gated(Activation),
}

/// An operation on rows of `cols` values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RowKernel {
    /// The operation.
    pub op: RowOp,
    /// Values per output row.
    pub cols: u32,
    /// Output in 8 bits instead of f32.
    pub quantize: bool,
}

/// Dimensions of a head that rotate together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RopeLayout {
    /// `j` with `j + rotary_dim / 2`.
    Halves,
    /// `2 j` with `2 j + 1`.
    Interleaved,
}

/// Rotary position embedding in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RopeKernel {
    /// Heads per row.
    pub heads: u32,
    /// Values per head.
    pub head_dim: u32,
    /// Leading values of a head that rotate.
    pub rotary_dim: u32,
    /// Which values rotate together.
    pub layout: RopeLayout,
}

/// Key of a kernel: with a [`Target`], everything that its source depends on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kernel {
    /// Matrix product.
    Product(Product),
    /// Operation on rows.
    Rows(RowKernel),
    /// Rotary position embedding.
    Rope(RopeKernel),
    /// `x += y` over this many values.
    Add(u32),
    /// Value and index of the largest of each 1024 values of rows of this many, the first among
    /// equals.
    Argmax(u32),
    /// Reads this many 16-byte words and stores nothing: bandwidth measurements.
    Read(u32),
    /// Index of the largest of this many candidates per row, from [`Kernel::Argmax`].
    ArgmaxMerge(u32),
}

impl Tile {
    /// Threads of a workgroup.
    pub fn threads(&self) -> u32 {
        self.lanes * self.teams
    }

    /// Weight rows of a workgroup.
    pub fn rows_per_workgroup(&self) -> u32 {
        self.rows * self.teams
    }
}

impl Product {
    /// Steps of all lanes over one row: groups of 32 values, of 8 for F16.
    pub(crate) fn steps_per_row(&self) -> u32 {
        self.cols / if self.format == Format::F16 { 8 } else { 32 }
    }
}

impl Kernel {
    /// Short name for labels and files, unique per kernel.
    pub fn name(&self) -> String {
        match self {
            Self::Product(p) => format!(
                "product_{}_{}x{}_b{}_r{}l{}t{}u{}",
                p.format.name().to_lowercase(),
                p.rows,
                p.cols,
                p.batch,
                p.tile.rows,
                p.tile.lanes,
                p.tile.teams,
                p.tile.unroll
            ),
            Self::Rows(r) => {
                let op = match r.op {
                    RowOp::Copy => "copy".to_owned(),
                    RowOp::RmsNorm(eps) => format!("rms_norm_{eps:x}"),
                    RowOp::AddRmsNorm(eps) => format!("add_rms_norm_{eps:x}"),
                    RowOp::Gated(Activation::Silu) => "gated_silu".to_owned(),
                    RowOp::Gated(Activation::GeluTanh) => "gated_gelu".to_owned(),
                };
                format!("{op}_{}_{}", r.cols, if r.quantize { "q8" } else { "f32" })
            }
            Self::Rope(r) => {
                format!("rope_{:?}_{}x{}_{}", r.layout, r.heads, r.head_dim, r.rotary_dim).to_lowercase()
            }
            Self::Add(n) => format!("add_{n}"),
            Self::Argmax(n) => format!("argmax_{n}"),
            Self::ArgmaxMerge(n) => format!("argmax_merge_{n}"),
            Self::Read(n) => format!("read_{n}"),
        }
    }
}
