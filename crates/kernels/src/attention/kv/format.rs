//! KV format names and parameters; the role of a plane (keys or values).

use std::fmt;
use std::str::FromStr;

use super::GROUP;
use crate::{Error, Result};

/// Storage format of keys and values.
///
/// # Examples
/// ```
/// use ruvllm_kernels::attention::{KiviBits, KiviGroup, KvFormat};
///
/// assert_eq!("q8".parse::<KvFormat>()?, KvFormat::Q8);
/// assert_eq!(KvFormat::BF16.to_string(), "bf16");
/// let two_bits = KvFormat::Kivi { bits: KiviBits::Two, group: KiviGroup::Of128 };
/// assert_eq!("kivi2-g128".parse::<KvFormat>()?, two_bits);
/// # Ok::<(), ruvllm_kernels::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum KvFormat {
    /// 32-bit floats, as the projections computed them.
    F32,
    /// 16-bit floats, rounded to nearest: half the memory and memory traffic of `F32`.
    #[default]
    F16,
    /// bfloat16, rounded to nearest: the range of `F32` with 8 bits of precision.
    BF16,
    /// 8 bits: `x = scale * q`, one scale per token, head and 32 dimensions; `scale = max|x| /
    /// 127`.
    Q8,
    /// 4 bits: `x = minimum + scale * q`, one scale and minimum per token, head and 32 dimensions;
    /// `scale = (max x - min x) / 15`. The minimum costs half a bit per value and halves the step
    /// of values on one side of zero.
    Q4,
    /// KIVI (arXiv 2402.02750), 4 or 2 bits: `x = minimum + scale * q`. *Keys* share a scale and a
    /// minimum per dimension (channel) over `group` consecutive positions, so that outlier channels
    /// do not degrade the others. *Values* share them per position over `group` dimensions; with 4
    /// bits and groups of 32 they have the layout of `Q4` values.
    ///
    /// Keys are not appendable ([`KvFormat::keys_are_appendable`]): a plane of keys is written
    /// whole, by [`Kernels::convert_kv`](crate::Kernels::convert_kv).
    Kivi {
        /// Bits per quant.
        bits: KiviBits,
        /// Positions (keys) or dimensions (values) per group.
        group: KiviGroup,
    },
    /// `KVQuant` (arXiv 2401.18079) in 3 bits: `x = middle + half * level[code]`, with levels
    /// calibrated on the model and about 1 % of the values stored as outliers. Keys are stored
    /// before RoPE, in calibrated ranges per dimension; values have a range per position.
    ///
    /// Planes need a [`NuqContext`](crate::attention::NuqContext) to be written and read, and are
    /// written whole, by [`Kernels::convert_kv`](crate::Kernels::convert_kv).
    Nuq3,
    /// `TurboQuant` (arXiv 2504.19874) in 3 bits, without a calibration: `x = mean + scale *
    /// level[code]`, with the levels of the normal distribution, a scale per position and a mean
    /// per dimension of 32 positions. The caller rotates queries, keys, values and the output of
    /// attention: [`KvFormat::needs_rotation`].
    ///
    /// Planes are written whole, by [`Kernels::convert_kv`](crate::Kernels::convert_kv).
    Turbo3,
}

/// Bits per quant of [`KvFormat::Kivi`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KiviBits {
    /// 16 levels.
    Four,
    /// 4 levels.
    Two,
}

/// Group size of [`KvFormat::Kivi`]: values that share a scale and a minimum.
///
/// Scale and minimum take 32 bits together: 1, 1/2 or 1/4 bit per value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KiviGroup {
    /// 32 values.
    Of32,
    /// 64 values.
    Of64,
    /// 128 values.
    Of128,
}

/// Role of a plane, keys or values; their tiles have different orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvRole {
    /// Keys, `[head_dim, 32]` in a tile.
    Keys,
    /// Values, `[32, head_dim]` in a tile.
    Values,
}

impl KiviBits {
    /// Number of bits.
    pub fn get(self) -> usize {
        match self {
            Self::Four => 4,
            Self::Two => 2,
        }
    }
}

impl KiviGroup {
    /// Values per group.
    pub fn get(self) -> usize {
        match self {
            Self::Of32 => 32,
            Self::Of64 => 64,
            Self::Of128 => 128,
        }
    }
}

/// Shorthand for `KvFormat::Kivi`.
const fn kivi(bits: KiviBits, group: KiviGroup) -> KvFormat {
    KvFormat::Kivi { bits, group }
}

impl KvFormat {
    /// All formats, from the largest to the smallest.
    pub const ALL: [Self; 13] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q8,
        Self::Q4,
        kivi(KiviBits::Four, KiviGroup::Of32),
        kivi(KiviBits::Four, KiviGroup::Of64),
        kivi(KiviBits::Four, KiviGroup::Of128),
        Self::Nuq3,
        Self::Turbo3,
        kivi(KiviBits::Two, KiviGroup::Of32),
        kivi(KiviBits::Two, KiviGroup::Of64),
        kivi(KiviBits::Two, KiviGroup::Of128),
    ];

    /// Name accepted by [`FromStr`].
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::Q8 => "q8",
            Self::Q4 => "q4",
            Self::Kivi { bits: KiviBits::Four, group: KiviGroup::Of32 } => "kivi4",
            Self::Kivi { bits: KiviBits::Four, group: KiviGroup::Of64 } => "kivi4-g64",
            Self::Kivi { bits: KiviBits::Four, group: KiviGroup::Of128 } => "kivi4-g128",
            Self::Nuq3 => "nuq3",
            Self::Turbo3 => "turbo3",
            Self::Kivi { bits: KiviBits::Two, group: KiviGroup::Of32 } => "kivi2",
            Self::Kivi { bits: KiviBits::Two, group: KiviGroup::Of64 } => "kivi2-g64",
            Self::Kivi { bits: KiviBits::Two, group: KiviGroup::Of128 } => "kivi2-g128",
        }
    }

    /// Required divisor of `head_dim`: dimensions per scale.
    pub fn head_dim_multiple(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q8 | Self::Q4 | Self::Nuq3 | Self::Turbo3 => GROUP,
            Self::Kivi { group, .. } => group.get(),
        }
    }

    /// Required divisor of `block_tokens`: 32, or positions per scale of keys.
    pub fn block_tokens_multiple(self) -> usize {
        match self {
            Self::Kivi { group, .. } => group.get(),
            _ => super::KEY_TILE,
        }
    }

    /// True if keys can be stored position by position (nothing is shared by several positions).
    pub fn keys_are_appendable(self) -> bool {
        !matches!(self, Self::Kivi { .. } | Self::Nuq3 | Self::Turbo3)
    }

    /// True if values can be stored position by position.
    pub fn values_are_appendable(self) -> bool {
        !matches!(self, Self::Nuq3 | Self::Turbo3)
    }

    /// True if planes need a calibration of the model: see
    /// [`NuqContext`](crate::attention::NuqContext).
    pub fn needs_calibration(self) -> bool {
        self == Self::Nuq3
    }

    /// True if keys and values must be Hadamard-rotated
    /// ([`Kernels::hadamard`](crate::Kernels::hadamard)) before they are stored: their levels are
    /// those of a normal distribution.
    pub fn needs_rotation(self) -> bool {
        self == Self::Turbo3
    }

    /// True for float formats, which have no scales.
    pub(in crate::attention) fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16)
    }
}

impl fmt::Display for KvFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for KvFormat {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name).ok_or_else(|| Error::UnknownKvFormat {
            name: name.to_owned(),
            expected: Self::ALL.map(Self::name).join(", "),
        })
    }
}
