//! Writing keys and values: what the stored numbers are, on every instruction set.

use half::f16;

use super::fixture::{Random, decode, scalar};
use super::*;
use crate::{Error, KvBuffer};

const HEAD_DIM: usize = 96;

/// Stores rows as keys (or values) from position `first` on and reads them back, `[tokens, n_kv_heads, head_dim]`.
fn there_and_back(
    kernels: Kernels,
    layout: &KvLayout,
    is_keys: bool,
    rows: &[f32],
    first: usize,
) -> (Vec<u8>, Vec<f32>) {
    let mut plane = KvBuffer::zeroed(layout.plane_bytes()).unwrap();
    let bytes = plane.as_bytes_mut();
    if is_keys {
        kernels.store_keys(layout, rows, first, bytes);
    } else {
        kernels.store_values(layout, rows, first, bytes);
    }
    let width = rows.len() / (layout.n_kv_heads() * HEAD_DIM) * layout.n_kv_heads();
    let mut out = Vec::new();
    for row in 0..width {
        let (token, head) = (row / layout.n_kv_heads(), row % layout.n_kv_heads());
        out.extend((0..HEAD_DIM).map(|i| decode(layout, is_keys, bytes, [first + token, head, i])));
    }
    (bytes.to_vec(), out)
}

#[test]
fn stored_rows_are_close_and_alike_everywhere() {
    let rows = Random(1).values(40 * 3 * HEAD_DIM);
    for format in KvFormat::ALL {
        let layout = KvLayout::new(format, 3, 64, HEAD_DIM).unwrap();
        // Half a step of the largest group, and the rounding of its scale.
        let bound = match format {
            KvFormat::F32 => 0.0,
            KvFormat::F16 => 2f32.powi(-12),
            KvFormat::BF16 => 2f32.powi(-9),
            KvFormat::Q8 => 1.01 / 254.0,
            KvFormat::Q4 => 1.01 / 15.0,
        };
        for is_keys in [true, false] {
            let (reference, found) = there_and_back(scalar(), &layout, is_keys, &rows, 20);
            for (x, y) in rows.iter().zip(&found) {
                assert!((x - y).abs() <= bound, "{format}: {x} became {y}");
            }
            for kernels in Kernels::available() {
                assert_eq!(there_and_back(kernels, &layout, is_keys, &rows, 20).0, reference, "{format}");
            }
        }
    }
}

#[test]
fn groups_of_equal_and_of_tiny_values() {
    for (format, x, tolerance) in [
        (KvFormat::Q8, 0.0, 0.0),
        (KvFormat::Q4, 0.0, 0.0),
        (KvFormat::Q8, -3.0, 0.002),
        (KvFormat::Q4, -3.0, 0.0),
        (KvFormat::Q4, 0.1, 1e-4),
        (KvFormat::Q8, 1e-12, 1e-12),
        (KvFormat::Q4, 1e-12, 1e-12),
        (KvFormat::Q8, 60_000.0, 40.0),
    ] {
        let layout = KvLayout::new(format, 1, 64, HEAD_DIM).unwrap();
        let (_, found) = there_and_back(scalar(), &layout, true, &[x; HEAD_DIM], 3);
        assert!(found.iter().all(|y| (x - y).abs() <= tolerance), "{format}: {x} became {}", found[0]);
    }
}

#[test]
fn garbage_does_not_look_like_a_number() {
    for garbage in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -1e8] {
        let mut rows = Random(2).values(HEAD_DIM);
        rows[40] = garbage;
        for format in [KvFormat::Q8, KvFormat::Q4] {
            let layout = KvLayout::new(format, 1, 64, HEAD_DIM).unwrap();
            for (is_keys, kernels) in [true, false].into_iter().zip(Kernels::available().into_iter().cycle())
            {
                let (_, found) = there_and_back(kernels, &layout, is_keys, &rows, 63);
                assert!(found[32..64].iter().all(|x| x.is_nan()), "{format}: {garbage}");
                assert!(found[..32].iter().chain(&found[64..]).all(|x| x.is_finite()), "{format}: {garbage}");
            }
        }
    }
}

#[test]
fn head_sizes_that_do_not_fit_are_an_error() {
    for format in KvFormat::ALL {
        let fits = KvLayout::new(format, 2, 64, 80);
        match format.head_dim_multiple() {
            1 => assert_eq!(fits.unwrap().plane_bytes() % 64, 0),
            _ => assert!(matches!(fits, Err(Error::KvHeadDim { head_dim: 80, multiple: 32, .. }))),
        }
    }
    assert_eq!(KvLayout::new(KvFormat::Q8, 2, 64, 64).unwrap().plane_bytes(), 2 * 64 * (64 + 2 * 2));
    assert_eq!(KvLayout::new(KvFormat::Q4, 2, 64, 64).unwrap().plane_bytes(), 2 * 64 * (32 + 4 * 2));
}

#[test]
fn names_round_trip() {
    for format in KvFormat::ALL {
        assert_eq!(format.to_string().parse::<KvFormat>().unwrap(), format);
    }
    assert!(matches!("tiered".parse::<KvFormat>(), Err(Error::UnknownKvFormat { name }) if name == "tiered"));
}

#[test]
fn half_precision_is_rounded_to_nearest() {
    let layout = KvLayout::new(KvFormat::F16, 1, 64, HEAD_DIM).unwrap();
    let rows: Vec<f32> = (0..HEAD_DIM).map(|i| 1.0 + i as f32 / 4096.0).collect();
    let (_, found) = there_and_back(crate::Kernels::available()[0], &layout, true, &rows, 0);
    for (x, y) in rows.iter().zip(found) {
        assert_eq!(f16::from_f32(*x).to_f32(), y);
    }
}
