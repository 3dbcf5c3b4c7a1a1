//! Health check: golden vectors that a kernel must compute before it serves.
//!
//! Expected values come from a reference in `f64` ([`reference`]), not from the native kernels:
//! these may have a fault of their own, and other roundings on other CPUs.

mod cases;
mod gradients;
mod number;
mod reference;
mod unhealthy;

pub use unhealthy::{Repeat, Unhealthy};

use self::cases::Case;
use crate::error::{Error, Result};
use crate::sandbox::{Binding, Direction, Fault, Job, Kernel, ReturnCode};
use crate::signature::Callable;

/// Tenant of the calls. Its instances are closed after the check.
const TENANT: u64 = u64::MAX;
/// Requests of a batch.
const BATCH: usize = 3;

/// Outcome of a health check that a kernel passed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Checked {
    /// Golden vectors that the kernel computed.
    pub computed: usize,
    /// Golden vectors of the gradient that it computed; 0 without a gradient.
    pub gradients: usize,
    /// Sizes and parameters of those that it refused, which it may: odd and large shapes.
    pub refused: Vec<String>,
}

/// A case that the kernel computed, with the bits of its output.
struct Computed {
    case: Case,
    binding: Binding,
    output: Vec<u8>,
}

/// Calls a kernel with the golden vectors of its category, leaving out NaN in outputs where the
/// sandbox refuses it.
///
/// Every vector is computed three times (twice in one instance, once in a new one), and all in
/// batches of three.
///
/// # Errors
/// [`Error::Unhealthy`] with the first fault; [`Error::Kernel`] if no instance can be made.
pub(super) fn check(kernel: &Kernel, callable: Callable, allows_nan: bool) -> Result<Checked> {
    let handle = kernel.for_tenant(TENANT);
    let checked = check_cases(&handle, callable, allows_nan);
    // Instances with the data of the check; those of requests begin unused.
    kernel.close_idle();
    checked
}

fn check_cases(kernel: &Kernel, callable: Callable, allows_nan: bool) -> Result<Checked> {
    let mut checked = Checked::default();
    let cases = cases::cases(callable).into_iter().filter(|case| allows_nan || !case.has_nan);
    checked.computed = check_direction(kernel, cases, &mut checked.refused)?;
    if kernel.has_backward() {
        let gradients = gradients::gradients(callable).into_iter();
        checked.gradients = check_direction(kernel, gradients, &mut checked.refused)?;
    }
    Ok(checked)
}

/// Checks cases of one direction; the number of those that the kernel computed.
fn check_direction(
    kernel: &Kernel,
    cases: impl Iterator<Item = Case>,
    refusals: &mut Vec<String>,
) -> Result<usize> {
    let mut done: Vec<Computed> = Vec::new();
    for case in cases {
        match compute(kernel, case)? {
            Ok(computed) => done.push(computed),
            Err(refused) => refusals.push(refused),
        }
    }
    for at in 0..done.len() {
        let batch: [&Computed; BATCH] = std::array::from_fn(|index| &done[(at + index) % done.len()]);
        check_batch(kernel, batch)?;
    }
    Ok(done.len())
}

/// Computes a case and its repetitions; `Err` with its text if the kernel refused the shape.
fn compute(kernel: &Kernel, case: Case) -> Result<Result<Computed, String>> {
    let sizes: Vec<(&str, u64)> = case.sizes.clone();
    let binding = match kernel.bind_direction(case.direction, &sizes, &case.parameters) {
        Err(error) => return refused(kernel, case, error).map(Err),
        Ok(binding) => binding,
    };
    let output = match call(kernel, &[(&case, &binding)]) {
        Err(error) => return refused(kernel, case, error).map(Err),
        Ok(mut outputs) => outputs.swap_remove(0),
    };
    check_values(&case, &output).map_err(|why| unhealthy(kernel, why))?;
    for repeat in [Repeat::SameInstance, Repeat::NewInstance] {
        if repeat == Repeat::NewInstance {
            kernel.close_idle();
        }
        let again = call(kernel, &[(&case, &binding)]).map_err(|error| failed(kernel, &case, error))?;
        check_bits(&case, repeat, &output, &again[0]).map_err(|why| unhealthy(kernel, why))?;
    }
    Ok(Ok(Computed { case, binding, output }))
}

/// Text of a case that the kernel may refuse, and refuses.
///
/// # Errors
/// The failure of any other.
fn refused(kernel: &Kernel, case: Case, error: Error) -> Result<String> {
    let may_refuse = match error.fault() {
        Some(Fault::Code { code: ReturnCode::Unsupported, .. } | Fault::Room { .. }) => !case.is_required,
        // One function is the gradient of all kernels of a module.
        Some(Fault::Code { code: ReturnCode::NotImplemented, .. }) => case.direction == Direction::Backward,
        _ => false,
    };
    if may_refuse { Ok(case.to_string()) } else { Err(failed(kernel, &case, error)) }
}

fn check_batch(kernel: &Kernel, batch: [&Computed; BATCH]) -> Result<()> {
    let requests = batch.map(|computed| (&computed.case, &computed.binding));
    let outputs = match call(kernel, &requests) {
        // Three large requests may need more memory than each alone.
        Err(error) if matches!(error.fault(), Some(Fault::Room { .. })) => return Ok(()),
        outputs => outputs.map_err(|error| failed(kernel, &batch[0].case, error))?,
    };
    for (computed, output) in batch.iter().zip(&outputs) {
        check_bits(&computed.case, Repeat::Batch, &computed.output, output)
            .map_err(|why| unhealthy(kernel, why))?;
    }
    Ok(())
}

/// Outputs of requests in one call.
fn call(kernel: &Kernel, requests: &[(&Case, &Binding)]) -> Result<Vec<Vec<u8>>> {
    let bytes = |binding: &Binding| binding.output_bytes().sum();
    let mut outputs: Vec<Vec<u8>> = requests.iter().map(|(_, binding)| vec![0; bytes(binding)]).collect();
    let inputs: Vec<Vec<&[u8]>> =
        requests.iter().map(|(case, _)| case.inputs.iter().map(Vec::as_slice).collect()).collect();
    let mut slices: Vec<Vec<&mut [u8]>> =
        outputs.iter_mut().zip(requests).map(|(output, (_, binding))| split(output, binding)).collect();
    let jobs = requests.iter().zip(&inputs).zip(&mut slices);
    let mut jobs: Vec<Job<'_, '_>> =
        jobs.map(|(((_, binding), inputs), outputs)| Job { binding, inputs, outputs }).collect();
    kernel.call(&mut jobs)?;
    drop(jobs);
    Ok(outputs)
}

/// Parts of an output's bytes, one per tensor.
fn split<'o>(mut output: &'o mut [u8], binding: &Binding) -> Vec<&'o mut [u8]> {
    let part = |bytes: usize| output.split_off_mut(..bytes).unwrap_or_default();
    binding.output_bytes().map(part).collect()
}

fn check_values(case: &Case, output: &[u8]) -> Result<(), Unhealthy> {
    let found = case.decode(output);
    let wrong = found.iter().zip(&case.expected).position(|(found, expected)| !expected.accepts(*found));
    let Some(index) = wrong else { return Ok(()) };
    let expected = case.expected[index];
    let (case, in_output) = case.place(index);
    Err(Unhealthy::Value {
        case,
        index: in_output,
        found: format!("{:e}", found[index]),
        expected: format!("{:e}", expected.value),
        bound: format!("{:.1e}", expected.bound),
    })
}

fn check_bits(case: &Case, repeat: Repeat, first: &[u8], again: &[u8]) -> Result<(), Unhealthy> {
    match first.iter().zip(again).position(|(first, again)| first != again) {
        None => Ok(()),
        Some(byte) => Err(Unhealthy::NotRepeatable { case: case.to_string(), repeat, byte }),
    }
}

fn unhealthy(kernel: &Kernel, why: Unhealthy) -> Error {
    Error::Unhealthy { kernel: kernel.manifest().id.clone(), why: Box::new(why) }
}

/// Adds the case to the failure of a call.
fn failed(kernel: &Kernel, case: &Case, error: Error) -> Error {
    match error {
        // The host's, whatever the kernel does.
        Error::Kernel { fault, .. } if !matches!(*fault, Fault::NoInstance { .. }) => {
            unhealthy(kernel, Unhealthy::Call { case: case.to_string(), fault })
        }
        other => other,
    }
}

#[cfg(test)]
mod gradient_tests;
#[cfg(test)]
mod tests;
