//! Low-rank update of an adapter: `base + scale * (x A^T) B^T`.

use crate::abi::{Code, Request, product, values_mut};
use crate::value::{Value, dot};

/// Highest rank.
const MAX_RANK: usize = 1024;

/// Inputs `x` `[rows, inputs]`, `a` `[rank, inputs]`, `b` `[outputs, rank]` and `base` `[rows,
/// outputs]`; output `[rows, outputs]`; parameter `scale`.
pub fn lora_apply<T: Value>(mut request: Request<'_>) -> Result<(), Code> {
    let parameters = &mut request.parameters;
    let scale = parameters.number()?;
    let [rows, inputs, rank, outputs] =
        [parameters.size()?, parameters.size()?, parameters.size()?, parameters.size()?];
    let x = request.first.take::<f32>(product(&[rows, inputs])?)?;
    let a = request.others.take::<T>(product(&[rank, inputs])?)?;
    let b = request.others.take::<T>(product(&[outputs, rank])?)?;
    let base = request.others.take::<f32>(product(&[rows, outputs])?)?;
    let y = values_mut::<f32>(request.output, base.len())?;
    if rank > MAX_RANK {
        return Err(Code::Unsupported);
    }
    if inputs == 0 || rank == 0 || outputs == 0 {
        y.copy_from_slice(base);
        return Ok(());
    }
    let mut components = [0.0; MAX_RANK];
    let components = &mut components[..rank];
    let rows = x.chunks_exact(inputs).zip(base.chunks_exact(outputs)).zip(y.chunks_exact_mut(outputs));
    for ((x, base), y) in rows {
        for (component, a) in components.iter_mut().zip(a.chunks_exact(inputs)) {
            *component = scale * dot(x, a);
        }
        for ((y, base), b) in y.iter_mut().zip(base).zip(b.chunks_exact(rank)) {
            *y = base + dot(components, b);
        }
    }
    Ok(())
}
