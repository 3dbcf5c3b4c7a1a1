//! Shared code of the formats of 32 values with one scale: 4- and 5-bit packing, and scales from
//! extremes.

use super::{QuantBlock, SUB_BLOCK};

/// Quant block of 32 values with one scale and nibbles.
///
/// All have the nibble order of [`unpack_nibbles`]; one leaf per instruction set unpacks them.
pub(crate) trait NibbleBlock: QuantBlock {
    /// Stored value of each nibble, as a byte; none if nibbles are the quants.
    const CODEBOOK: Option<[u8; 16]> = None;
    /// True if quants have a fifth bit.
    const FIFTH: bool = matches!(Self::MAX_QUANT, Some(16..)) && Self::CODEBOOK.is_none();
    /// True if the scale is not [`d`](Self::d) but [`scale`](Self::scale).
    const E8M0: bool = false;

    /// Half-precision scale.
    fn d(&self) -> [u8; 2] {
        [0; 2]
    }

    /// Scale of a block without a half-precision one.
    fn scale(&self) -> f32 {
        0.0
    }

    /// Half-precision offset (the negative minimum) of the formats that have one.
    fn m(&self) -> [u8; 2] {
        [0; 2]
    }

    /// Low four bits of the quants.
    fn qs(&self) -> &[u8; SUB_BLOCK / 2];

    /// Fifth bits of the formats that have them: bit `j` belongs to quant `j`.
    fn qh(&self) -> [u8; 4] {
        [0; 4]
    }
}

/// Implements [`NibbleBlock`] by the fields of a quant block.
macro_rules! nibble_block {
    ($($block:ident: $($field:ident $($values:expr)?),*;)*) => {
        $( impl NibbleBlock for super::$block {
            $( nibble_block!(@ $field $($values)?); )*
        } )*
    };
    (@ codebook $values:expr) => { const CODEBOOK: Option<[u8; 16]> = Some($values); };
    (@ d) => { #[inline(always)] fn d(&self) -> [u8; 2] { self.d } };
    (@ m) => { #[inline(always)] fn m(&self) -> [u8; 2] { self.m } };
    (@ qs) => { #[inline(always)] fn qs(&self) -> &[u8; SUB_BLOCK / 2] { &self.qs } };
    (@ qh) => { #[inline(always)] fn qh(&self) -> [u8; 4] { self.qh } };
}

nibble_block! {
    Q4_0: d, qs;
    Q4_1: d, m, qs;
    Q5_0: d, qh, qs;
    Q5_1: d, m, qh, qs;
    Iq4Nl: d, qs, codebook super::NON_LINEAR_CODEBOOK;
}

/// Unpacks byte `j` to value `j` (low nibble) and value `j + 16` (high nibble).
#[inline(always)]
pub(super) fn unpack_nibbles(qs: &[u8; SUB_BLOCK / 2], quants: &mut [u8; SUB_BLOCK]) {
    let (low, high) = quants.split_at_mut(SUB_BLOCK / 2);
    for j in 0..SUB_BLOCK / 2 {
        low[j] = qs[j] & 15;
        high[j] = qs[j] >> 4;
    }
}

/// Low four bits of the quants, packed for [`unpack_nibbles`].
pub(super) fn pack_nibbles(quants: &[u8; SUB_BLOCK]) -> [u8; SUB_BLOCK / 2] {
    std::array::from_fn(|j| (quants[j] & 15) | quants[j + SUB_BLOCK / 2] << 4)
}

/// Puts bit `j` of `qh` into bit 4 of quant `j`.
#[inline(always)]
pub(super) fn unpack_fifth_bits(qh: [u8; 4], quants: &mut [u8; SUB_BLOCK]) {
    for (quants, bits) in quants.as_chunks_mut::<8>().0.iter_mut().zip(qh) {
        for (j, q) in quants.iter_mut().enumerate() {
            *q |= u8::from(bits & 1 << j != 0) << 4;
        }
    }
}

/// Fifth bits of the quants, packed for [`unpack_fifth_bits`].
pub(super) fn pack_fifth_bits(quants: &[u8; SUB_BLOCK]) -> [u8; 4] {
    quants.iter().rev().fold(0, |bits: u32, q| bits << 1 | u32::from(q >> 4 & 1)).to_le_bytes()
}

/// Scale that maps the value of the largest magnitude (the first of equals) to `end`.
///
/// Also its inverse (0 for a scale of 0).
pub(super) fn extreme_of(values: &[f32], end: f32) -> (f32, f32) {
    let extreme = values.iter().fold(0.0_f32, |m, &x| if x.abs() > m.abs() { x } else { m });
    let d = extreme / end;
    (d, if d == 0.0 { 0.0 } else { 1.0 / d })
}

/// Lowest value, scale that divides the range into `steps`, and its inverse (0 for a scale of 0).
pub(super) fn range_of(values: &[f32], steps: f32) -> (f32, f32, f32) {
    // The first of equals, so that the sign of a zero matches ggml.
    let lowest = values.iter().fold(f32::MAX, |m, &x| if x < m { x } else { m });
    let highest = values.iter().fold(f32::MIN, |m, &x| if x > m { x } else { m });
    let d = (highest - lowest) / steps;
    (lowest, d, if d == 0.0 { 0.0 } else { 1.0 / d })
}
