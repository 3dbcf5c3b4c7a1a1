//! Weight formats and their layout on the device.
//!
//! Quantized rows are split into planes, so that neighbouring lanes read neighbouring words:
//! - quants: per group of 32 values one word of 16 bytes (low 4 bits: value `i` in the low half of
//!   byte `i`, value `i + 16` in its high half), or for `Q8_0` two words in two planes of a row
//!   (the first halves of all groups, then the second halves);
//! - scales: `Q8_0`, `Q4_0`, `IQ4_NL` one f16 per group; `MXFP4` one exponent of 8 bits; `Q4_K`,
//!   `Q5_K` 16 bytes per 256 values ([`k_header`]); `Q6_K` two bytes per group;
//! - high bits: `Q5_K` 4 bytes ([`fifth_bits`]), `Q6_K` 8 bytes ([`high_pairs`]) per group;
//! - super-scales: `Q6_K` one f16 per 256 values.
//!
//! Sizes equal those of the ggml blocks.

/// Values per group of integer products, and per scale of quantized activations.
pub(crate) const GROUP: usize = 32;

/// Levels of `IQ4_NL`.
pub(crate) const IQ4_NL_LEVELS: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Levels of `MXFP4`, in units of half its scale.
pub(crate) const MXFP4_LEVELS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Storage format of a weight matrix, as in GGUF files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Format {
    /// IEEE half precision.
    F16,
    /// 32 signed bytes and an f16 scale.
    Q8_0,
    /// 32 values of 4 bits, offset by 8, and an f16 scale.
    Q4_0,
    /// 32 values of 4 bits (non-linear codebook) and an f16 scale.
    IQ4NL,
    /// 32 values of 4 bits (E2M1) and a power of two (E8M0).
    MXFP4,
    /// 256 values of 4 bits; scale and minimum of 6 bits per 32 values.
    Q4K,
    /// 256 values of 5 bits; scale and minimum of 6 bits per 32 values.
    Q5K,
    /// 256 values of 6 bits, offset by 32; scale of 8 bits per 16 values.
    Q6K,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 8] =
        [Self::F16, Self::Q8_0, Self::Q4_0, Self::IQ4NL, Self::MXFP4, Self::Q4K, Self::Q5K, Self::Q6K];

    /// Name in model files.
    pub fn name(self) -> &'static str {
        match self {
            Self::F16 => "F16",
            Self::Q8_0 => "Q8_0",
            Self::Q4_0 => "Q4_0",
            Self::IQ4NL => "IQ4_NL",
            Self::MXFP4 => "MXFP4",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
        }
    }

    /// Values per block in model files.
    pub fn block_len(self) -> usize {
        match self {
            Self::F16 => 1,
            Self::Q8_0 | Self::Q4_0 | Self::IQ4NL | Self::MXFP4 => 32,
            Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes per block in model files.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::Q8_0 => 34,
            Self::Q4_0 | Self::IQ4NL => 18,
            Self::MXFP4 => 17,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// Required divisor of the columns: whole blocks, for F16 whole 16-byte words.
    pub fn column_unit(self) -> usize {
        if self == Self::F16 { 8 } else { self.block_len() }
    }

    /// Divisor of the number of rows that [`Matrix::write_rows`](crate::Matrix::write_rows) writes:
    /// their scales are whole words.
    pub fn row_unit(self) -> u32 {
        if self == Self::MXFP4 { 4 } else { 2 }
    }

    /// Levels of its quants, if these are indices of levels.
    pub(crate) fn levels(self) -> Option<&'static [i8; 16]> {
        match self {
            Self::IQ4NL => Some(&IQ4_NL_LEVELS),
            Self::MXFP4 => Some(&MXFP4_LEVELS),
            _ => None,
        }
    }

    /// Values per step of the kernels.
    pub(crate) fn step_values(self) -> u32 {
        if self == Self::F16 { 8 } else { GROUP as u32 }
    }

    /// True for formats with a minimum per group.
    pub(crate) fn has_min(self) -> bool {
        matches!(self, Self::Q4K | Self::Q5K)
    }

    /// True if products read 8-bit activations ([`Quantized`](crate::Quantized)) instead of f32.
    pub fn takes_quantized(self) -> bool {
        self != Self::F16
    }

    /// Bytes per row of `cols` values in each plane.
    pub(crate) fn plane_bytes(self, cols: usize) -> Vec<usize> {
        match self {
            Self::F16 => vec![cols * 2],
            Self::Q8_0 => vec![cols, cols / 16],
            Self::Q4_0 | Self::IQ4NL | Self::Q4K => vec![cols / 2, cols / 16],
            Self::MXFP4 => vec![cols / 2, cols / 32],
            Self::Q5K => vec![cols / 2, cols / 16, cols / 8],
            Self::Q6K => vec![cols / 2, cols / 16, cols / 4, cols / 128],
        }
    }
}

/// Splits rows of blocks into planes. `rows`: whole rows of `cols` values.
pub(crate) fn repack(format: Format, cols: usize, rows: &[u8]) -> Vec<Vec<u8>> {
    let row_bytes = cols / format.block_len() * format.block_bytes();
    let n = rows.len() / row_bytes;
    let sizes = format.plane_bytes(cols);
    let mut planes: Vec<Vec<u8>> = sizes.iter().map(|bytes| Vec::with_capacity(n * bytes)).collect();
    match format {
        Format::F16 => planes[0].extend_from_slice(rows),
        Format::Q8_0 => rows.chunks_exact(row_bytes).for_each(|row| repack_q8_0(row, &mut planes)),
        _ => {
            rows.chunks_exact(format.block_bytes())
                .for_each(|block| repack_block(format, block, &mut planes));
        }
    }
    planes
}

fn repack_q8_0(row: &[u8], planes: &mut [Vec<u8>]) {
    for half in [2..18, 18..34] {
        row.chunks_exact(34).for_each(|block| planes[0].extend_from_slice(&block[half.clone()]));
    }
    row.chunks_exact(34).for_each(|block| planes[1].extend_from_slice(&block[..2]));
}

fn repack_block(format: Format, block: &[u8], planes: &mut [Vec<u8>]) {
    match format {
        Format::F16 | Format::Q8_0 => (),
        Format::Q4_0 | Format::IQ4NL => {
            planes[0].extend_from_slice(&block[2..]);
            planes[1].extend_from_slice(&block[..2]);
        }
        Format::MXFP4 => {
            planes[0].extend_from_slice(&block[1..]);
            planes[1].push(block[0]);
        }
        Format::Q4K | Format::Q5K => {
            planes[1].extend_from_slice(&k_header(block));
            for group in 0..8 {
                let values = k_quants(format, block, group);
                push_nibbles(&values, &mut planes[0]);
                if format == Format::Q5K {
                    planes[2].extend_from_slice(&fifth_bits(&values));
                }
            }
        }
        Format::Q6K => {
            planes[1].extend_from_slice(&block[192..208]);
            planes[3].extend_from_slice(&block[208..]);
            for group in 0..8 {
                let values = q6_k_quants(block, group);
                push_nibbles(&values, &mut planes[0]);
                planes[2].extend_from_slice(&high_pairs(&values));
            }
        }
    }
}

/// Low 4 bits: value `i` and value `i + 16` in byte `i`.
fn push_nibbles(values: &[u8; GROUP], plane: &mut Vec<u8>) {
    plane.extend((0..16).map(|i| values[i] & 15 | values[i + 16] << 4));
}

/// Bit 4 of each value: value `16 h + 4 w + j` in bit `4 h + w` of byte `j`.
fn fifth_bits(values: &[u8; GROUP]) -> [u8; 4] {
    let mut bytes = [0; 4];
    for (i, value) in values.iter().enumerate() {
        bytes[i % 4] |= (value >> 4 & 1) << (i / 4);
    }
    bytes
}

/// Bits 4 and 5 of each value: value `16 h + 4 w + j` in bits `2 w` and `2 w + 1` of byte `4 h +
/// j`.
fn high_pairs(values: &[u8; GROUP]) -> [u8; 8] {
    let mut bytes = [0; 8];
    for (i, value) in values.iter().enumerate() {
        bytes[i / 16 * 4 + i % 4] |= (value >> 4 & 3) << (i % 16 / 4 * 2);
    }
    bytes
}

/// `d` and `dmin`, then three words with 4 bits per group: low bits of the scales, low bits of the
/// minima, high bits (two of the scale, two of the minimum).
fn k_header(block: &[u8]) -> [u8; 16] {
    let mut words = [0_u32; 3];
    for group in 0..8 {
        let (scale, min) = k_factors(&block[4..16], group);
        for (word, bits) in words.iter_mut().zip([scale & 15, min & 15, scale >> 4 | min >> 4 << 2]) {
            *word |= u32::from(bits) << (4 * group);
        }
    }
    let mut header = [0; 16];
    header[..4].copy_from_slice(&block[..4]);
    for (bytes, word) in header[4..].chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    header
}

/// Scale and minimum (6 bits each) of a group in a `Q4_K` or `Q5_K` block.
pub(crate) fn k_factors(packed: &[u8], group: usize) -> (u8, u8) {
    if group < 4 {
        return (packed[group] & 63, packed[group + 4] & 63);
    }
    let (low, scale, min) = (packed[group + 4], packed[group - 4], packed[group]);
    (low & 15 | scale >> 6 << 4, low >> 4 | min >> 6 << 4)
}

/// Quants of a group in a `Q4_K` or `Q5_K` block: 32 bytes serve two groups.
pub(crate) fn k_quants(format: Format, block: &[u8], group: usize) -> [u8; GROUP] {
    let (high, low) =
        if format == Format::Q5K { (Some(&block[16..48]), &block[48..]) } else { (None, &block[16..]) };
    std::array::from_fn(|i| {
        let nibble = low[group / 2 * 32 + i] >> (group % 2 * 4) & 15;
        nibble | high.map_or(0, |high| (high[i] >> group & 1) << 4)
    })
}

/// Quants (0 to 63, for -32 to 31) of a group in a `Q6_K` block.
pub(crate) fn q6_k_quants(block: &[u8], group: usize) -> [u8; GROUP] {
    let (half, part) = (group / 4, group % 4);
    std::array::from_fn(|i| {
        let low = block[half * 64 + part % 2 * 32 + i] >> (part / 2 * 4) & 15;
        let high = block[128 + half * 32 + i] >> (part * 2) & 3;
        low | high << 4
    })
}
