//! Values of tensors as `f64`, by the definitions of their types.

use crate::manifest::DType;

/// Values of a quant block of `q8_0` and `q4_0`.
pub(super) const BLOCK: usize = 32;

impl DType {
    /// Bytes of values.
    pub(super) fn bytes_of(self, values: usize) -> usize {
        let (group, bytes) = self.group();
        values.div_ceil(group as usize) * bytes as usize
    }
}

/// Value of the bits of a half (IEEE 754 binary16), exact.
pub(super) fn half_value(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let exponent = i32::from(bits >> 10 & 31);
    let fraction = f64::from(bits & 1023);
    sign * match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    }
}

/// Bits of the nearest half, ties to even; infinity from 65520 on.
pub(super) fn half_bits(value: f64) -> u16 {
    let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
    let value = value.abs();
    if value.is_nan() {
        return sign | 0x7e00;
    }
    if value >= 65_520.0 {
        return sign | 0x7c00;
    }
    // Below 2^-14, halves have the spacing of that exponent.
    let exponent = ((value.to_bits() >> 52) as i32 - 1023).max(-14);
    let steps = (value * 2f64.powi(10 - exponent)).round_ties_even() as i32;
    // 1024 steps are the implicit bit; 2048 carry into the exponent.
    sign | (((exponent + 15) << 10) + steps - 1024) as u16
}

/// Bytes of values in a type of [`decode`]'s, each rounded to it. Types of quant blocks get the
/// scale of the largest magnitude and the nearest quants.
pub(super) fn encode(dtype: DType, values: &[f64]) -> Vec<u8> {
    match dtype {
        DType::F16 => values.iter().flat_map(|&value| half_bits(value).to_le_bytes()).collect(),
        DType::Q8_0 => values.chunks(BLOCK).flat_map(q8_0).collect(),
        DType::Q4_0 => values.chunks(BLOCK).flat_map(q4_0).collect(),
        _ => values.iter().flat_map(|&value| (value as f32).to_le_bytes()).collect(),
    }
}

/// Values of bytes of the types `f32`, `f16`, `q8_0` and `q4_0`, exact.
pub(super) fn decode(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    let half = |bytes: &[u8]| half_value(u16::from_le_bytes([bytes[0], bytes[1]]));
    match dtype {
        DType::F16 => bytes.chunks_exact(2).map(half).collect(),
        DType::Q8_0 => {
            let block = |block: &[u8]| {
                let (scale, quants) = (half(block), block[2..].to_vec());
                quants.into_iter().map(move |quant| scale * f64::from(quant.cast_signed()))
            };
            bytes.chunks_exact(34).flat_map(block).collect()
        }
        DType::Q4_0 => {
            let block = |block: &[u8]| {
                let (scale, quants) = (half(block), block[2..].to_vec());
                let low = quants.clone().into_iter().map(|byte| byte & 15);
                let high = quants.into_iter().map(|byte| byte >> 4);
                low.chain(high).map(move |quant| scale * (f64::from(quant) - 8.0))
            };
            bytes.chunks_exact(18).flat_map(block).collect()
        }
        _ => {
            let value = |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            bytes.chunks_exact(4).map(|bytes| f64::from(value(bytes))).collect()
        }
    }
}

/// Value of the largest magnitude, the first of equals; 0 for no values.
pub(super) fn extreme(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |most: f64, &value| if value.abs() > most.abs() { value } else { most })
}

/// Quotient; 0 for a block of zeros.
fn quotient(value: f64, scale: f64) -> f64 {
    if scale == 0.0 { 0.0 } else { value / scale }
}

fn q8_0(values: &[f64]) -> Vec<u8> {
    let scale = extreme(values).abs() / 127.0;
    let quants = values.iter().map(|&value| (quotient(value, scale).round() as i8).cast_unsigned());
    half_bits(scale).to_le_bytes().into_iter().chain(quants).collect()
}

fn q4_0(values: &[f64]) -> Vec<u8> {
    let scale = extreme(values) / -8.0;
    let quant = |index: usize| {
        let value = values.get(index).copied().unwrap_or_default();
        (quotient(value, scale) + 8.5).floor().clamp(0.0, 15.0) as u8
    };
    let bytes = (0..BLOCK / 2).map(|index| quant(index) | quant(index + BLOCK / 2) << 4);
    half_bits(scale).to_le_bytes().into_iter().chain(bytes).collect()
}
