//! Shared code of the IQ formats with grids: points, signs, and the search of their quantizers.
//!
//! A group of eight (or four) values is a point of a fixed grid, given by its index. The grids of
//! `IQ2` and `IQ3` hold magnitudes, with signs beside them; that of `IQ1` holds -1, 0 and 1.

mod codes;
pub(crate) mod grids;
pub(super) mod neighbours;
pub(super) mod points;
pub(super) mod search;

use super::{QuantBlock, SUB_BLOCK};

/// Quant block of 256 values whose magnitudes are grid points, with one sign bit per value.
pub(crate) trait SignedGridBlock: QuantBlock {
    /// Magnitudes of sub-block `s`, a byte each, in value order.
    fn magnitudes(&self, s: usize) -> [u64; 4];

    /// Signs of all sub-blocks: bit `j` is set where value `j` is negative.
    fn signs(&self) -> [u32; 8];
}

/// Stored quants: the signed magnitudes plus the offset of the format.
#[inline(always)]
pub(super) fn unpack_signed<B: SignedGridBlock>(block: &B, quants: &mut [[u8; SUB_BLOCK]]) {
    let offset = repeat(B::OFFSET as u8);
    for (s, (quants, signs)) in quants.iter_mut().zip(block.signs()).enumerate() {
        let eights = quants.as_chunks_mut::<8>().0.iter_mut();
        for ((to, magnitudes), signs) in eights.zip(block.magnitudes(s)).zip(signs.to_le_bytes()) {
            // No carry between bytes: a magnitude is at most the offset.
            let negative = byte_mask(signs);
            let stored = (offset + magnitudes) & !negative | (offset - magnitudes) & negative;
            *to = stored.to_le_bytes();
        }
    }
}

/// A byte eight times.
#[inline(always)]
pub(super) const fn repeat(byte: u8) -> u64 {
    byte as u64 * 0x0101_0101_0101_0101
}

/// Byte `j` is 255 where bit `j` is set, else 0.
#[inline(always)]
fn byte_mask(bits: u8) -> u64 {
    let single = repeat(bits) & 0x8040_2010_0804_0201;
    ((single + repeat(0x7f)) >> 7 & repeat(1)) * 255
}

/// Signs of eight values from seven stored bits: the number of negative values is even.
#[inline(always)]
pub(super) fn even_signs(stored: u8) -> u8 {
    stored | ((stored.count_ones() as u8) & 1) << 7
}

/// Signs of 32 values from four times seven bits.
#[inline(always)]
pub(super) fn four_even_signs(packed: u32) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|l| even_signs((packed >> (7 * l) & 127) as u8)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_are_even_and_masks_follow_bits() {
        for bits in 0..=255_u8 {
            let expected: [u8; 8] = std::array::from_fn(|j| if bits & 1 << j != 0 { 255 } else { 0 });
            assert_eq!(byte_mask(bits).to_le_bytes(), expected);
            let signs = even_signs(bits & 127);
            assert_eq!((signs & 127, signs.count_ones() % 2), (bits & 127, 0));
        }
    }
}
