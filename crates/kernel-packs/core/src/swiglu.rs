//! SwiGLU: `gate / (1 + e^-gate) * up`.

use crate::abi::{Code, Request, values_mut};
use crate::exp::{LARGEST, exp};
use crate::lanes::Lanes;
use crate::value::{Value, map2};

/// Inputs `gate` and `up` `[n]`; output `[n]`.
pub fn swiglu<T: Value>(mut request: Request<'_>) -> Result<(), Code> {
    let n = request.parameters.size()?;
    let (gate, up) = (request.first.take::<T>(n)?, request.others.take::<T>(n)?);
    map2(gate, up, values_mut::<T>(request.output, n)?, |gate, up| silu(gate).times(up));
    Ok(())
}

/// SiLU. Below -87.3, where the true value is smaller than 1e-36, it is that of -87.3.
#[inline(always)]
fn silu(x: Lanes) -> Lanes {
    let x = x.max(Lanes::splat(-LARGEST));
    let e = exp(Lanes::splat(0.0).minus(x.min(Lanes::splat(LARGEST))));
    x.over(Lanes::splat(1.0).plus(e))
}
