//! `turbo3`: a scalar reference decoder of the documented layout, and the errors of rotated values.

use half::f16;
use ruvllm_kernels::attention::{KvBuffer, KvFormat, KvLayout, KvRole};

use super::fixture::{Random, best, decode, stored};
use crate::oracle::fma;

const LEVELS: [f32; 8] = [
    -2.151_945_7,
    -1.343_909_3,
    -0.756_005_3,
    -0.245_094_18,
    0.245_094_18,
    0.756_005_3,
    1.343_909_3,
    2.151_945_7,
];
const ROLES: [KvRole; 2] = [KvRole::Keys, KvRole::Values];
const HEAD_DIM: usize = 64;

/// Decodes one value of a tile, at a slot and dimension.
pub(super) fn decode_tile(role: KvRole, bytes: &[u8], head_dim: usize, at: [usize; 2]) -> f32 {
    let [slot, dimension] = at;
    let place = match role {
        KvRole::Keys => dimension * 32 + slot,
        KvRole::Values => slot * head_dim + dimension,
    };
    let (codes, sides) = bytes.split_at(12 * head_dim);
    let (codes, k, j) = (&codes[place / 32 * 12..], place % 32 / 8, place % 8);
    let code = codes[j] >> (2 * k) & 3 | (codes[8 + j % 4] >> (2 * k + j / 4) & 1) << 2;
    let scale = f16::from_le_bytes([sides[2 * slot], sides[2 * slot + 1]]).to_f32();
    let mean = f16::from_le_bytes([0, sides[64 + dimension]]).to_f32();
    fma(LEVELS[usize::from(code)], scale, mean)
}

/// Nearly normal values: sums of twelve uniform ones.
fn normal(seed: u64, n: usize) -> Vec<f32> {
    Random(seed).values(12 * n).chunks_exact(12).map(|x| 0.5 * x.iter().sum::<f32>()).collect()
}

fn layout() -> KvLayout {
    KvLayout::new(KvFormat::Turbo3, 1, 128, HEAD_DIM).unwrap()
}

/// Rows as they are read back, `[tokens, HEAD_DIM]`.
fn there_and_back(role: KvRole, rows: &[f32]) -> Vec<f32> {
    let plane: KvBuffer = stored(best(), &layout(), role, rows, 0);
    let at = |i: usize| [i / HEAD_DIM, 0, i % HEAD_DIM];
    (0..rows.len()).map(|i| decode(&layout(), role, plane.as_bytes(), at(i))).collect()
}

/// Sum of the products of two rows' values, in f64.
fn product<'a>(a: impl IntoIterator<Item = &'a f32>, b: impl IntoIterator<Item = &'a f32>) -> f64 {
    a.into_iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

fn relative_error(rows: &[f32], found: &[f32]) -> f64 {
    let errors: Vec<f32> = rows.iter().zip(found).map(|(x, y)| x - y).collect();
    product(&errors, &errors) / product(rows, rows)
}

/// Distortion of the quantizer, 3.454 %, of values with shorter tails and of the residuals of a
/// mean over 32: about 3 %.
#[test]
fn normal_values_have_the_distortion_of_the_quantizer() {
    let rows = normal(1, 128 * HEAD_DIM);
    for role in ROLES {
        let error = relative_error(&rows, &there_and_back(role, &rows));
        assert!((0.028..0.034).contains(&error), "{role:?}: {error}");
    }
}

/// Attention sums over positions: a common shortening would stay. The scale of least squares gives
/// 0.965, an unbiased one 1.036.
#[test]
fn positions_keep_their_norm() {
    let mut rows = normal(2, 128 * HEAD_DIM);
    // Without a mean, residuals are the values.
    for pair in rows.chunks_exact_mut(2 * HEAD_DIM) {
        let (first, second) = pair.split_at_mut(HEAD_DIM);
        first.iter().zip(second).for_each(|(x, y)| *y = -x);
    }
    for role in ROLES {
        let found = there_and_back(role, &rows);
        for (x, y) in rows.chunks(HEAD_DIM).zip(found.chunks(HEAD_DIM)) {
            let kept = product(y, y) / product(x, x);
            assert!((kept - 1.0).abs() < 2e-3, "{role:?}: {kept}");
        }
    }
}

#[test]
fn dimensions_far_from_zero_cost_the_others_nothing() {
    let rows = normal(3, 128 * HEAD_DIM);
    let shifted: Vec<f32> =
        rows.iter().enumerate().map(|(i, x)| if i % HEAD_DIM % 9 == 4 { x + 22.0 } else { *x }).collect();
    for role in ROLES {
        let squared_error = |rows: &[f32]| {
            let found = there_and_back(role, rows);
            relative_error(rows, &found) * product(rows, rows)
        };
        let (plain, far) = (squared_error(&rows), squared_error(&shifted));
        // Rounding a mean of 22 to its byte leaves 2 to the codes.
        assert!(far < 1.7 * plain, "{role:?}: {far}, {plain} without");
    }
}

#[test]
fn equal_positions_are_kept() {
    for role in ROLES {
        for x in [0.0, -3.0, 0.1, 1e-3, 30_000.0] {
            let found = there_and_back(role, &[x; 128 * HEAD_DIM]);
            assert!(found.iter().all(|y| (x - y).abs() <= 1e-3 * x.abs()), "{role:?}: {x}, {}", found[0]);
        }
    }
}
