//! Metadata values: the thirteen value types of the format, in memory.

use std::fmt;

/// Type of a metadata value or of array elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ValueType {
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 8-bit integer.
    I8,
    /// Unsigned 16-bit integer.
    U16,
    /// Signed 16-bit integer.
    I16,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 32-bit integer.
    I32,
    /// 32-bit float.
    F32,
    /// Boolean, one byte.
    Bool,
    /// UTF-8 string.
    String,
    /// Array of one element type; arrays may nest.
    Array,
    /// Unsigned 64-bit integer.
    U64,
    /// Signed 64-bit integer.
    I64,
    /// 64-bit float.
    F64,
}

impl ValueType {
    /// All types, indexed by tag.
    pub const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    /// Type of a tag in a file.
    #[must_use]
    pub fn from_tag(tag: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(tag).ok()?).copied()
    }

    /// Tag of this type in a file.
    #[must_use]
    pub fn tag(self) -> u32 {
        self as u32
    }

    /// Short name, for example `u32`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }

    /// Smallest size in bytes of a value of this type in a file; bounds counts.
    pub(crate) fn min_bytes(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::String => 8,
            Self::Array => 12,
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Metadata value.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "each variant holds the type it is named after")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl Value {
    /// Type of the value.
    #[must_use]
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// The type in words for messages: `u32`, or `array of u32`.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Array(array) => format!("array of {}", array.element_type()),
            other => other.value_type().to_string(),
        }
    }

    /// Value as `i128`, if it has an integer type.
    #[must_use]
    pub fn as_integer(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(v) => v.into(),
            Self::I8(v) => v.into(),
            Self::U16(v) => v.into(),
            Self::I16(v) => v.into(),
            Self::U32(v) => v.into(),
            Self::I32(v) => v.into(),
            Self::U64(v) => v.into(),
            Self::I64(v) => v.into(),
            _ => return None,
        })
    }
}

/// Metadata array with elements of one type; nested arrays may differ in element type.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "each variant holds elements of the type it is named after")]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Vec<String>),
    Array(Vec<Array>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

impl Array {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::U8(v) => v.len(),
            Self::I8(v) => v.len(),
            Self::U16(v) => v.len(),
            Self::I16(v) => v.len(),
            Self::U32(v) => v.len(),
            Self::I32(v) => v.len(),
            Self::F32(v) => v.len(),
            Self::Bool(v) => v.len(),
            Self::String(v) => v.len(),
            Self::Array(v) => v.len(),
            Self::U64(v) => v.len(),
            Self::I64(v) => v.len(),
            Self::F64(v) => v.len(),
        }
    }

    /// True if there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Type of the elements.
    #[must_use]
    pub fn element_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// Element at `index` as a value; `None` if out of bounds.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<Value> {
        Some(match self {
            Self::U8(v) => Value::U8(*v.get(index)?),
            Self::I8(v) => Value::I8(*v.get(index)?),
            Self::U16(v) => Value::U16(*v.get(index)?),
            Self::I16(v) => Value::I16(*v.get(index)?),
            Self::U32(v) => Value::U32(*v.get(index)?),
            Self::I32(v) => Value::I32(*v.get(index)?),
            Self::F32(v) => Value::F32(*v.get(index)?),
            Self::Bool(v) => Value::Bool(*v.get(index)?),
            Self::String(v) => Value::String(v.get(index)?.clone()),
            Self::Array(v) => Value::Array(v.get(index)?.clone()),
            Self::U64(v) => Value::U64(*v.get(index)?),
            Self::I64(v) => Value::I64(*v.get(index)?),
            Self::F64(v) => Value::F64(*v.get(index)?),
        })
    }
}

/// `From` for the plain types, so that a writer can say `metadata.insert("general.file_type",
/// 7u32)`.
macro_rules! conversions {
    ($($variant:ident($plain:ty))*) => {$(
        impl From<$plain> for Value {
            fn from(value: $plain) -> Self {
                Self::$variant(value)
            }
        }

        impl From<Vec<$plain>> for Value {
            fn from(values: Vec<$plain>) -> Self {
                Self::Array(Array::$variant(values))
            }
        }
    )*};
}

conversions! {
    U8(u8) I8(i8) U16(u16) I16(i16) U32(u32) I32(i32) F32(f32) Bool(bool) String(String) Array(Array)
    U64(u64) I64(i64) F64(f64)
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::String(value.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::{Array, Value, ValueType};

    #[test]
    fn tags_are_those_of_the_format() {
        let names =
            ["u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"];
        for (tag, name) in (0..).zip(names) {
            let value_type = ValueType::from_tag(tag).expect("a defined tag");
            assert_eq!((value_type.tag(), value_type.name()), (tag, name));
        }
        assert_eq!(ValueType::from_tag(13), None);
        assert_eq!(ValueType::from_tag(u32::MAX), None);
    }

    #[test]
    fn elements_are_values_of_the_element_type() {
        let arrays = [
            Array::U8(vec![1]),
            Array::I8(vec![1]),
            Array::U16(vec![1]),
            Array::I16(vec![1]),
            Array::U32(vec![1]),
            Array::I32(vec![1]),
            Array::F32(vec![1.0]),
            Array::Bool(vec![true]),
            Array::String(vec!["s".to_owned()]),
            Array::Array(vec![Array::U8(vec![])]),
            Array::U64(vec![1]),
            Array::I64(vec![1]),
            Array::F64(vec![1.0]),
        ];
        for (array, element_type) in arrays.iter().zip(ValueType::ALL) {
            assert_eq!(array.element_type(), element_type);
            assert_eq!(array.get(0).map(|value| value.value_type()), Some(element_type));
            assert_eq!(array.get(1), None);
            assert!(array.len() == 1 && !array.is_empty());
        }
        assert_eq!(Value::from(vec![1u8]).describe(), "array of u8");
        assert_eq!(Value::from(1u8).describe(), "u8");
    }
}
