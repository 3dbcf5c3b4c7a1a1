//! Parameters of kernels.

use std::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::json::present;

/// Parameter of a kernel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Parameter {
    /// Name, unique in the kernel.
    pub name: String,
    /// Type of the value.
    #[serde(rename = "type")]
    pub kind: ParameterType,
    /// Value of calls that give none; without it each call gives one.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub default: Option<ParameterValue>,
}

/// Type of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ParameterType {
    /// True or false, passed as an `i32` of 1 or 0.
    Bool,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 64-bit integer.
    I64,
    /// 32-bit floating point.
    F32,
    /// 64-bit floating point.
    F64,
}

impl ParameterType {
    /// All types.
    pub const ALL: [Self; 6] = [Self::Bool, Self::I32, Self::U32, Self::I64, Self::F32, Self::F64];

    /// Name in manifests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::I32 => "i32",
            Self::U32 => "u32",
            Self::I64 => "i64",
            Self::F32 => "f32",
            Self::F64 => "f64",
        }
    }

    /// True for types that can be the size of a dimension.
    pub(super) fn is_integer(self) -> bool {
        matches!(self, Self::I32 | Self::U32 | Self::I64)
    }

    /// True if the type has the value. Fractions are rounded to the type.
    pub fn has(self, value: ParameterValue) -> bool {
        match (self, value) {
            (Self::I32, ParameterValue::Integer(value)) => i32::try_from(value).is_ok(),
            (Self::U32, ParameterValue::Integer(value)) => u32::try_from(value).is_ok(),
            (Self::F32, ParameterValue::Number(value)) => value.abs() <= f64::from(f32::MAX),
            (Self::F64, ParameterValue::Number(value)) => value.is_finite(),
            (Self::Bool, ParameterValue::Bool(_))
            | (Self::I64 | Self::F32 | Self::F64, ParameterValue::Integer(_)) => true,
            _ => false,
        }
    }
}

/// Value of a parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ParameterValue {
    /// True or false.
    Bool(bool),
    /// Number without a fraction.
    Integer(i64),
    /// Number with a fraction or exponent.
    Number(f64),
}

impl fmt::Display for ParameterValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => write!(f, "{value}"),
            Self::Integer(value) => write!(f, "{value}"),
            Self::Number(value) => write!(f, "{value:?}"),
        }
    }
}

impl Serialize for ParameterValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match *self {
            Self::Bool(value) => serializer.serialize_bool(value),
            Self::Integer(value) => serializer.serialize_i64(value),
            Self::Number(value) => serializer.serialize_f64(value),
        }
    }
}

impl<'de> Deserialize<'de> for ParameterValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl Visitor<'_> for ValueVisitor {
    type Value = ParameterValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("true, false or a number")
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<ParameterValue, E> {
        Ok(ParameterValue::Bool(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<ParameterValue, E> {
        Ok(ParameterValue::Integer(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<ParameterValue, E> {
        i64::try_from(value)
            .map(ParameterValue::Integer)
            .map_err(|_| E::custom("the number is above 2^63 - 1"))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<ParameterValue, E> {
        Ok(ParameterValue::Number(value))
    }
}
