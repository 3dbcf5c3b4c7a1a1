//! Serialization of numbers as their bits, which every format reproduces exactly.
//!
//! Decimal digits do not: `serde_json` rounds some of them to a neighbouring number.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A floating-point number with bits.
pub(crate) trait Bits: Copy {
    type Unsigned: Serialize + for<'de> Deserialize<'de>;
    fn to_unsigned(self) -> Self::Unsigned;
    fn from_unsigned(bits: Self::Unsigned) -> Self;
}

impl Bits for f64 {
    type Unsigned = u64;
    fn to_unsigned(self) -> u64 {
        self.to_bits()
    }
    fn from_unsigned(bits: u64) -> Self {
        Self::from_bits(bits)
    }
}

impl Bits for f32 {
    type Unsigned = u32;
    fn to_unsigned(self) -> u32 {
        self.to_bits()
    }
    fn from_unsigned(bits: u32) -> Self {
        Self::from_bits(bits)
    }
}

pub(crate) fn serialize<T: Bits, S: Serializer>(values: &[T], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(values.iter().map(|v| v.to_unsigned()))
}

pub(crate) fn deserialize<'de, T: Bits, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let bits = Vec::<T::Unsigned>::deserialize(deserializer)?;
    Ok(bits.into_iter().map(T::from_unsigned).collect())
}
