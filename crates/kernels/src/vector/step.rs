//! Steps of 32 values, and their packing in INT4.

use crate::lanes::LANES;

/// Values per step of a distance: its number of lanes, four times eight.
pub(super) const STEP: usize = 4 * LANES;

/// Largest magnitude of a 4-bit code; codes are stored with an offset of this plus one.
pub(super) const INT4_LEVELS: i8 = 7;

/// Unpacks a group of 4-bit values.
#[inline(always)]
pub(super) fn unpack(bytes: &[u8; STEP / 2]) -> [i8; STEP] {
    let mut values = [0; STEP];
    let (low, high) = values.split_at_mut(STEP / 2);
    for ((byte, low), high) in bytes.iter().zip(low).zip(high) {
        *low = (byte & 0x0f) as i8 - (INT4_LEVELS + 1);
        *high = (byte >> 4) as i8 - (INT4_LEVELS + 1);
    }
    values
}

/// Packs a group of 4-bit values for [`unpack`]; integers in `-8..=7`.
#[inline(always)]
pub(super) fn pack(values: &[i8; STEP]) -> [u8; STEP / 2] {
    let code = |value: i8| (value + INT4_LEVELS + 1) as u8;
    std::array::from_fn(|i| code(values[i]) | (code(values[i + STEP / 2]) << 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_4_bit_code_is_unpacked_in_its_place() {
        let bytes: [u8; STEP / 2] = std::array::from_fn(|i| (i | ((15 - i) << 4)) as u8);
        let values = unpack(&bytes);
        for (i, value) in values.iter().enumerate() {
            let code = if i < 16 { i } else { 31 - i };
            assert_eq!(i32::from(*value), code as i32 - 8);
        }
        assert_eq!(pack(&values), bytes);
    }
}
