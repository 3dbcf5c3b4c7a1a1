//! Embeddings as 8-bit integers with a scale per group.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Hidden-state embedding of a prompt, 8 bits a value: value = scale of its group * code.
///
/// 1.0625 bytes per value; the error of a value is at most 1/254 of its group's largest magnitude.
/// ADR-0075 compares the sizes and errors with f16.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Parts", into = "Parts")]
pub struct Embedding {
    scales: Vec<f32>,
    codes: Vec<i8>,
}

/// Serialized form, unchecked.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Parts {
    scales: Vec<f32>,
    codes: Vec<i8>,
}

impl Embedding {
    /// Values per quantization group.
    pub const GROUP: usize = 64;
    /// Largest number of values.
    pub const MAX_VALUES: usize = 1 << 16;

    /// Quantizes a vector.
    ///
    /// # Errors
    /// [`Error::NotFinite`] for NaN and infinities, [`Error::Record`] for an empty vector or one of
    /// more than [`MAX_VALUES`](Self::MAX_VALUES).
    pub fn quantize(values: &[f32]) -> Result<Self> {
        check_len(values.len())?;
        let mut scales = Vec::with_capacity(values.len().div_ceil(Self::GROUP));
        let mut codes = Vec::with_capacity(values.len());
        for group in values.chunks(Self::GROUP) {
            // NaN is lost in `max`, not in the sum.
            let (largest, sum) = group.iter().fold((0.0f32, 0.0f32), |(largest, sum), value| {
                (largest.max(value.abs()), sum + value * 0.0)
            });
            if !largest.is_finite() || sum.is_nan() {
                return Err(Error::NotFinite { what: "the embedding" });
            }
            let scale = largest / 127.0;
            // The largest magnitude stays finite.
            let scale = if (scale * 127.0).is_finite() { scale } else { scale.next_down() };
            // Below the smallest normal number its reciprocal overflows: such a group is zero.
            let inverse = if scale < f32::MIN_POSITIVE { 0.0 } else { scale.recip() };
            scales.push(if inverse == 0.0 { 0.0 } else { scale });
            codes.extend(group.iter().map(|value| (value * inverse).round() as i8));
        }
        Ok(Self { scales, codes })
    }

    /// Number of values.
    pub fn dimension(&self) -> usize {
        self.codes.len()
    }

    /// Values.
    pub fn dequantize(&self) -> Vec<f32> {
        let groups = self.codes.chunks(Self::GROUP).zip(&self.scales);
        groups.flat_map(|(codes, scale)| codes.iter().map(move |code| f32::from(*code) * scale)).collect()
    }

    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.scales.len() * 4 + self.codes.len()
    }
}

fn check_len(len: usize) -> Result<()> {
    if len == 0 || len > Embedding::MAX_VALUES {
        let reason = format!("{len} values; it must have 1 to {}", Embedding::MAX_VALUES);
        return Err(Error::Record { field: "embedding", reason });
    }
    Ok(())
}

impl From<Embedding> for Parts {
    fn from(Embedding { scales, codes }: Embedding) -> Self {
        Self { scales, codes }
    }
}

impl TryFrom<Parts> for Embedding {
    type Error = Error;

    fn try_from(Parts { scales, codes }: Parts) -> Result<Self> {
        check_len(codes.len())?;
        let expected = codes.len().div_ceil(Self::GROUP);
        if scales.len() != expected {
            return Err(Error::Dimension { what: "embedding.scales", expected, got: scales.len() });
        }
        if scales.iter().any(|scale| !scale.is_finite() || *scale < 0.0 || !(scale * 127.0).is_finite()) {
            let reason = "a scale is negative or too large".to_owned();
            return Err(Error::Record { field: "embedding.scales", reason });
        }
        if codes.contains(&i8::MIN) {
            return Err(Error::Record { field: "embedding.codes", reason: "a code is -128".to_owned() });
        }
        Ok(Self { scales, codes })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn errors_stay_below_half_a_step(
            values in prop::collection::vec(-1.0f32..1.0, 1..300), exponent in -80i32..100,
        ) {
            let values: Vec<f32> = values.iter().map(|value| value * (exponent as f32).exp2()).collect();
            let decoded = Embedding::quantize(&values).unwrap().dequantize();
            prop_assert_eq!(decoded.len(), values.len());
            for (group, decoded) in values.chunks(64).zip(decoded.chunks(64)) {
                let largest = group.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
                for (value, decoded) in group.iter().zip(decoded) {
                    prop_assert!((value - decoded).abs() <= largest / 254.0 * 1.0001);
                }
            }
        }
    }

    #[test]
    fn bad_vectors_are_refused() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = [1.0; 100];
            values[70] = bad;
            assert!(matches!(Embedding::quantize(&values), Err(Error::NotFinite { .. })), "{bad}");
        }
        assert!(matches!(Embedding::quantize(&[]), Err(Error::Record { .. })));
        assert!(matches!(Embedding::quantize(&vec![0.0; 65537]), Err(Error::Record { .. })));
        assert_eq!(Embedding::quantize(&[1e-44, -1e-40]).expect("finite").dequantize(), [0.0, 0.0]);
        let largest = Embedding::quantize(&[f32::MAX, 0.0]).expect("finite");
        assert!(largest.codes == [127, 0] && largest.dequantize()[0].is_finite());
    }

    #[test]
    fn serialized_parts_are_checked() {
        let parse = |text: &str| serde_json::from_str::<Embedding>(text).map_err(|error| error.to_string());
        assert_eq!(parse(r#"{"scales":[0.5],"codes":[2,-127]}"#).expect("valid").dequantize(), [1.0, -63.5]);
        for (text, part) in [
            (r#"{"scales":[],"codes":[1]}"#, "embedding.scales has 0 values, need 1"),
            (r#"{"scales":[-1],"codes":[1]}"#, "negative"),
            (r#"{"scales":[1],"codes":[-128]}"#, "-128"),
            (r#"{"scales":[],"codes":[]}"#, "0 values"),
            (r#"{"scales":[1],"codes":[300]}"#, "300"),
            (r#"{"scales":[1],"codes":[1],"more":1}"#, "more"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(part), "{error}");
        }
    }
}
