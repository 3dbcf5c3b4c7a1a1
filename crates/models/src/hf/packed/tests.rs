//! Random matrices of every layout beside a reading of the formats value by value.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use gguf_rs_lite::{FileMemory, TensorType};
use proptest::prelude::*;
use ruvllm_kernels::quant::WeightFormat;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use super::layout::FLOAT8;
use super::scheme::Method;
use super::*;
use crate::weights::weight_format;

/// Parts of a matrix: end of the name, type, shape and bytes.
type Files = Vec<(&'static str, Dtype, Vec<usize>, Vec<u8>)>;

/// Numbers from a seed; `proptest` would shrink each of thousands.
struct Draws(u64);

impl Draws {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.below(256) as u8).collect()
    }

    /// Scales between 2^-12 and 4, of all the bits of their type.
    fn scales(&mut self, count: usize, dtype: Dtype) -> (Vec<u8>, Vec<f64>) {
        let format = match dtype {
            Dtype::F16 => WeightFormat::F16,
            Dtype::BF16 => WeightFormat::BF16,
            _ => WeightFormat::F32,
        };
        let scale = |draws: &mut Self| {
            let mantissa = 1.0 + draws.below(1 << 23) as f32 / (1 << 23) as f32;
            mantissa * 2.0_f32.powi(draws.below(14) as i32 - 12)
        };
        let drawn: Vec<f32> = (0..count).map(|_| scale(self)).collect();
        let (mut bytes, mut values) = (vec![0; count * format.block_bytes()], vec![0.0; count]);
        format.quantize(&drawn, &mut bytes);
        format.dequantize(&bytes, &mut values);
        (bytes, values.into_iter().map(f64::from).collect())
    }
}

/// `count` bits from bit `at` on of a list of words.
fn bits_at(words: &[u8], word: usize, at: usize, bits: u32) -> i64 {
    let word = u32::from_le_bytes(words[4 * word..4 * word + 4].try_into().expect("a word"));
    i64::from(word >> (at as u32 * bits)) & ((1 << bits) - 1)
}

/// The one matrix of a folder with these parts, and its bytes.
fn repacked(method: Method, files: &Files) -> Result<(TensorType, Vec<f32>)> {
    thread_local! {
        static FOLDER: RefCell<Option<tempfile::TempDir>> = const { RefCell::new(None) };
    }
    FOLDER.with_borrow_mut(|folder| {
        let folder = folder.get_or_insert_with(|| tempfile::tempdir().expect("a folder")).path();
        let views: BTreeMap<String, TensorView<'_>> = files
            .iter()
            .map(|(end, dtype, shape, bytes)| {
                (format!("m.{end}"), TensorView::new(*dtype, shape.clone(), bytes).expect("a tensor"))
            })
            .collect();
        let file = safetensors::serialize(views, None).expect("a file");
        std::fs::write(folder.join("model.safetensors"), file).expect("written");
        read(method, folder)
    })
}

fn read(method: Method, folder: &Path) -> Result<(TensorType, Vec<f32>)> {
    let (shards, stored) = Shards::open(folder, FileMemory::default())?;
    let scheme = Scheme { method, shown: String::new() };
    let tensors = collect(&scheme, stored, &shards)?;
    let [tensor] = &tensors[..] else { panic!("{} tensors", tensors.len()) };
    assert_eq!(tensor.name, "m.weight");
    let tensor_type = tensor.tensor_type.expect("a type");
    let format = weight_format(tensor_type).expect("a format");
    let data = shards.data(tensor)?;
    assert_eq!(data.len(), tensor.byte_len());
    let mut values = vec![0.0; tensor.dims.iter().product::<u64>() as usize];
    format.dequantize(data.as_bytes(), &mut values);
    Ok((tensor_type, values))
}

/// Bound of the error that ADR-0117 states, for a value of `scale * (quant - zero)`.
fn bound(tensor_type: TensorType, scale: f64, zero: i64, value: f64) -> f64 {
    // Of numbers below the normal range of F16; they are sums of two in `Q4_1`.
    let least = 2.0_f64.powi(-25);
    match tensor_type {
        TensorType::Q4_0 | TensorType::Q8_0 => value.abs() * 2.0_f64.powi(-11) + 128.0 * least,
        TensorType::Q4_1 => scale * (15.0 + zero as f64) * 2.0_f64.powi(-11) + 16.0 * least,
        TensorType::F16 => value.abs() * 2.0_f64.powi(-11) + least,
        _ => value.abs() * 2.0_f64.powi(-8),
    }
}

fn check(
    method: Method,
    files: &Files,
    columns: usize,
    expected: impl Fn(usize, usize) -> (f64, i64, i64),
    allowed: &[TensorType],
) {
    let (tensor_type, found) = repacked(method, files).expect("it is read");
    assert!(allowed.contains(&tensor_type), "{tensor_type:?}");
    for (i, &found) in found.iter().enumerate() {
        let (scale, quant, zero) = expected(i / columns, i % columns);
        let value = scale * (quant - zero) as f64;
        let error = (f64::from(found) - value).abs();
        assert!(
            error <= bound(tensor_type, scale, zero, value),
            "{i}: {found} for {value} ({tensor_type:?})"
        );
    }
}

const WIDE: [TensorType; 2] = [TensorType::F16, TensorType::BF16];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn awq_is_read_as_its_authors_pack_it(
        seed: u64, words in 1_usize..40, columns in 1_usize..150,
        group in prop_oneof![Just(32_usize), Just(64), Just(128), 1_usize..70],
    ) {
        let mut draws = Draws(seed);
        let (rows, groups) = (8 * words, columns.div_ceil(group));
        let (quants, zeros) = (draws.bytes(4 * columns * words), draws.bytes(4 * groups * words));
        let (scales, values) = draws.scales(groups * rows, Dtype::F16);
        let files = vec![
            ("qweight", Dtype::I32, vec![columns, words], quants.clone()),
            ("qzeros", Dtype::I32, vec![groups, words], zeros.clone()),
            ("scales", Dtype::F16, vec![groups, rows], scales),
        ];
        // Output `8 i + [0, 2, 4, 6, 1, 3, 5, 7][k]` is in nibble `k` of word `i`.
        let nibble = |row: usize| [0, 4, 1, 5, 2, 6, 3, 7][row % 8];
        let expected = |row: usize, column: usize| {
            let group = column / group;
            let quant = bits_at(&quants, column * words + row / 8, nibble(row), 4);
            let zero = bits_at(&zeros, group * words + row / 8, nibble(row), 4);
            (values[group * rows + row], quant, zero)
        };
        let is_whole = columns % 32 == 0 && (group % 32 == 0 || group >= columns);
        let method = Method::Awq { group: Some(group as u64), is_symmetric: seed % 2 == 0 };
        check(method, &files, columns, expected, if is_whole { &[TensorType::Q4_1] } else { &WIDE[..1] });
    }

    #[test]
    fn gptq_is_read_as_its_authors_pack_it(
        seed: u64, row_words in 1_usize..40, column_words in 1_usize..20,
        (bits, first_zero) in (prop_oneof![Just(4_u32), Just(8)], 0_u16..2),
        group in prop_oneof![Just(32_usize), Just(64), 1_usize..70],
        (is_symmetric, is_shuffled) in any::<(bool, bool)>(),
    ) {
        let mut draws = Draws(seed);
        let n = 32 / bits as usize;
        let (rows, columns) = (n * row_words, n * column_words);
        let groups = columns.div_ceil(group);
        let quants = draws.bytes(4 * column_words * rows);
        let usual = if bits == 4 { 0x88 - 0x11 * first_zero as u8 } else { 0x80 - first_zero as u8 };
        let zeros = if is_symmetric { vec![usual; 4 * groups * row_words] } else { draws.bytes(4 * groups * row_words) };
        let (scales, values) = draws.scales(groups * rows, Dtype::F16);
        let mut order: Vec<usize> = (0..columns).map(|column| column / group).collect();
        if is_shuffled {
            for i in (1..columns).rev() {
                order.swap(i, draws.below(i as u64 + 1) as usize);
            }
        }
        let files = vec![
            ("qweight", Dtype::I32, vec![column_words, rows], quants.clone()),
            ("qzeros", Dtype::I32, vec![groups, row_words], zeros.clone()),
            ("scales", Dtype::F16, vec![groups, rows], scales),
            ("g_idx", Dtype::I32, vec![columns], order.iter().flat_map(|&group| (group as i32).to_le_bytes()).collect()),
        ];
        let expected = |row: usize, column: usize| {
            let quant = bits_at(&quants, column / n * rows + row, column % n, bits);
            let zero = bits_at(&zeros, order[column] * row_words + row / n, row % n, bits);
            (values[order[column] * rows + row], quant, zero + i64::from(first_zero))
        };
        let method = Method::Gptq {
            bits, group: Some(group as u64), first_zero, is_symmetric, has_act_order: is_shuffled,
        };
        let is_sorted = order.iter().enumerate().all(|(column, &found)| found == column / group);
        let is_whole = columns % 32 == 0 && (group % 32 == 0 || group >= columns) && is_sorted;
        let allowed: &[TensorType] = match (bits, is_symmetric) {
            (4, true) if is_whole => &[TensorType::Q4_0],
            (4, false) if is_whole => &[TensorType::Q4_1],
            (8, true) if is_whole => &[TensorType::Q8_0],
            _ => &WIDE[..1],
        };
        check(method, &files, columns, expected, allowed);
    }

    #[test]
    fn compressed_tensors_are_read_as_their_library_packs_them(
        seed: u64, rows in 1_usize..300, (per_group, groups) in (1_usize..70, 1_usize..6), tens: bool,
        bits in prop_oneof![Just(4_u32), Just(8)], has_zeros: bool,
        dtype in prop_oneof![Just(Dtype::F16), Just(Dtype::BF16), Just(Dtype::F32)],
    ) {
        let mut draws = Draws(seed);
        let group = if tens { 32 * per_group.div_ceil(32) } else { per_group };
        let (n, columns) = (32 / bits as usize, group * groups);
        let words = columns.div_ceil(n);
        let quants = draws.bytes(4 * rows * words);
        let zeros = draws.bytes(4 * rows.div_ceil(n) * groups);
        let (scales, values) = draws.scales(rows * groups, dtype);
        let shape = [rows as i64, columns as i64].map(i64::to_le_bytes).concat();
        let mut files = vec![
            ("weight_packed", Dtype::I32, vec![rows, words], quants.clone()),
            ("weight_scale", dtype, vec![rows, groups], scales),
            ("weight_shape", Dtype::I64, vec![2], shape),
        ];
        if has_zeros {
            files.push(("weight_zero_point", Dtype::I32, vec![rows.div_ceil(n), groups], zeros.clone()));
        }
        let expected = |row: usize, column: usize| {
            let quant = bits_at(&quants, row * words + column / n, column % n, bits);
            let zero = bits_at(&zeros, row / n * groups + column / group, row % n, bits);
            (values[row * groups + column / group], quant, if has_zeros { zero } else { 1 << (bits - 1) })
        };
        let method = Method::Compressed { bits: Some(bits), needs_zero_points: has_zeros, tile: None };
        let allowed: &[TensorType] = match (bits, has_zeros) {
            (4, false) if columns % 32 == 0 && (group % 32 == 0 || groups == 1) => &[TensorType::Q4_0],
            (4, true) if columns % 32 == 0 && (group % 32 == 0 || groups == 1) => &[TensorType::Q4_1],
            (8, false) if columns % 32 == 0 && (group % 32 == 0 || groups == 1) => &[TensorType::Q8_0],
            _ => &WIDE,
        };
        check(method, &files, columns, expected, allowed);
    }

    #[test]
    fn signed_bytes_are_read(seed: u64, rows in 1_usize..140, columns in 1_usize..100, has_zeros: bool) {
        let mut draws = Draws(seed);
        let (quants, zeros) = (draws.bytes(rows * columns), draws.bytes(rows));
        let (scales, values) = draws.scales(rows, Dtype::BF16);
        let mut files = vec![
            ("weight", Dtype::I8, vec![rows, columns], quants.clone()),
            ("weight_scale", Dtype::BF16, vec![rows, 1], scales),
        ];
        if has_zeros {
            files.push(("weight_zero_point", Dtype::I8, vec![rows, 1], zeros.clone()));
        }
        let expected = |row: usize, column: usize| {
            let zero = if has_zeros { i64::from(zeros[row] as i8) } else { 0 };
            (values[row], i64::from(quants[row * columns + column] as i8), zero)
        };
        let method = Method::Compressed { bits: Some(8), needs_zero_points: has_zeros, tile: None };
        let is_whole = columns % 32 == 0 && !has_zeros;
        check(method, &files, columns, expected, if is_whole { &[TensorType::Q8_0] } else { &WIDE[1..] });
    }

    /// The shape of scales: of the matrix, of rows, or of tiles, the last ones of which are cut.
    #[test]
    fn numbers_of_8_bits_are_read(
        seed: u64, (rows, columns) in (1_usize..300, 1_usize..300), spread in 0_usize..3,
        (tile_rows, tile_columns) in prop_oneof![Just((128_usize, 128_usize)), (1_usize..90, 1_usize..90)],
        dtype in prop_oneof![Just(Dtype::F16), Just(Dtype::BF16), Just(Dtype::F32)],
    ) {
        let mut draws = Draws(seed);
        // Without NaN.
        let quants: Vec<u8> = draws.bytes(rows * columns).into_iter().map(|byte| byte - u8::from(byte & 127 == 127)).collect();
        let (cell_rows, cell_columns, tile) = match spread {
            0 => (rows, columns, None),
            1 => (1, columns, None),
            _ => (tile_rows, tile_columns, Some([tile_rows as u64, tile_columns as u64])),
        };
        let (grid_rows, groups) = (rows.div_ceil(cell_rows), columns.div_ceil(cell_columns));
        let (scales, values) = draws.scales(grid_rows * groups, dtype);
        let files = vec![
            ("weight", Dtype::F8_E4M3, vec![rows, columns], quants.clone()),
            ("weight_scale_inv", dtype, if spread == 0 { Vec::new() } else { vec![grid_rows, groups] }, scales),
        ];
        let (tensor_type, found) = repacked(Method::Float8 { tile }, &files).expect("it is read");
        prop_assert_eq!(tensor_type, if dtype == Dtype::F16 { TensorType::F16 } else { TensorType::BF16 });
        for (i, &found) in found.iter().enumerate() {
            let (row, column) = (i / columns, i % columns);
            let byte = quants[i];
            let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f64::from(byte & 7));
            let magnitude = match exponent {
                0 => mantissa / 8.0 * 2.0_f64.powi(-6),
                _ => (1.0 + mantissa / 8.0) * 2.0_f64.powi(exponent - 7),
            };
            let scale = values[row / cell_rows * groups + column / cell_columns];
            let value = scale * if byte & 128 == 0 { magnitude } else { -magnitude };
            let error = (f64::from(found) - value).abs();
            prop_assert!(error <= bound(tensor_type, scale, 0, value), "{} for {}", found, value);
        }
    }

    /// Any shapes and types: a matrix or an error.
    #[test]
    fn parts_that_do_not_fit_are_errors(
        seed: u64, method in 0_usize..5, shapes in prop::collection::vec(prop::collection::vec(0_usize..20, 0..3), 6),
    ) {
        let mut draws = Draws(seed);
        let method = match method {
            0 => Method::Awq { group: Some(draws.below(9) + 1), is_symmetric: true },
            1 => Method::Gptq { bits: 4, group: None, first_zero: 1, is_symmetric: true, has_act_order: false },
            2 => Method::Gptq { bits: 8, group: Some(2), first_zero: 0, is_symmetric: false, has_act_order: true },
            3 => Method::Float8 { tile: Some([draws.below(9) + 1, 4]) },
            _ => Method::Compressed { bits: None, needs_zero_points: false, tile: None },
        };
        let types = [Dtype::I32, Dtype::I32, Dtype::F16, Dtype::F8_E4M3, Dtype::I64, Dtype::I8];
        let mut files = Files::new();
        for (i, (&end, shape)) in method.parts().iter().zip(shapes).enumerate() {
            let dtype = if draws.below(3) > 0 { types[i] } else { types[draws.below(6) as usize] };
            if draws.below(8) > 0 {
                let bytes = draws.bytes(shape.iter().product::<usize>() * dtype.bitsize() / 8);
                files.push((end, dtype, shape, bytes));
            }
        }
        // A single tensor of any of them, or an error.
        if !files.is_empty() && !files.iter().any(|(end, dtype, ..)| *end == WEIGHT && *dtype == Dtype::F16) {
            let _ = repacked(method, &files);
        }
    }
}

#[test]
fn exponents_are_scales() {
    let files = vec![
        ("weight", Dtype::F8_E4M3, vec![1, 3], vec![0x38, 0xb8, 0x7e]),
        ("weight_scale_inv", Dtype::F8_E8M0, vec![1, 1], vec![128]),
    ];
    let (_, values) = repacked(Method::Float8 { tile: None }, &files).expect("it is read");
    assert_eq!(values, [2.0, -2.0, 896.0]);
    let files = vec![files[0].clone(), ("weight_scale_inv", Dtype::F8_E8M0, vec![1, 1], vec![255])];
    let error = repacked(Method::Float8 { tile: None }, &files).expect_err("refused").to_string();
    assert!(error.contains("has NaN at index 0"), "{error}");
}

#[test]
fn the_numbers_of_8_bits_are_those_of_the_specification() {
    for (byte, value) in [
        (0x00, 0.0),
        (0x01, 2.0_f32.powi(-9)),
        (0x07, 7.0 * 2.0_f32.powi(-9)),
        (0x08, 2.0_f32.powi(-6)),
        (0x38, 1.0),
        (0x7e, 448.0),
        (0xfe, -448.0),
    ] {
        assert_eq!(FLOAT8[byte], value, "{byte:#x}");
    }
    assert!(FLOAT8[0x7f].is_nan() && FLOAT8[0xff].is_nan());
    assert!(FLOAT8[0x80] == 0.0 && FLOAT8[0x80].is_sign_negative());
}

/// Root mean square of differences, relative to that of the values.
fn relative_error(found: &[f32], values: &[f64]) -> f64 {
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>();
    let error = square(&mut found.iter().zip(values).map(|(&found, value)| f64::from(found) - value));
    (error / square(&mut values.iter().copied())).sqrt()
}

/// The figures of ADR-0117: normally distributed weights of deviation 0.02, quantized to 4 bits in
/// groups of 128 and to FP8 in tiles of 128 x 128, with scales of all bits.
#[test]
fn repacking_costs_little_beside_quantization() {
    let (rows, columns, side) = (256, 512, 128);
    let weights = normal(rows * columns);
    four_bits_cost_little(&weights, (rows, columns, side));
    numbers_of_8_bits_cost_little(&weights, (rows, columns, side));
}

fn normal(count: usize) -> Vec<f64> {
    let mut draws = Draws(7);
    let mut uniform = || draws.below(1 << 20) as f64 / f64::from(1 << 20);
    (0..count).map(|_| 0.02 * ((0..12).map(|_| uniform()).sum::<f64>() - 6.0)).collect()
}

fn four_bits_cost_little(weights: &[f64], (rows, columns, side): (usize, usize, usize)) {
    let half = |value: f64| {
        let mut bytes = [0; 2];
        WeightFormat::F16.quantize(&[value as f32], &mut bytes);
        let mut rounded = [0.0];
        WeightFormat::F16.dequantize(&bytes, &mut rounded);
        (bytes, f64::from(rounded[0]))
    };
    let groups = columns / side;
    let (mut words, mut zeros) = (vec![0_u32; rows * columns / 8], vec![0_u32; rows / 8 * groups]);
    let (mut scales, mut values) = (Vec::new(), vec![0.0; rows * columns]);
    for (i, group) in weights.chunks(side).enumerate() {
        let (row, at) = (i / groups, i % groups);
        let low = group.iter().copied().fold(0.0, f64::min);
        let high = group.iter().copied().fold(0.0, f64::max);
        let (bytes, scale) = half((high - low) / 15.0);
        scales.extend(bytes);
        let zero = (-low / scale).round().clamp(0.0, 15.0);
        zeros[row / 8 * groups + at] |= (zero as u32) << (4 * (row % 8));
        for (k, weight) in group.iter().enumerate() {
            let quant = (weight / scale + zero).round().clamp(0.0, 15.0);
            words[(i * side + k) / 8] |= (quant as u32) << (4 * (k % 8));
            values[i * side + k] = scale * (quant - zero);
        }
    }
    let bytes = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let shape = [rows as i64, columns as i64].map(i64::to_le_bytes).concat();
    let files = vec![
        ("weight_packed", Dtype::I32, vec![rows, columns / 8], bytes(&words)),
        ("weight_scale", Dtype::F16, vec![rows, groups], scales),
        ("weight_shape", Dtype::I64, vec![2], shape),
        ("weight_zero_point", Dtype::I32, vec![rows / 8, groups], bytes(&zeros)),
    ];
    let method = Method::Compressed { bits: Some(4), needs_zero_points: true, tile: None };
    let (_, found) = repacked(method, &files).expect("it is read");
    let quantized = relative_error(&values.iter().map(|&value| value as f32).collect::<Vec<_>>(), weights);
    let repacked_error = relative_error(&found, &values);
    println!("4 bits: quantization {quantized:.1e}, repacking as Q4_1 {repacked_error:.1e}");
    assert!(repacked_error < quantized / 50.0);
}

fn numbers_of_8_bits_cost_little(weights: &[f64], (rows, columns, side): (usize, usize, usize)) {
    let groups = columns / side;
    let mut values = vec![0.0; rows * columns];
    let magnitudes: Vec<f64> = (0..=0x7e_usize).map(|byte| f64::from(FLOAT8[byte])).collect();
    let (mut quants, mut scales) = (vec![0; rows * columns], Vec::new());
    for tile in 0..rows / side * groups {
        let (top, left) = (tile / groups * side, tile % groups * side);
        let places = (0..side * side).map(|i| (top + i / side) * columns + left + i % side);
        let highest = places.clone().map(|i| weights[i].abs()).fold(0.0, f64::max);
        let scale = (highest / 448.0) as f32;
        scales.extend(scale.to_le_bytes());
        let scale = f64::from(scale);
        for i in places {
            let wanted = weights[i].abs() / scale;
            let above = magnitudes.partition_point(|&magnitude| magnitude < wanted).min(0x7e);
            let below = above.saturating_sub(1);
            let is_above = magnitudes[above] - wanted < wanted - magnitudes[below];
            let byte = if is_above { above } else { below };
            quants[i] = byte as u8 | if weights[i] < 0.0 { 0x80 } else { 0 };
            values[i] = scale * magnitudes[byte] * weights[i].signum();
        }
    }
    let files = vec![
        ("weight", Dtype::F8_E4M3, vec![rows, columns], quants),
        ("weight_scale_inv", Dtype::F32, vec![rows / side, groups], scales),
    ];
    let (_, found) = repacked(Method::Float8 { tile: Some([side as u64; 2]) }, &files).expect("it is read");
    let floats: Vec<f32> = values.iter().map(|&value| value as f32).collect();
    let quantized = relative_error(&floats, weights);
    let as_bf16 = relative_error(&found, &values);
    let mut blocks = vec![0; found.len() / 32 * 34];
    WeightFormat::Q8_0.quantize(&floats, &mut blocks);
    let mut eight_bits = vec![0.0; found.len()];
    WeightFormat::Q8_0.dequantize(&blocks, &mut eight_bits);
    let as_q8_0 = relative_error(&eight_bits, &values);
    println!("FP8: quantization {quantized:.1e}, repacking as BF16 {as_bf16:.1e}, as Q8_0 {as_q8_0:.1e}");
    assert!(as_bf16 < quantized / 10.0);
}
