//! Conversion of a tensor's values between the two formats. One tensor is in memory at a time.

use ruvllm_kernels::quant::WeightFormat;

use super::heads::HeadOrder;
use super::origin::Change;

/// The values of a vector, changed, as little-endian f32.
pub(super) fn vector(bytes: &[u8], format: WeightFormat, change: Change) -> Vec<u8> {
    let mut values = vec![0.0_f32; bytes.len() / format.block_bytes() * format.block_len()];
    format.dequantize(bytes, &mut values);
    match change {
        Change::PlusOne => values.iter_mut().for_each(|value| *value += 1.0),
        Change::Decay(_) => values.iter_mut().for_each(|value| *value = -value.exp()),
        _ => {}
    }
    let changed = f32_bytes(&values);
    match change {
        Change::Interleave(heads) => interleave(&changed, size_of::<f32>(), heads),
        Change::HeadRows(order) | Change::Decay(order) => order.of_rows(&changed, size_of::<f32>()),
        _ => changed,
    }
}

/// The weights of a convolution, `rows` rows with the heads in order, as little-endian f32.
pub(super) fn taps(bytes: &[u8], format: WeightFormat, order: HeadOrder, rows: usize) -> Vec<u8> {
    let widened = vector(bytes, format, Change::None);
    order.of_rows(&widened, widened.len() / rows.max(1))
}

/// Values times a factor, in the same format.
pub(super) fn scaled(bytes: &[u8], format: WeightFormat, factor: f32) -> Vec<u8> {
    let mut values = vec![0.0_f32; bytes.len() / format.block_bytes() * format.block_len()];
    format.dequantize(bytes, &mut values);
    values.iter_mut().for_each(|value| *value *= factor);
    let mut out = vec![0; bytes.len()];
    format.quantize(&values, &mut out);
    out
}

/// Numbers as they stand in a file.
pub(super) fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// The rows of `bytes` in an order in which, of each of `heads` heads, rows `i` and `i + half` are
/// neighbours.
///
/// Source: the rotary embedding turns the pairs (i, i + half) in the models' own code and (2i, 2i +
/// 1) in GGUF files of the `llama` architecture.
pub(super) fn interleave(bytes: &[u8], row_bytes: usize, heads: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let head_bytes = bytes.len() / heads.max(1);
    let head_rows = head_bytes / row_bytes.max(1);
    for head in bytes.chunks(head_bytes.max(1)) {
        let row = |i: usize| &head[i * row_bytes..(i + 1) * row_bytes];
        for i in 0..head_rows / 2 {
            out.extend_from_slice(row(i));
            out.extend_from_slice(row(i + head_rows / 2));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_halves_of_each_head_interleave() {
        let rows: Vec<u8> = (0..16).collect();
        assert_eq!(
            interleave(&rows, 2, 2),
            [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15],
            "rows of two bytes, two heads of four rows"
        );
        assert_eq!(interleave(&[1, 2, 3, 4], 1, 1), [1, 3, 2, 4]);
        assert!(interleave(&[], 4, 2).is_empty());
    }

    #[test]
    fn vectors_become_f32() {
        let halves = [1.5_f32, -2.0].map(|x| x.to_bits().to_be_bytes()).map(|b| [b[1], b[0]]);
        let changed = vector(&halves.concat(), WeightFormat::BF16, Change::PlusOne);
        assert_eq!(changed, f32_bytes(&[2.5, -1.0]));
    }
}
