//! Rows of the matrices and biases of experts in tensors of gate and up together: from those of
//! gpt-oss and Llama 4 to those of GGUF.
//!
//! Source: `GptOssExperts` and the MXFP4 integration of transformers; blocks as llama.cpp's
//! converter.

use gguf_rs_lite::TensorData;

use super::shards::Stored;
use super::transpose::transpose;
use crate::error::Result;
use crate::weights::weight_format;

/// Values of a quant block of MXFP4.
pub(super) const BLOCK: usize = 32;

/// Bytes of the quants of a block.
pub(super) const BLOCK_BYTES: usize = BLOCK / 2;

/// Rows of the matrices of all experts: `rows` of each, every `step`-th from `first` on.
#[derive(Debug)]
pub(super) struct ExpertRows {
    pub(super) stored: Stored,
    pub(super) form: RowForm,
    pub(super) first: usize,
    pub(super) step: usize,
    pub(super) rows: usize,
}

/// Storage of the rows of all experts.
#[derive(Debug)]
pub(super) enum RowForm {
    /// A value per row, in any float type: `[experts, rows]`.
    Bias,
    /// The matrix of each expert with rows as columns: `[experts, columns, rows]`.
    Transposed,
    /// Quants, `[experts, rows, blocks, 16]`, beside these exponents, `[experts, rows, blocks]`.
    Mxfp4(Stored),
}

impl ExpertRows {
    /// The bytes in GGUF: biases in f32, rows of floats in their type or of blocks of MXFP4, one
    /// expert behind the other. `data` has the bytes of stored tensors.
    ///
    /// # Errors
    /// Any error of `data`.
    pub(super) fn bytes(&self, data: impl Fn(&Stored) -> Result<TensorData>) -> Result<Option<Vec<u8>>> {
        let stored = data(&self.stored)?;
        let exponents = match &self.form {
            RowForm::Mxfp4(scales) => Some(data(scales)?),
            RowForm::Bias | RowForm::Transposed => None,
        };
        Ok(self.made(stored.as_bytes(), exponents.as_ref().map(TensorData::as_bytes)))
    }

    fn made(&self, bytes: &[u8], exponents: Option<&[u8]>) -> Option<Vec<u8>> {
        match &self.form {
            RowForm::Bias => {
                let format = self.stored.tensor_type.and_then(weight_format)?;
                let mut values = vec![0.0_f32; bytes.len() / format.block_bytes()];
                format.dequantize(bytes, &mut values);
                let own = values.into_iter().skip(self.first).step_by(self.step);
                Some(own.flat_map(f32::to_le_bytes).collect())
            }
            RowForm::Transposed => {
                let [rows, columns, _] = <[u64; 3]>::try_from(self.stored.dims.clone()).ok()?;
                let sizes = (rows as usize, columns as usize);
                match self.stored.tensor_type.and_then(weight_format)?.block_bytes() {
                    2 => Some(self.transposed::<2>(bytes, sizes)),
                    4 => Some(self.transposed::<4>(bytes, sizes)),
                    _ => None,
                }
            }
            RowForm::Mxfp4(_) => {
                let blocks_of_row = *self.stored.dims.get(1)? as usize;
                Some(self.repacked(bytes, exponents?, blocks_of_row))
            }
        }
    }

    /// The own rows of matrices with `rows` rows, of values of `N` bytes.
    fn transposed<const N: usize>(&self, bytes: &[u8], (rows, columns): (usize, usize)) -> Vec<u8> {
        let own_rows = self.rows;
        let experts = bytes.as_chunks::<N>().0.chunks_exact((rows * columns).max(1));
        let mut out = vec![0; experts.len() * own_rows * columns * N];
        let outs = out.as_chunks_mut::<N>().0.chunks_exact_mut((own_rows * columns).max(1));
        for (values, out) in experts.zip(outs) {
            transpose(values, rows, (self.first, self.step), out, columns);
        }
        out
    }

    /// The own rows as blocks of GGUF: an exponent, then the quants.
    fn repacked(&self, quants: &[u8], exponents: &[u8], blocks_of_row: usize) -> Vec<u8> {
        let rows = quants.chunks_exact((blocks_of_row * BLOCK_BYTES).max(1));
        let rows = rows.zip(exponents.chunks_exact(blocks_of_row.max(1)));
        let mut out = Vec::with_capacity((quants.len() + exponents.len()) / self.step);
        for (quants, exponents) in rows.skip(self.first).step_by(self.step) {
            for (&quants, &exponent) in quants.as_chunks::<BLOCK_BYTES>().0.iter().zip(exponents) {
                out.push(exponent);
                out.extend_from_slice(&block_quants(quants));
            }
        }
        out
    }
}

/// Quants of a block in the order of GGUF: byte `i` has values `i` and `i + 16`; in the folder,
/// values `2 i` and `2 i + 1`. The lower half of a byte is the first of the two.
fn block_quants(quants: [u8; BLOCK_BYTES]) -> [u8; BLOCK_BYTES] {
    let quants = u128::from_le_bytes(quants);
    let (low, high) = (quants as u64, (quants >> 64) as u64);
    (spread(low) | spread(high) << 4).to_le_bytes()
}

/// Each group of four bits in a byte of its own.
fn spread(quants: u64) -> u128 {
    let mut spread = u128::from(quants);
    spread = (spread | spread << 32) & 0x0000_0000_ffff_ffff_0000_0000_ffff_ffff;
    spread = (spread | spread << 16) & 0x0000_ffff_0000_ffff_0000_ffff_0000_ffff;
    spread = (spread | spread << 8) & 0x00ff_00ff_00ff_00ff_00ff_00ff_00ff_00ff;
    (spread | spread << 4) & 0x0f0f_0f0f_0f0f_0f0f_0f0f_0f0f_0f0f_0f0f
}

#[cfg(test)]
mod tests {
    use gguf_rs_lite::TensorType;
    use proptest::prelude::*;
    use ruvllm_kernels::quant::WeightFormat;

    use super::*;

    fn rows(form: RowForm, dims: &[u64], (first, step, rows): (usize, usize, usize)) -> ExpertRows {
        let stored = Stored {
            name: "mlp.experts".into(),
            shard: 0,
            range: 0..0,
            tensor_type: Some(TensorType::F16),
            type_name: "F16",
            dims: dims.to_vec(),
            packed: None,
        };
        ExpertRows { stored, form, first, step, rows }
    }

    /// Twice the values of quants (OCP microscaling, E2M1).
    const DOUBLED: [f32; 16] =
        [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, -0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn repacked_blocks_have_the_values_of_the_folder(
            quants in prop::collection::vec(any::<[u8; 16]>(), 12),
            exponents in prop::collection::vec(2_u8..254, 12),
            (first, step) in prop_oneof![Just((0, 1)), Just((0, 2)), Just((1, 2))],
        ) {
            // Two experts with two rows of three blocks.
            let own = rows(RowForm::Bias, &[], (first, step, 2 / step)).repacked(&quants.concat(), &exponents, 3);
            let mut found = vec![0.0; own.len() / 17 * 32];
            WeightFormat::MXFP4.dequantize(&own, &mut found);
            let rows = quants.chunks(3).zip(exponents.chunks(3)).skip(first).step_by(step);
            let blocks = rows.flat_map(|(quants, exponents)| quants.iter().zip(exponents));
            let expected: Vec<f32> = blocks
                .flat_map(|(quants, &exponent)| {
                    let scale = 2.0_f32.powi(i32::from(exponent) - 127) / 2.0;
                    quants.iter().flat_map(move |byte| {
                        [byte & 15, byte >> 4].map(|quant| scale * DOUBLED[usize::from(quant)])
                    })
                })
                .collect();
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn matrices_are_transposed(
            (experts, own_rows, columns) in (1_usize..3, 1_usize..70, 1_usize..70),
            (first, step, is_second) in
                prop_oneof![Just((0, 1, false)), Just((0, 2, false)), Just((1, 2, false)), Just((0, 1, true))],
        ) {
            // Every row or every other one, or the second half of the rows.
            let n_rows = own_rows * if is_second { 2 } else { step };
            let first = if is_second { own_rows } else { first };
            let value = |expert: usize, column: usize, row: usize| {
                (((expert * columns + column) * n_rows + row) as u16).to_le_bytes()
            };
            let mut stored = Vec::new();
            let mut expected = Vec::new();
            for expert in 0..experts {
                for column in 0..columns {
                    (0..n_rows).for_each(|row| stored.extend(value(expert, column, row)));
                }
                for row in 0..own_rows {
                    (0..columns).for_each(|column| expected.extend(value(expert, column, row * step + first)));
                }
            }
            let own = rows(RowForm::Transposed, &[], (first, step, own_rows));
            prop_assert_eq!(own.transposed::<2>(&stored, (n_rows, columns)), expected);
        }
    }
}
