//! Keys of the kernels of layers with a state.

use crate::error::{Error, Result, expect_multiple};

/// Largest number of rows that an output of a [`ConvolutionKernel`] reads.
pub const MAX_TAPS: u32 = 8;

/// Input and output of a causal convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConvolutionForm {
    /// The first values of a row; SiLU of the sum, with a bias or without.
    Silu {
        /// A bias per channel is added to the sum.
        biased: bool,
    },
    /// Rows of three parts of `channels` values: the first times the third is the input, and the
    /// second multiplies the sum.
    Gated,
}

/// Causal convolution of each channel over the rows of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConvolutionKernel {
    /// Input and output.
    pub form: ConvolutionForm,
    /// Channels.
    pub channels: u32,
    /// Rows that an output reads, its own included: 2 to [`MAX_TAPS`].
    pub taps: u32,
    /// Values per input row.
    pub width: u32,
    /// All rows are of the first span: a workgroup has some of them.
    pub one_sequence: bool,
}

/// Gated delta rule: see [`Gpu::delta_rule`](crate::Gpu::delta_rule).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeltaRuleKernel {
    /// Heads of queries and keys.
    pub key_heads: u32,
    /// Heads of values, each with a state: a multiple of `key_heads`.
    pub value_heads: u32,
    /// Values of a query or key.
    pub key_dim: u32,
    /// Values of a value.
    pub value_dim: u32,
    /// Value heads of one key head are neighbours; else every `key_heads`-th has the same one.
    pub grouped: bool,
}

/// Selective scan (Mamba-2): see [`Gpu::selective_scan`](crate::Gpu::selective_scan).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SelectiveScanKernel {
    /// Heads, each with a state.
    pub heads: u32,
    /// Values of a head.
    pub head_dim: u32,
    /// Groups of neighbouring heads with the same weights: divides `heads`.
    pub groups: u32,
    /// Rows of a head's state.
    pub state_dim: u32,
}

/// Norm of gated values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GateNorm {
    /// None.
    None,
    /// Of the values of a group before they are multiplied; groups share their weights. Holds the
    /// bits of `eps`.
    Before(u32),
    /// Of the products of a group; each group has weights of its own. Holds the bits of `eps`.
    Behind(u32),
}

/// Values times activated gates, in groups: see [`Gpu::gate`](crate::Gpu::gate).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GateKernel {
    /// Groups of a row.
    pub groups: u32,
    /// Values of a group.
    pub dim: u32,
    /// Values per row of the gates.
    pub width: u32,
    /// Offset of the gates of the first group in a row.
    pub first: u32,
    /// Distance of the gates of neighbouring groups.
    pub step: u32,
    /// SiLU of the gates; else their sigmoid.
    pub silu: bool,
    /// Norm of each group.
    pub norm: GateNorm,
}

/// Copy of queries, keys and values from rows with a gate behind each query head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SplitGatesKernel {
    /// Query heads.
    pub heads: u32,
    /// KV heads.
    pub kv_heads: u32,
    /// Values per head.
    pub head_dim: u32,
}

/// A kernel of layers with a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StateKernel {
    /// Causal convolution.
    Convolve(ConvolutionKernel),
    /// Gated delta rule.
    DeltaRule(DeltaRuleKernel),
    /// Selective scan.
    SelectiveScan(SelectiveScanKernel),
    /// Values times activated gates.
    Gate(GateKernel),
    /// Queries, keys and values without the gates of queries.
    SplitGates(SplitGatesKernel),
}

impl ConvolutionKernel {
    /// Values of the state of a sequence: the inputs of its last rows, `[taps - 1, channels]`.
    pub fn state_values(&self) -> u64 {
        u64::from(self.taps.saturating_sub(1)) * u64::from(self.channels)
    }

    fn check(&self) -> Result<()> {
        expect_multiple("channels", 4, self.channels.into())?;
        expect_multiple("values per input row", 4, self.width.into())?;
        let (what, found) = ("taps", self.taps.into());
        if !(2..=MAX_TAPS).contains(&self.taps) {
            return Err(Error::Shape { what, expected: format!("2 to {MAX_TAPS}"), found });
        }
        let parts = if self.form == ConvolutionForm::Gated { 3 } else { 1 };
        let least = parts * u64::from(self.channels);
        if u64::from(self.width) < least {
            let (what, found) = ("values per input row", self.width.into());
            return Err(Error::Shape { what, expected: format!("at least {least}"), found });
        }
        Ok(())
    }

    fn name(&self) -> String {
        let Self { channels, taps, width, .. } = self;
        let form = match self.form {
            ConvolutionForm::Silu { biased: false } => "silu",
            ConvolutionForm::Silu { biased: true } => "biased_silu",
            ConvolutionForm::Gated => "gated",
        };
        let one = if self.one_sequence { "_one" } else { "" };
        format!("{form}_{channels}of{width}_by{taps}{one}")
    }
}

impl DeltaRuleKernel {
    /// Values of a row: queries and keys of all key heads, then values.
    pub fn channels(&self) -> u32 {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    /// Values of the state of a sequence, `[value_heads, key_dim / 4, value_dim, 4]`.
    pub fn state_values(&self) -> u64 {
        u64::from(self.value_heads) * u64::from(self.key_dim) * u64::from(self.value_dim)
    }

    fn check(&self) -> Result<()> {
        expect_multiple("heads of values", self.key_heads.max(1).into(), self.value_heads.into())?;
        check_matrix(self.key_dim, self.value_dim)
    }
}

impl SelectiveScanKernel {
    /// Values of a row: inputs of all heads, then the weights of inputs and of outputs of all
    /// groups.
    pub fn channels(&self) -> u32 {
        self.heads * self.head_dim + 2 * self.groups * self.state_dim
    }

    /// Values of the state of a sequence, `[heads, state_dim / 4, head_dim, 4]`.
    pub fn state_values(&self) -> u64 {
        u64::from(self.heads) * u64::from(self.state_dim) * u64::from(self.head_dim)
    }

    fn check(&self) -> Result<()> {
        expect_multiple("heads", self.groups.max(1).into(), self.heads.into())?;
        check_matrix(self.state_dim, self.head_dim)
    }
}

impl GateKernel {
    fn check(&self) -> Result<()> {
        let Self { groups, dim, width, first, step, .. } = *self;
        expect_multiple("groups", 1, groups.into())?;
        expect_multiple("values of a group", 4, dim.into())?;
        expect_multiple("values per row of the gates", 4, width.into())?;
        expect_multiple("distance of gates", 4, step.into())?;
        let end = u64::from(first) + u64::from(step) * u64::from(groups - 1) + u64::from(dim);
        if first.is_multiple_of(4) && end <= width.into() {
            return Ok(());
        }
        let expected = format!("a multiple of 4, with {end} values in a row");
        Err(Error::Shape { what: "offset of the gates", expected, found: first.into() })
    }
}

/// A state is read in words of 4 rows of a column.
fn check_matrix(rows: u32, columns: u32) -> Result<()> {
    expect_multiple("rows of a head's state", 4, rows.into())?;
    expect_multiple("columns of a head's state", 4, columns.into())?;
    if rows <= 1024 {
        return Ok(());
    }
    Err(Error::Shape { what: "rows of a head's state", expected: "at most 1024".into(), found: rows.into() })
}

impl StateKernel {
    /// Fails if sizes do not match.
    pub(crate) fn check(&self) -> Result<()> {
        match self {
            Self::Convolve(k) => k.check(),
            Self::DeltaRule(k) => k.check(),
            Self::SelectiveScan(k) => k.check(),
            Self::Gate(k) => k.check(),
            Self::SplitGates(k) => {
                expect_multiple("query heads", 1, k.heads.into())?;
                expect_multiple("KV heads", 1, k.kv_heads.into())?;
                expect_multiple("head dimension", 4, k.head_dim.into())
            }
        }
    }

    pub(crate) fn name(&self) -> String {
        match self {
            Self::Convolve(k) => format!("convolve_{}", k.name()),
            Self::DeltaRule(k) => {
                let DeltaRuleKernel { key_heads, value_heads, key_dim, value_dim, .. } = k;
                let grouped = if k.grouped { "_grouped" } else { "" };
                format!("delta_rule_{key_heads}x{key_dim}_{value_heads}x{value_dim}{grouped}")
            }
            Self::SelectiveScan(k) => {
                let SelectiveScanKernel { heads, head_dim, groups, state_dim } = k;
                format!("selective_scan_{heads}x{head_dim}_{groups}x{state_dim}")
            }
            Self::Gate(k) => {
                let GateKernel { groups, dim, width, first, step, .. } = k;
                let activation = if k.silu { "silu" } else { "sigmoid" };
                let norm = match k.norm {
                    GateNorm::None => String::new(),
                    GateNorm::Before(eps) => format!("_behind_norm{eps:x}"),
                    GateNorm::Behind(eps) => format!("_norm{eps:x}"),
                };
                format!("gate_{activation}_{groups}x{dim}_at{first}by{step}of{width}{norm}")
            }
            Self::SplitGates(SplitGatesKernel { heads, kv_heads, head_dim }) => {
                format!("split_gates_{heads}x{head_dim}_kv{kv_heads}")
            }
        }
    }
}
