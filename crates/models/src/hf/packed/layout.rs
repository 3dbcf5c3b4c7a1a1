//! Storage orders of quantized matrices, read in tiles of unsigned quants.
//!
//! Source: `WQLinear_GEMM` of `AutoAWQ`, `QuantLinear` of `AutoGPTQ`, `pack_to_int32` of
//! compressed-tensors.

/// Columns of a tile: those of a quant block of GGUF.
pub(super) const BLOCK: usize = 32;

/// Rows of a tile: whole words of every layout, and whole cache lines where rows lie side by side.
pub(super) const TILE_ROWS: usize = 128;

/// Bits of a word.
const WORD_BITS: u32 = 32;

/// Rows in the order of the nibbles of a word of AWQ.
const AWQ_ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// Quants of a tile, by row and column.
pub(super) type Tile = [[u8; BLOCK]; TILE_ROWS];

/// Storage order of a matrix of `rows` outputs and `columns` inputs. Words are of 32 bits, lowest
/// bits first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// `[columns, rows / 8]` words of 8 rows each, interleaved; 4 bits.
    Awq,
    /// `[columns / n, rows]` words of n columns each.
    Gptq { bits: u32 },
    /// `[rows, columns / n]` words of n columns each, the last one of a row not full.
    Rows { bits: u32 },
    /// `[rows, columns]` signed bytes.
    Bytes,
    /// `[rows, columns]` numbers of 8 bits.
    Float8,
}

/// Quants in a word.
pub(super) fn per_word(bits: u32) -> usize {
    (WORD_BITS / bits.max(1)) as usize
}

/// Bits of quant `i` of a word.
fn quant(word: [u8; 4], bits: u32, i: usize) -> u8 {
    let mask = (1_u32 << bits) - 1;
    (u32::from_le_bytes(word) >> (bits * i as u32) & mask) as u8
}

impl Layout {
    /// Bits of a quant.
    pub(super) fn bits(self) -> u32 {
        match self {
            Self::Awq => 4,
            Self::Gptq { bits } | Self::Rows { bits } => bits,
            Self::Bytes | Self::Float8 => 8,
        }
    }

    /// Zero point of symmetric quantization, as an unsigned quant.
    pub(super) fn middle(self) -> u16 {
        1 << (self.bits() - 1)
    }

    /// Reads a tile of a matrix of `[rows, columns]`: `height` rows from `top` on, a multiple of
    /// [`TILE_ROWS`], and `width` columns from `left` on, a multiple of [`BLOCK`].
    pub(super) fn read(
        self,
        bytes: &[u8],
        [rows, columns]: [usize; 2],
        (top, height): (usize, usize),
        (left, width): (usize, usize),
        tile: &mut Tile,
    ) {
        let words = bytes.as_chunks::<4>().0;
        match self {
            Self::Awq => {
                let lines = words.chunks_exact((rows / 8).max(1)).skip(left).take(width);
                for (column, line) in lines.enumerate() {
                    for (i, &word) in line[top / 8..(top + height) / 8].iter().enumerate() {
                        for (k, row) in AWQ_ORDER.into_iter().enumerate() {
                            tile[8 * i + row][column] = quant(word, 4, k);
                        }
                    }
                }
            }
            Self::Gptq { bits } => {
                let n = per_word(bits);
                for line in 0..width / n {
                    let at = (left / n + line) * rows + top;
                    for (row, &word) in words[at..at + height].iter().enumerate() {
                        for k in 0..n {
                            tile[row][n * line + k] = quant(word, bits, k);
                        }
                    }
                }
            }
            Self::Rows { bits } => {
                let n = per_word(bits);
                for (row, quants) in tile[..height].iter_mut().enumerate() {
                    let line = &words[(top + row) * columns.div_ceil(n) + left / n..];
                    for (column, out) in quants[..width].iter_mut().enumerate() {
                        *out = quant(line[column / n], bits, column % n);
                    }
                }
            }
            Self::Bytes | Self::Float8 => {
                // Signed bytes with their sign flipped are unsigned quants around 128.
                let flip = if self == Self::Bytes { 0x80 } else { 0 };
                for (row, quants) in tile[..height].iter_mut().enumerate() {
                    let line = &bytes[(top + row) * columns + left..];
                    for (out, byte) in quants[..width].iter_mut().zip(line) {
                        *out = byte ^ flip;
                    }
                }
            }
        }
    }

    /// Zero points as unsigned quants, `[rows, groups]`, of a matrix with so many rows and groups.
    pub(super) fn zeros(self, bytes: &[u8], rows: usize, groups: usize) -> Vec<u16> {
        let words = bytes.as_chunks::<4>().0;
        let bits = self.bits();
        let n = per_word(bits);
        let mut zeros = Vec::with_capacity(rows * groups);
        for row in 0..rows {
            for group in 0..groups {
                let quant = match self {
                    Self::Awq => {
                        let place = AWQ_ORDER.iter().position(|&order| order == row % n).unwrap_or(0);
                        quant(words[group * (rows / n) + row / n], bits, place)
                    }
                    Self::Gptq { .. } => quant(words[group * (rows / n) + row / n], bits, row % n),
                    Self::Rows { .. } => quant(words[row / n * groups + group], bits, row % n),
                    Self::Bytes | Self::Float8 => bytes[row * groups + group] ^ 0x80,
                };
                zeros.push(u16::from(quant));
            }
        }
        zeros
    }
}

/// Values of numbers of 8 bits with an exponent of 4 (OCP 8-bit floating point, E4M3).
pub(super) static FLOAT8: [f32; 256] = {
    let mut values = [0.0; 256];
    let mut byte = 0;
    while byte < values.len() {
        values[byte] = float8(byte as u8);
        byte += 1;
    }
    values
};

const fn float8(byte: u8) -> f32 {
    let (exponent, mantissa) = (byte >> 3 & 15, byte & 7);
    let magnitude = match (exponent, mantissa) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa as f32 * f32::from_bits((127 - 9) << 23),
        _ => f32::from_bits((exponent as u32 + 127 - 7) << 23 | (mantissa as u32) << 20),
    };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}
