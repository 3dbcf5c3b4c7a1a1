//! `RMSNorm` of rows: `x * (1 / sqrt(mean(x^2) + eps)) * weight`.

use core::arch::wasm32::{f32x4_extract_lane, f32x4_splat, f32x4_sqrt};

use crate::abi::{Code, Request, product, values_mut};
use crate::lanes::Lanes;
use crate::value::{Value, dot, map2};

/// Inputs `x` `[rows, dim]` and `weight` `[dim]`; output `[rows, dim]`; parameter `eps`.
pub fn rms_norm<T: Value>(mut request: Request<'_>) -> Result<(), Code> {
    let parameters = &mut request.parameters;
    let (eps, rows, dim) = (parameters.number()?, parameters.size()?, parameters.size()?);
    let values = product(&[rows, dim])?;
    let (x, weight) = (request.first.take::<T>(values)?, request.others.take::<f32>(dim)?);
    let y = values_mut::<T>(request.output, values)?;
    if dim == 0 {
        return Ok(());
    }
    for (x, y) in x.chunks_exact(dim).zip(y.chunks_exact_mut(dim)) {
        let mean = dot(x, x) / dim as f32;
        let scale = Lanes::splat(1.0 / sqrt(mean + eps));
        map2(x, weight, y, |x, weight| x.times(scale).times(weight));
    }
    Ok(())
}

/// Square root; `core` has none.
fn sqrt(x: f32) -> f32 {
    f32x4_extract_lane::<0>(f32x4_sqrt(f32x4_splat(x)))
}
