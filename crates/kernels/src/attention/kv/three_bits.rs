//! Codes of 3 bits for eight levels: packing in units of 32, and the nearest level.
//!
//! Of 32 codes, eight bytes hold the two lower bits in the layout of the two-bit formats. Four
//! bytes hold the upper bits: that of code `8 k + j` is bit `2 k + j / 4` of byte `j % 4`.

use super::GROUP;
use super::codes::count;
use crate::lanes::{LANES, Lanes};

/// Levels of a codebook.
pub(super) const LEVELS: usize = 8;

/// Bytes per 32 codes.
pub(super) const CODE_BYTES: usize = 12;

/// Unpacks 32 codes, eight at a time.
#[inline(always)]
pub(super) fn unpack(packed: &[u8; CODE_BYTES]) -> [[u8; LANES]; GROUP / LANES] {
    let [a, b, c, d, e, f, g, h, high @ ..] = *packed;
    let low = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    let high = u64::from(u32::from_le_bytes(high));
    // A byte of upper bits serves two lanes, the second from the next bit.
    let high = high | high >> 1 << 32;
    let mut codes = [[0; LANES]; GROUP / LANES];
    for (eight, codes) in codes.iter_mut().enumerate() {
        let low = low >> (2 * eight) & 0x0303_0303_0303_0303;
        let high = high >> (2 * eight) & 0x0101_0101_0101_0101;
        *codes = (low | high << 2).to_le_bytes();
    }
    codes
}

/// Packs 32 codes.
pub(super) fn pack(codes: &[u8; GROUP]) -> [u8; CODE_BYTES] {
    let mut packed = [0; CODE_BYTES];
    for (i, code) in codes.iter().enumerate() {
        let (eight, lane) = (i / LANES, i % LANES);
        packed[lane] |= (code & 3) << (2 * eight);
        packed[LANES + lane % 4] |= (code >> 2) << (2 * eight + lane / 4);
    }
    packed
}

/// Decision thresholds: midpoints of neighbouring levels.
pub(super) const fn thresholds(levels: &[f32; LEVELS]) -> [f32; LEVELS - 1] {
    let mut midpoints = [0.0; LEVELS - 1];
    let mut i = 0;
    while i < midpoints.len() {
        midpoints[i] = 0.5 * levels[i] + 0.5 * levels[i + 1];
        i += 1;
    }
    midpoints
}

/// Codes of the levels nearest to eight values: the number of thresholds below each.
#[inline(always)]
pub(super) fn nearest<L: Lanes>(l: L, thresholds: &[f32; LEVELS - 1], x: L::V) -> [u8; LANES] {
    let mut code = l.zero();
    for threshold in thresholds {
        code = l.add(code, l.select_lt(l.splat(*threshold), x, l.splat(1.0), l.zero()));
    }
    count(l, code, [0.0, (LEVELS - 1) as f32])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn codes_come_back(codes in prop::array::uniform32(0u8..8)) {
            let found = unpack(&pack(&codes));
            prop_assert_eq!(found.as_flattened(), &codes);
        }
    }
}
