//! Keys and values in blocks of 32 values with one half-precision scale, as GGUF stores them.

use crate::abi::{Code, Plain, Request, product, values_mut};
use crate::value::Half;

/// Values per block.
pub const BLOCK: usize = 32;

/// Block of 8 bits per value: `scale * quant`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Q8_0 {
    scale: Half,
    quants: [i8; BLOCK],
}

/// Block of 4 bits per value: `scale * (quant - 8)`. Byte `j` has value `j` in its low half and
/// value `j + 16` in its high half.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Q4_0 {
    scale: Half,
    quants: [u8; BLOCK / 2],
}

// SAFETY: 34 bytes without padding, all of which are numbers.
unsafe impl Plain for Q8_0 {}
// SAFETY: 18 bytes without padding, all of which are numbers.
unsafe impl Plain for Q4_0 {}

impl Q8_0 {
    /// The values.
    #[inline(always)]
    pub fn unpack(&self, values: &mut [f32; BLOCK]) {
        let scale = self.scale.to_f32();
        values.iter_mut().zip(self.quants).for_each(|(value, quant)| *value = scale * f32::from(quant));
    }

    /// Block with the largest magnitude as 127; halves round away from zero.
    #[inline(always)]
    pub fn pack(values: &[f32; BLOCK]) -> Self {
        let largest =
            values.iter().fold(0.0f32, |most, value| if value.abs() > most { value.abs() } else { most });
        let scale = largest / 127.0;
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        Self { scale: Half::of(scale), quants: values.map(|value| round(value * inverse) as i8) }
    }
}

impl Q4_0 {
    /// The values.
    #[inline(always)]
    pub fn unpack(&self, values: &mut [f32; BLOCK]) {
        let scale = self.scale.to_f32();
        let (low, high) = values.split_at_mut(BLOCK / 2);
        for ((low, high), quants) in low.iter_mut().zip(high).zip(self.quants) {
            *low = scale * (f32::from(quants & 15) - 8.0);
            *high = scale * (f32::from(quants >> 4) - 8.0);
        }
    }

    /// Block with the value of the largest magnitude, the first of equals, as -8.
    #[inline(always)]
    pub fn pack(values: &[f32; BLOCK]) -> Self {
        // Not a fold of the value alone: LLVM 19 loses the first one of it (seen on wasm32).
        let (mut extreme, mut largest) = (0.0f32, 0.0f32);
        for value in values {
            if value.abs() > largest {
                (extreme, largest) = (*value, value.abs());
            }
        }
        let scale = extreme / -8.0;
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        let all = values.map(|value| ((value * inverse + 8.5) as i8).min(15) as u8);
        let mut quants = [0; BLOCK / 2];
        for (index, quants) in quants.iter_mut().enumerate() {
            *quants = all[index] & 15 | all[index + BLOCK / 2] << 4;
        }
        Self { scale: Half::of(scale), quants }
    }
}

/// Nearest integer, halves away from zero; `core` has none.
#[inline(always)]
fn round(value: f32) -> f32 {
    let whole = value as i32 as f32;
    let rest = value - whole;
    if rest.abs() < 0.5 { whole } else { whole + 1.0f32.copysign(value) }
}

/// Input `x` `[rows, dim]`; output of that shape in blocks.
#[inline(always)]
fn pack<B: Plain>(mut request: Request<'_>, block: impl Fn(&[f32; BLOCK]) -> B) -> Result<(), Code> {
    let values = values(&mut request)?;
    let x = request.first.take::<f32>(values)?;
    let packed = values_mut::<B>(request.output, values / BLOCK)?;
    packed.iter_mut().zip(x.as_chunks().0).for_each(|(packed, values)| *packed = block(values));
    Ok(())
}

/// Input `[rows, dim]` in blocks; output `x` of that shape.
#[inline(always)]
fn unpack<B: Plain>(mut request: Request<'_>, write: impl Fn(&B, &mut [f32; BLOCK])) -> Result<(), Code> {
    let values = values(&mut request)?;
    let packed = request.first.take::<B>(values / BLOCK)?;
    let x = values_mut::<f32>(request.output, values)?;
    packed.iter().zip(x.as_chunks_mut().0).for_each(|(block, values)| write(block, values));
    Ok(())
}

/// Number of values of the request, whose rows are whole blocks.
fn values(request: &mut Request<'_>) -> Result<usize, Code> {
    let (rows, dim) = (request.parameters.size()?, request.parameters.size()?);
    if dim % BLOCK == 0 { product(&[rows, dim]) } else { Err(Code::Unsupported) }
}

/// [`pack`] to `Q8_0`.
pub fn pack_q8_0(request: Request<'_>) -> Result<(), Code> {
    pack(request, Q8_0::pack)
}

/// [`pack`] to `Q4_0`.
pub fn pack_q4_0(request: Request<'_>) -> Result<(), Code> {
    pack(request, Q4_0::pack)
}

/// [`unpack`] from `Q8_0`.
pub fn unpack_q8_0(request: Request<'_>) -> Result<(), Code> {
    unpack(request, Q8_0::unpack)
}

/// [`unpack`] from `Q4_0`.
pub fn unpack_q4_0(request: Request<'_>) -> Result<(), Code> {
    unpack(request, Q4_0::unpack)
}
