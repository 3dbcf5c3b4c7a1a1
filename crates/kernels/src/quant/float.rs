//! F32, F16 and BF16: one little-endian number per value, without quant blocks.

/// Converts `bytes`, `N` per value, to `values`.
#[inline(always)]
pub(super) fn decode<const N: usize>(bytes: &[u8], values: &mut [f32], widen: impl Fn([u8; N]) -> f32) {
    let (numbers, _) = bytes.as_chunks::<N>();
    for (value, &number) in values.iter_mut().zip(numbers) {
        *value = widen(number);
    }
}

/// Rounds `values` into `bytes`, `N` per value.
pub(super) fn encode<const N: usize>(values: &[f32], bytes: &mut [u8], round: impl Fn(f32) -> [u8; N]) {
    let (numbers, _) = bytes.as_chunks_mut::<N>();
    for (number, &value) in numbers.iter_mut().zip(values) {
        *number = round(value);
    }
}
