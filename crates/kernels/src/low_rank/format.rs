//! Number formats of low-rank factors, and one factor in its format.

use std::borrow::Cow;

use half::f16;
use half::slice::HalfFloatSliceExt;

/// Factors, and the scales behind the values of an [`FactorFormat::I8`] factor, start at multiples
/// of this many bytes.
pub const FACTOR_ALIGN: usize = 64;

/// Number format of the factors of an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FactorFormat {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// 8-bit integers with one f32 scale per row: values, padding to 64 bytes, scales.
    I8,
}

impl FactorFormat {
    /// All formats.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::I8];

    /// Name in files and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::I8 => "i8",
        }
    }

    /// The format of this [`name`](Self::name).
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }

    /// Bytes of one value.
    fn value_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
            Self::I8 => 1,
        }
    }

    /// Bytes of a factor `[rank, width]`; `usize::MAX` if that is more than an address.
    pub fn bytes(self, rank: usize, width: usize) -> usize {
        let values = rank.saturating_mul(width).saturating_mul(self.value_bytes());
        match self {
            Self::F32 | Self::F16 => values,
            Self::I8 => aligned(values).saturating_add(rank.saturating_mul(size_of::<f32>())),
        }
    }

    /// Writes the factor of `values`, `[rank, width]`, to `out`.
    ///
    /// F16 rounds to nearest, ties to even; magnitudes from 65520 become infinity. I8 rounds the
    /// quotient by `max|row| / 127`, ties to even, so that the error is at most half of that
    /// scale (and its rounding); a row with a value that is not finite has the scale NaN.
    ///
    /// # Panics
    /// If `out` has another length than [`bytes`](Self::bytes), or is not aligned to its values.
    pub fn quantize(self, width: usize, values: &[f32], out: &mut [u8]) {
        let rank = values.len() / width.max(1);
        assert!(
            values.len() == rank * width && out.len() == self.bytes(rank, width),
            "quantize: {} values in rows of {width} to {} bytes of {}",
            values.len(),
            out.len(),
            self.name()
        );
        match self {
            Self::F32 => bytemuck::cast_slice_mut(out).copy_from_slice(values),
            Self::F16 => bytemuck::cast_slice_mut::<u8, f16>(out).convert_from_f32_slice(values),
            Self::I8 => {
                let (codes, scales) = out.split_at_mut(aligned(values.len()));
                codes[values.len()..].fill(0);
                let rows = values.chunks_exact(width.max(1)).zip(codes.chunks_exact_mut(width.max(1)));
                for ((row, codes), scale) in rows.zip(bytemuck::cast_slice_mut::<u8, f32>(scales)) {
                    *scale = quantize_row(row, bytemuck::cast_slice_mut(codes));
                }
            }
        }
    }
}

/// Next multiple of [`FACTOR_ALIGN`]; `usize::MAX` beyond the last one.
pub(super) fn aligned(bytes: usize) -> usize {
    bytes.checked_next_multiple_of(FACTOR_ALIGN).unwrap_or(usize::MAX)
}

/// Writes the codes of a row and returns its scale.
fn quantize_row(row: &[f32], codes: &mut [i8]) -> f32 {
    let finite = row.iter().all(|x| x.is_finite());
    let scale = row.iter().fold(0f32, |max, x| max.max(x.abs())) / 127.0;
    for (code, x) in codes.iter_mut().zip(row) {
        // A cast saturates, and makes the NaN of `0 / 0` a 0.
        *code = (x / scale).round_ties_even().clamp(-127.0, 127.0) as i8;
    }
    if finite { scale } else { f32::NAN }
}

/// Factor of a low-rank update, `[rank, width]`, row-major, read in place.
#[derive(Debug, Clone, Copy)]
pub struct Factor<'a> {
    format: FactorFormat,
    rank: usize,
    width: usize,
    bytes: &'a [u8],
}

/// Values of a factor by format.
#[derive(Clone, Copy)]
pub(super) enum Values<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    /// Codes, and a scale per row.
    I8(&'a [i8], &'a [f32]),
}

impl<'a> Factor<'a> {
    /// Creates a view of a factor in `bytes`.
    ///
    /// # Panics
    /// If the length is not [`FactorFormat::bytes`], or the bytes are not aligned to values and
    /// scales.
    pub fn new(format: FactorFormat, rank: usize, width: usize, bytes: &'a [u8]) -> Self {
        let aligned = bytes.as_ptr().addr().is_multiple_of(align_of::<f32>());
        assert!(
            bytes.len() == format.bytes(rank, width) && aligned,
            "Factor: [{rank}, {width}] in {} from {} bytes at {:p}",
            format.name(),
            bytes.len(),
            bytes.as_ptr()
        );
        Self { format, rank, width, bytes }
    }

    /// Number format.
    pub fn format(&self) -> FactorFormat {
        self.format
    }

    /// Number of rows: components of the rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Values per row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// All values in f32, `[rank, width]`: `code * scale` in I8, exact in the others.
    pub fn values(&self) -> Cow<'a, [f32]> {
        match self.typed() {
            Values::F32(values) => Cow::Borrowed(values),
            Values::F16(values) => Cow::Owned(values.to_f32_vec()),
            Values::I8(codes, scales) => {
                let rows = codes.chunks_exact(self.width.max(1)).zip(scales);
                let row =
                    |(row, scale): (&'a [i8], &'a f32)| row.iter().map(move |&code| f32::from(code) * scale);
                Cow::Owned(rows.flat_map(row).collect())
            }
        }
    }

    /// True if all values are numbers.
    pub fn is_finite(&self) -> bool {
        match self.typed() {
            Values::F32(values) => values.iter().all(|x| x.is_finite()),
            Values::F16(values) => values.iter().all(|x| x.is_finite()),
            Values::I8(_, scales) => scales.iter().all(|x| x.is_finite()),
        }
    }

    #[inline(always)]
    pub(super) fn typed(&self) -> Values<'a> {
        match self.format {
            FactorFormat::F32 => Values::F32(bytemuck::cast_slice(self.bytes)),
            FactorFormat::F16 => Values::F16(bytemuck::cast_slice(self.bytes)),
            FactorFormat::I8 => {
                let n_values = self.rank * self.width;
                let (codes, scales) = self.bytes.split_at(aligned(n_values));
                Values::I8(bytemuck::cast_slice(&codes[..n_values]), bytemuck::cast_slice(scales))
            }
        }
    }
}
