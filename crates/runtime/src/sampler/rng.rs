//! Random numbers of sampling: a pure function of seed and position, without state.
//!
//! A request gets the same numbers alone or in a batch, and after a recompute of its sequence. Not
//! a cryptographic generator.
//!
//! # Source
//! `SplitMix64`: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014,
//! with the output function of Vigna's reference program. The state after `i` steps is `start + i *
//! GAMMA`, so any element can be computed directly.

/// Increment of the `SplitMix64` state: 2^64 divided by the golden ratio, odd.
const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// Output function of `SplitMix64`, a bijection of 64-bit words.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Element `index` of the `SplitMix64` sequence that starts at `start`.
fn split_mix(start: u64, index: u64) -> u64 {
    mix(start.wrapping_add(GAMMA.wrapping_mul(index.wrapping_add(1))))
}

/// Uniform number in [0, 1) with 53 random bits, for a seed and a position.
pub(crate) fn uniform(seed: u64, position: u64) -> f64 {
    // The seed is mixed first: seeds are small neighbouring integers in practice, and must not give
    // sequences that are shifted copies of each other.
    let bits = split_mix(mix(seed ^ GAMMA), position);
    (bits >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// Separates XTC's numbers from those of the draw: the first 64 bits of the SHA-256 of "xtc".
const XTC: u64 = 0xCE31_EE11_A863_C7A3;

/// Uniform number in [0, 1) for XTC's choice at a position, independent of [`uniform`] there.
pub(super) fn uniform_for_xtc(seed: u64, position: u64) -> f64 {
    uniform(seed ^ XTC, position)
}

/// Fresh seed below 2^53, from the standard library's hash-map randomness. JSON readers that store
/// numbers as doubles preserve it.
pub(crate) fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish() >> 11
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_split_mix_64() {
        // First outputs of the published program for seed 1234567.
        let expected = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        for (index, &value) in expected.iter().enumerate() {
            assert_eq!(split_mix(1_234_567, index as u64), value);
        }
    }

    #[test]
    fn uniform_numbers_fill_the_interval_evenly() {
        let mut bins = [0u32; 16];
        for position in 0..16_000 {
            let u = uniform(7, position);
            assert!((0.0..1.0).contains(&u));
            bins[(u * 16.0) as usize] += 1;
        }
        let chi_square: f64 = bins.iter().map(|&n| (f64::from(n) - 1000.0).powi(2) / 1000.0).sum();
        assert!(chi_square < 44.26, "chi-square {chi_square} of 15 degrees of freedom, p < 1e-4");
    }

    #[test]
    fn drawn_seeds_survive_doubles() {
        let seeds: Vec<u64> = (0..64).map(|_| fresh_seed()).collect();
        assert!(seeds.iter().all(|&seed| seed as f64 as u64 == seed && seed < 1 << 53));
        assert_ne!(seeds[0], seeds[1]);
    }

    #[test]
    fn neighbouring_seeds_and_positions_differ() {
        assert_eq!(uniform(1, 5), uniform(1, 5));
        assert_ne!(uniform(1, 5), uniform(2, 5));
        assert_ne!(uniform(1, 5), uniform(1, 6));
        assert_ne!(uniform(0, u64::MAX), uniform(u64::MAX, 0));
    }
}
