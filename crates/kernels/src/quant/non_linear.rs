//! Non-linear 4-bit codebook of the `IQ4` formats.

use super::SUB_BLOCK;
use super::search::Grid;

/// Value of quant `i`: dense near zero, where most weights are.
const VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The codebook as stored bytes.
pub(crate) const CODEBOOK: [u8; 16] = {
    let mut codebook = [0; 16];
    let mut i = 0;
    while i < 16 {
        codebook[i] = VALUES[i] as u8;
        i += 1;
    }
    codebook
};

/// Replaces quants by their signed codebook values.
///
/// A value is the lowest one plus all increments up to the quant: more operations than a table
/// look-up, but plain vector code on every instruction set.
#[inline(always)]
pub(super) fn decode(quants: &mut [u8; SUB_BLOCK]) {
    for quant in quants {
        let mut value = VALUES[0] as u8;
        for i in 1..VALUES.len() {
            let rise = VALUES[i].abs_diff(VALUES[i - 1]);
            value = value.wrapping_add(if *quant >= i as u8 { rise } else { 0 });
        }
        *quant = value;
    }
}

/// Quant of a codebook value.
pub(super) fn encode(value: f32) -> u8 {
    VALUES.partition_point(|&v| f32::from(v) < value) as u8
}

/// The codebook as a grid.
pub(super) struct NonLinear;

impl Grid for NonLinear {
    const ENDS: &'static [f32] = &[-127.0, 113.0];
    const STEP: f32 = 1.0;

    #[inline(always)]
    fn nearest(x: f32) -> f32 {
        let mut value = f32::from(VALUES[0]);
        for i in 1..VALUES.len() {
            let (below, above) = (f32::from(VALUES[i - 1]), f32::from(VALUES[i]));
            value += if x >= (below + above) / 2.0 { above - below } else { 0.0 };
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quants_and_numbers_convert_into_each_other() {
        let mut quants = std::array::from_fn(|j| (j % 16) as u8);
        decode(&mut quants);
        for (j, &stored) in quants.iter().enumerate() {
            assert_eq!(stored as i8, VALUES[j % 16]);
            assert_eq!(encode(f32::from(stored as i8)), (j % 16) as u8);
        }
    }

    #[test]
    fn the_nearest_number_is_found() {
        for x in -140..=140 {
            let x = x as f32 + 0.25;
            let distance = VALUES.iter().fold(f32::INFINITY, |d, &v| d.min((f32::from(v) - x).abs()));
            assert_eq!((NonLinear::nearest(x) - x).abs(), distance);
        }
    }
}
