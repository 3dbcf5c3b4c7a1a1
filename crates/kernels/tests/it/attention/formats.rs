//! Stored keys and values on every instruction set.

use half::f16;
use ruvllm_kernels::attention::{KiviBits, KvBuffer, KvFormat, KvLayout, KvPlaneMut, KvRole};
use ruvllm_kernels::{Error, Kernels};

use super::fixture::{Random, best, decode, scalar, stored};

const HEAD_DIM: usize = 128;
/// Formats without scales.
const FLOATS: [KvFormat; 3] = [KvFormat::F32, KvFormat::F16, KvFormat::BF16];
const ROLES: [KvRole; 2] = [KvRole::Keys, KvRole::Values];

/// Stores rows from position `first` and reads them back, `[tokens, n_kv_heads, head_dim]`.
fn there_and_back(
    kernels: Kernels,
    layout: &KvLayout,
    role: KvRole,
    rows: &[f32],
    first: usize,
) -> (KvBuffer, Vec<f32>) {
    let plane = stored(kernels, layout, role, rows, first);
    let width = rows.len() / (layout.n_kv_heads() * HEAD_DIM) * layout.n_kv_heads();
    let mut out = Vec::new();
    for row in 0..width {
        let (token, head) = (row / layout.n_kv_heads(), row % layout.n_kv_heads());
        out.extend((0..HEAD_DIM).map(|i| decode(layout, role, plane.as_bytes(), [first + token, head, i])));
    }
    (plane, out)
}

#[test]
fn stored_rows_are_close_and_alike_everywhere() {
    let rows = Random(1).values(40 * 3 * HEAD_DIM);
    for format in KvFormat::ALL {
        let layout = KvLayout::new(format, 3, 128, HEAD_DIM).unwrap();
        // Half a step of the largest group, and the rounding of its scale.
        let bound = match format {
            KvFormat::F32 => 0.0,
            KvFormat::F16 => 2f32.powi(-12),
            KvFormat::BF16 => 2f32.powi(-9),
            KvFormat::Q8 => 1.01 / 254.0,
            KvFormat::Q4 | KvFormat::Kivi { bits: KiviBits::Four, .. } => 1.01 / 15.0,
            KvFormat::Kivi { bits: KiviBits::Two, .. } => 1.01 / 3.0,
            // Half the widest gap between levels, in the widest range, after RoPE with its
            // magnitude.
            KvFormat::Nuq3 => 0.42,
            // Half the widest gap between levels, 0.81 deviations of uniform values and the mean.
            KvFormat::Turbo3 => 0.35,
            _ => panic!("no bound for {format}"),
        };
        for role in ROLES {
            let (reference, found) = there_and_back(scalar(), &layout, role, &rows, 20);
            for (x, y) in rows.iter().zip(&found) {
                assert!((x - y).abs() <= bound, "{format}: {x} became {y}");
            }
            for kernels in Kernels::available() {
                let plane = there_and_back(kernels, &layout, role, &rows, 20).0;
                assert_eq!(plane.as_bytes(), reference.as_bytes(), "{format}");
            }
        }
    }
}

#[test]
fn groups_of_equal_and_of_tiny_values() {
    let [kivi4, kivi2] = ["kivi4", "kivi2-g128"].map(|name| name.parse().unwrap());
    for (format, x, tolerance) in [
        (KvFormat::Q8, 0.0, 0.0),
        (KvFormat::Q4, 0.0, 0.0),
        (KvFormat::Q8, -3.0, 0.002),
        (KvFormat::Q4, -3.0, 0.0),
        (KvFormat::Q4, 0.1, 1e-4),
        (KvFormat::Q8, 1e-12, 1e-12),
        (KvFormat::Q4, 1e-12, 1e-12),
        (KvFormat::Q8, 60_000.0, 40.0),
        (kivi4, -3.0, 0.0),
        (kivi4, 0.1, 1e-4),
        (kivi2, -3.0, 0.0),
        (kivi2, 1e-12, 1e-12),
        (kivi2, 60_000.0, 0.0),
    ] {
        let layout = KvLayout::new(format, 1, 128, HEAD_DIM).unwrap();
        for role in ROLES {
            let (_, found) = there_and_back(scalar(), &layout, role, &[x; 128 * HEAD_DIM], 0);
            assert!(found.iter().all(|y| (x - y).abs() <= tolerance), "{format}: {x} became {}", found[0]);
        }
    }
}

/// Only the dimensions (or positions) that share a scale with garbage become NaN; of keys in `nuq3`
/// and in `turbo3` the tile.
#[test]
fn garbage_does_not_look_like_a_number() {
    for garbage in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -1e8] {
        let mut rows = Random(2).values(128 * HEAD_DIM);
        rows[63 * HEAD_DIM + 40] = garbage;
        for format in KvFormat::ALL.into_iter().filter(|format| !FLOATS.contains(format)) {
            let layout = KvLayout::new(format, 1, 128, HEAD_DIM).unwrap();
            let group = format.head_dim_multiple();
            for role in ROLES {
                let per_dimension = role == KvRole::Keys && !format.keys_are_appendable();
                let spoiled = |position: usize, dimension: usize| {
                    let tile = position / 32 == 63 / 32;
                    if format == KvFormat::Turbo3 {
                        tile
                    } else if format == KvFormat::Nuq3 {
                        if role == KvRole::Keys { tile } else { position == 63 }
                    } else if per_dimension {
                        dimension == 40 && position / group == 63 / group
                    } else {
                        position == 63 && dimension / group == 40 / group
                    }
                };
                for kernels in Kernels::available() {
                    let (_, found) = there_and_back(kernels, &layout, role, &rows, 0);
                    for (i, x) in found.iter().enumerate() {
                        let (position, dimension) = (i / HEAD_DIM, i % HEAD_DIM);
                        let what = format!("{format} {role:?} {garbage}: {x} at {position}, {dimension}");
                        assert_eq!(x.is_nan(), spoiled(position, dimension), "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn heads_and_blocks_that_do_not_fit_are_an_error() {
    for format in KvFormat::ALL {
        let fits = KvLayout::new(format, 2, 128, 80);
        match format.head_dim_multiple() {
            1 => assert_eq!(fits.unwrap().plane_bytes() % 64, 0),
            group => assert!(
                matches!(fits, Err(Error::KvHeadDim { head_dim: 80, multiple, .. }) if multiple == group)
            ),
        }
        let fits = KvLayout::new(format, 2, 96, 128);
        match format.block_tokens_multiple() {
            32 => assert_eq!(fits.unwrap().plane_bytes() % 64, 0),
            group => assert!(
                matches!(fits, Err(Error::KvBlockTokens { block_tokens: 96, multiple, .. }) if multiple == group)
            ),
        }
    }
}

#[test]
fn layouts_of_no_dimensions_and_no_whole_tiles_are_an_error() {
    for format in KvFormat::ALL {
        assert!(matches!(KvLayout::new(format, 2, 128, 0), Err(Error::KvHeadDim { head_dim: 0, .. })));
        for block_tokens in [0, 1, 31, 33, 130] {
            let layout = KvLayout::new(format, 2, block_tokens, 128);
            assert!(matches!(layout, Err(Error::KvBlockTokens { .. })), "{format}, {block_tokens}");
        }
    }
}

#[test]
fn planes_take_what_the_table_says() {
    let bits = [32.0, 16.0, 16.0, 8.5, 5.0, 5.0, 4.5, 4.25, 3.625, 3.375, 3.0, 2.5, 2.25];
    for (format, bits) in KvFormat::ALL.into_iter().zip(bits) {
        let layout = KvLayout::new(format, 3, 256, 128).unwrap();
        assert_eq!(layout.plane_bytes() as f64 * 8.0, bits * (3 * 256 * 128) as f64, "{format}");
        assert_eq!(layout.plane_bytes() % 64, 0, "{format}");
    }
}

/// An offset dimension does not affect the accuracy of the others, and its own only by its range.
#[test]
fn a_scale_per_dimension_beats_one_per_position_on_outliers() {
    let mut rows = Random(7).values(32 * HEAD_DIM);
    for row in rows.chunks_exact_mut(HEAD_DIM) {
        for (i, x) in row.iter_mut().enumerate().filter(|(i, _)| i % 32 == 5) {
            *x = 10.0 + i as f32 + 3.0 * *x;
        }
    }
    let squared_error = |format| {
        let layout = KvLayout::new(format, 1, 32, HEAD_DIM).unwrap();
        let (_, found) = there_and_back(best(), &layout, KvRole::Keys, &rows, 0);
        rows.iter().zip(found).map(|(x, y)| (x - y).powi(2)).sum::<f32>()
    };
    assert!(10.0 * squared_error("kivi4".parse().unwrap()) < squared_error(KvFormat::Q4));
}

#[test]
fn four_bit_values_of_groups_of_32_are_those_of_q4() {
    let rows = Random(8).values(32 * HEAD_DIM);
    let [kivi4, q4] = ["kivi4", "q4"].map(|name| {
        let layout = KvLayout::new(name.parse().unwrap(), 1, 32, HEAD_DIM).unwrap();
        stored(best(), &layout, KvRole::Values, &rows, 0).as_bytes().to_vec()
    });
    assert_eq!(kivi4, q4);
}

#[test]
#[should_panic(expected = "keys in kivi2 are written a block at a time")]
fn keys_that_share_scales_are_not_stored_row_by_row() {
    let layout = KvLayout::new("kivi2".parse().unwrap(), 1, 32, 32).unwrap();
    let mut plane = KvBuffer::zeroed(layout.plane_bytes()).unwrap();
    best().store_kv(KvPlaneMut::new(layout, KvRole::Keys, plane.as_bytes_mut()), 0, &[0.0; 32]);
}

#[test]
fn names_round_trip() {
    for format in KvFormat::ALL {
        assert_eq!(format.to_string().parse::<KvFormat>().unwrap(), format);
    }
    assert!(
        matches!("tiered".parse::<KvFormat>(), Err(Error::UnknownKvFormat { name, .. }) if name == "tiered")
    );
}

#[test]
fn half_precision_is_rounded_to_nearest() {
    let layout = KvLayout::new(KvFormat::F16, 1, 64, HEAD_DIM).unwrap();
    let rows: Vec<f32> = (0..HEAD_DIM).map(|i| 1.0 + i as f32 / 4096.0).collect();
    let (_, found) = there_and_back(scalar(), &layout, KvRole::Keys, &rows, 0);
    for (x, y) in rows.iter().zip(found) {
        assert_eq!(f16::from_f32(*x).to_f32(), y);
    }
}
