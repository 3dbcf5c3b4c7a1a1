//! Matrices over shared bytes.

use ruvllm_kernels::Error;
use ruvllm_kernels::quant::{PackedMatrix, SharedBytes, WeightFormat};

#[test]
fn sizes_are_checked() {
    let bytes = |n: usize| SharedBytes::new(vec![0_u8; n]);
    assert!(PackedMatrix::new(WeightFormat::Q8_0, 3, 64, bytes(204)).is_ok());
    assert!(PackedMatrix::new(WeightFormat::Q8_0, 0, 64, bytes(0)).is_ok());
    assert!(matches!(
        PackedMatrix::new(WeightFormat::Q8_0, 3, 63, bytes(204)),
        Err(Error::MatrixCols { cols: 63, block_len: 32, .. })
    ));
    assert!(matches!(
        PackedMatrix::new(WeightFormat::Q8_0, 3, 64, bytes(203)),
        Err(Error::MatrixBytes { row_bytes: 68, found: 203, .. })
    ));
    assert!(matches!(
        PackedMatrix::new(WeightFormat::F32, usize::MAX, 64, bytes(0)),
        Err(Error::MatrixBytes { .. })
    ));
}

#[test]
fn slices_share_and_count_from_their_own_start() {
    let bytes = SharedBytes::new([1_u8, 2, 3, 4, 5]);
    let tail = bytes.slice(1..5).slice(1..3);
    assert_eq!(tail.as_ref(), [3, 4]);
}

#[test]
fn one_row_is_dequantized() {
    let values: Vec<f32> = (0..12).map(|i| i as f32).collect();
    let mut bytes = vec![0; 48];
    WeightFormat::F32.quantize(&values, &mut bytes);
    let matrix = PackedMatrix::new(WeightFormat::F32, 3, 4, SharedBytes::new(bytes)).unwrap();
    let mut row = [0.0; 4];
    matrix.dequantize_row(1, &mut row);
    assert_eq!(row, [4.0, 5.0, 6.0, 7.0]);
}
