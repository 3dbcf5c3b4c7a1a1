//! Formats of keys and values together.

use std::fmt;
use std::str::FromStr;

use ruvllm_kernels::attention::{KiviBits, KiviGroup, KvFormat, KvLayout};

use crate::error::{Error, Result};
use crate::shape::KvShape;

/// 4 bits in groups of 32.
pub(crate) const KIVI4: KvFormat = KvFormat::Kivi { bits: KiviBits::Four, group: KiviGroup::Of32 };
/// 2 bits in groups of 32.
pub(crate) const KIVI2: KvFormat = KvFormat::Kivi { bits: KiviBits::Two, group: KiviGroup::Of32 };

/// Formats of the keys and of the values of a block: keys need more bits than values.
///
/// # Examples
/// ```
/// use ruvllm_kv_cache::KvFormats;
///
/// let formats: KvFormats = "k4v2".parse()?;
/// assert_eq!(formats.to_string(), "kivi4+kivi2");
/// # Ok::<(), ruvllm_kv_cache::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KvFormats {
    /// Format of the keys.
    pub keys: KvFormat,
    /// Format of the values.
    pub values: KvFormat,
}

impl KvFormats {
    /// `true` if tokens can be appended one by one.
    pub fn is_appendable(self) -> bool {
        self.keys.keys_are_appendable() && self.values.values_are_appendable()
    }

    /// `true` if they need a [`KvCalibration`](crate::KvCalibration).
    pub fn need_calibration(self) -> bool {
        self.keys.needs_calibration() || self.values.needs_calibration()
    }

    /// `true` if keys and values must be rotated before they are stored.
    pub fn need_rotation(self) -> bool {
        self.keys.needs_rotation() || self.values.needs_rotation()
    }

    /// `true` if rotated keys and values lose no more than others.
    pub(crate) fn take_rotation(self) -> bool {
        (self.keys.needs_rotation() || self.keys.keys_are_appendable())
            && (self.values.needs_rotation() || self.values.values_are_appendable())
    }

    /// Bytes of the keys and values of `block_tokens` tokens in all layers, scales and minima
    /// included; saturates.
    ///
    /// # Errors
    /// [`Error::Kernels`] if a format does not take heads of this size or blocks of so many tokens.
    pub fn block_bytes(self, shape: KvShape, block_tokens: usize) -> Result<usize> {
        shape.groups().try_fold(0_usize, |bytes, group| {
            let layout = |format| KvLayout::new(format, group.n_kv_heads, block_tokens, group.head_dim);
            let keys = layout(self.keys)?.plane_bytes();
            let values = if group.values_are_keys { 0 } else { layout(self.values)?.plane_bytes() };
            Ok(bytes.saturating_add(keys.saturating_add(values).saturating_mul(group.n_layers)))
        })
    }

    /// Tokens of a group of keys.
    pub(crate) fn group(self) -> usize {
        self.keys.block_tokens_multiple()
    }

    /// Bits of a key and a value together, times a constant, to order formats by size.
    pub(crate) fn bits(self) -> usize {
        let bytes =
            |format| KvLayout::new(format, 1, 128, 128).map_or(usize::MAX, |layout| layout.plane_bytes());
        bytes(self.keys).saturating_add(bytes(self.values))
    }
}

impl From<KvFormat> for KvFormats {
    fn from(format: KvFormat) -> Self {
        Self { keys: format, values: format }
    }
}

impl fmt::Display for KvFormats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.keys == self.values { self.keys.fmt(f) } else { write!(f, "{}+{}", self.keys, self.values) }
    }
}

impl FromStr for KvFormats {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if let Some((keys, values)) = text.split_once('+') {
            return Ok(Self { keys: keys.parse()?, values: values.parse()? });
        }
        let short = text.strip_prefix('k').and_then(|rest| rest.split_once('v'));
        match short.map(|(keys, values)| (of_bits(keys), of_bits(values))) {
            Some((Some(keys), Some(values))) => Ok(Self { keys, values }),
            _ => Ok(text.parse::<KvFormat>()?.into()),
        }
    }
}

/// The format that a number of bits stands for in names like `k4v2`.
fn of_bits(bits: &str) -> Option<KvFormat> {
    match bits {
        "16" => Some(KvFormat::F16),
        "8" => Some(KvFormat::Q8),
        "4" => Some(KIVI4),
        "2" => Some(KIVI2),
        _ => None,
    }
}
