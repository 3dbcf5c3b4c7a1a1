//! Inputs and outputs of kernels.

use std::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Input or output of a kernel, row-major.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Tensor {
    /// Name, unique among inputs and outputs of the kernel.
    pub name: String,
    /// Type of the values.
    pub dtype: DType,
    /// Sizes, in values also for types that store values in groups.
    pub shape: Vec<Dim>,
}

/// Type of the values of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DType {
    /// 32-bit floating point.
    F32,
    /// 16-bit floating point (IEEE 754 half).
    F16,
    /// 16-bit floating point with the exponent of `f32`.
    Bf16,
    /// Signed bytes.
    I8,
    /// Bytes.
    U8,
    /// Signed 32-bit integers.
    I32,
    /// Unsigned 32-bit integers.
    U32,
    /// Groups of 32 values in 8 bits with a scale in `f16`: 34 bytes, as GGUF has them.
    #[serde(rename = "q8_0")]
    Q8_0,
    /// Groups of 32 values in 4 bits with a scale in `f16`: 18 bytes, as GGUF has them.
    #[serde(rename = "q4_0")]
    Q4_0,
}

impl DType {
    /// All types.
    pub const ALL: [Self; 9] =
        [Self::F32, Self::F16, Self::Bf16, Self::I8, Self::U8, Self::I32, Self::U32, Self::Q8_0, Self::Q4_0];

    /// Name in manifests.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I8 => "i8",
            Self::U8 => "u8",
            Self::I32 => "i32",
            Self::U32 => "u32",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
        }
    }
}

/// Size of a dimension: a number, or a symbol that stands for the same number wherever the kernel
/// has it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Dim {
    /// Number of values.
    Size(u64),
    /// Symbol: a lower-case letter, then letters, digits and `_`.
    Symbol(String),
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(size) => write!(f, "{size}"),
            Self::Symbol(symbol) => f.write_str(symbol),
        }
    }
}

impl Serialize for Dim {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Size(size) => serializer.serialize_u64(*size),
            Self::Symbol(symbol) => serializer.serialize_str(symbol),
        }
    }
}

impl<'de> Deserialize<'de> for Dim {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DimVisitor)
    }
}

struct DimVisitor;

impl Visitor<'_> for DimVisitor {
    type Value = Dim;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a size or a symbol")
    }

    fn visit_u64<E: de::Error>(self, size: u64) -> Result<Dim, E> {
        Ok(Dim::Size(size))
    }

    fn visit_str<E: de::Error>(self, symbol: &str) -> Result<Dim, E> {
        Ok(Dim::Symbol(symbol.to_owned()))
    }
}
