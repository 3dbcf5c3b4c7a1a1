//! Grid points expanded to bytes, one per value.

use super::codes;

/// Points of `IQ2_XXS`: eight values in units of an eighth of the scale.
pub(crate) static IQ2_XXS: [u64; 256] = eights(&codes::IQ2_XXS, LEVELS_2);
/// Points of `IQ2_XS`.
pub(crate) static IQ2_XS: [u64; 512] = eights(&codes::IQ2_XS, LEVELS_2);
/// Points of `IQ2_S`.
pub(crate) static IQ2_S: [u64; 1024] = eights(&codes::IQ2_S, LEVELS_2);
/// Points of `IQ1_S` and `IQ1_M`: eight values, plus 1.
pub(crate) static IQ1: [u64; 2048] = eights(&codes::IQ1, [0, 1, 2]);
/// Points of `IQ3_XXS`: four values.
pub(crate) static IQ3_XXS: [u32; 256] = fours(&codes::IQ3_XXS, [4, 12, 20, 28, 36, 44, 52, 62]);
/// Points of `IQ3_S`.
pub(crate) static IQ3_S: [u32; 512] = fours(&codes::IQ3_S, [1, 3, 5, 7, 9, 11, 13, 15]);

const LEVELS_2: [u8; 3] = [8, 25, 43];

/// Bits `2j` and `2j + 1` of a code: the level of value `j`.
const fn eights<const N: usize>(codes: &[u16; N], levels: [u8; 3]) -> [u64; N] {
    let mut points = [0; N];
    let mut i = 0;
    while i < N {
        let mut j = 0;
        while j < 8 {
            points[i] |= (levels[(codes[i] >> (2 * j) & 3) as usize] as u64) << (8 * j);
            j += 1;
        }
        i += 1;
    }
    points
}

/// Bits `4j` to `4j + 2` of a code: the level of value `j`.
const fn fours<const N: usize>(codes: &[u16; N], levels: [u8; 8]) -> [u32; N] {
    let mut points = [0; N];
    let mut i = 0;
    while i < N {
        let mut j = 0;
        while j < 4 {
            points[i] |= (levels[(codes[i] >> (4 * j) & 7) as usize] as u32) << (8 * j);
            j += 1;
        }
        i += 1;
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fnv_1a(bytes: impl Iterator<Item = u8>) -> u64 {
        bytes
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }

    /// Checksums of the tables of the Python package `gguf` 0.19.0, little-endian (those of `IQ1`
    /// plus 1).
    #[test]
    fn points_are_those_of_the_reference() {
        let eights = |points: &[u64]| fnv_1a(points.iter().flat_map(|point| point.to_le_bytes()));
        let fours = |points: &[u32]| fnv_1a(points.iter().flat_map(|point| point.to_le_bytes()));
        assert_eq!(eights(&IQ2_XXS), 0xbb4e_e025_b5ac_6e8e);
        assert_eq!(eights(&IQ2_XS), 0xc9b1_ee61_e799_09bd);
        assert_eq!(eights(&IQ2_S), 0x123e_dd38_a3b6_2b90);
        assert_eq!(eights(&IQ1), 0xec28_b636_8f0c_62e0);
        assert_eq!(fours(&IQ3_XXS), 0xdfa5_dc83_d6a1_55d5);
        assert_eq!(fours(&IQ3_S), 0xfa37_020c_25b4_4829);
    }
}
