//! Typed views of the tensors of requests in the memory of an instance.

use super::fault::Fault;
use super::layout::{Binding, Slot};
use crate::manifest::DType;

mod sealed {
    pub trait Sealed {}
}

/// Type of values that a view may have.
pub trait Element: bytemuck::Pod + sealed::Sealed {
    /// True if tensors of the type can be seen as these values.
    #[doc(hidden)]
    fn views(dtype: DType) -> bool;
}

/// Implements [`Element`] for the values of some types of tensors.
macro_rules! element {
    ($($value:ty => $pattern:pat,)*) => {$(
        impl sealed::Sealed for $value {}
        impl Element for $value {
            fn views(dtype: DType) -> bool {
                matches!(dtype, $pattern)
            }
        }
    )*};
}

element! {
    f32 => DType::F32,
    // The bits of halves.
    u16 => DType::F16 | DType::Bf16,
    i32 => DType::I32,
    u32 => DType::U32,
    i8 => DType::I8,
    // The bytes of any tensor.
    u8 => _,
}

/// Tensors of the requests of a call, in the memory of the instance.
#[derive(Debug)]
pub struct Guest<'a> {
    pub(super) memory: &'a mut [u8],
    /// Offset of the first request.
    pub(super) base: u64,
    pub(super) bindings: &'a [&'a Binding],
}

impl Guest<'_> {
    /// Input of a request, to be written before the call. It may have data of earlier calls.
    ///
    /// # Errors
    /// [`Fault::Argument`] for a request or input that is not there, and for another type of
    /// values.
    pub fn input_mut<T: Element>(&mut self, request: usize, input: usize) -> Result<&mut [T], Fault> {
        let (at, slot) = self.slot(request, input, |binding| &binding.inputs)?;
        check_type::<T>(slot)?;
        let (begin, end) = range(at, slot);
        let memory = self.memory.get_mut(begin..end).ok_or_else(|| missing(request, input))?;
        bytemuck::try_cast_slice_mut(memory).map_err(|error| Fault::argument("view", error.to_string()))
    }

    /// Output of a request, after the call.
    ///
    /// # Errors
    /// As [`input_mut`](Self::input_mut).
    pub fn output<T: Element>(&self, request: usize, output: usize) -> Result<&[T], Fault> {
        let (at, slot) = self.slot(request, output, |binding| &binding.outputs)?;
        check_type::<T>(slot)?;
        let (begin, end) = range(at, slot);
        let memory = self.memory.get(begin..end).ok_or_else(|| missing(request, output))?;
        bytemuck::try_cast_slice(memory).map_err(|error| Fault::argument("view", error.to_string()))
    }

    /// Number of requests.
    pub fn requests(&self) -> usize {
        self.bindings.len()
    }

    /// Writes the parameters of all requests.
    pub(super) fn write_parameters(&mut self) -> Result<(), Fault> {
        let mut at = self.base;
        for (request, binding) in self.bindings.iter().enumerate() {
            let begin = (at + binding.parameters_offset()) as usize;
            let memory = self.memory.get_mut(begin..begin + binding.parameters.len());
            memory.ok_or_else(|| missing(request, 0))?.copy_from_slice(&binding.parameters);
            at += binding.bytes;
        }
        Ok(())
    }

    /// Checks that all outputs of floating-point types are finite.
    pub(super) fn check_finite(&self) -> Result<(), Fault> {
        for (request, binding) in self.bindings.iter().enumerate() {
            for (output, slot) in binding.outputs.iter().enumerate() {
                let fault = match slot.dtype {
                    DType::F32 => first(self.output::<f32>(request, output)?, f32::is_finite),
                    DType::F16 => first(self.output::<u16>(request, output)?, |x| x & 0x7c00 != 0x7c00),
                    DType::Bf16 => first(self.output::<u16>(request, output)?, |x| x & 0x7f80 != 0x7f80),
                    _ => None,
                };
                if let Some((index, value)) = fault {
                    return Err(Fault::NotFinite { tensor: slot.name.clone(), index, value });
                }
            }
        }
        Ok(())
    }

    /// A tensor of a request, and the offset of the request.
    fn slot(
        &self,
        request: usize,
        index: usize,
        list: impl FnOnce(&Binding) -> &Vec<Slot>,
    ) -> Result<(u64, &Slot), Fault> {
        let binding = self.bindings.get(request).ok_or_else(|| missing(request, index))?;
        let at = self.base + self.bindings[..request].iter().map(|binding| binding.bytes).sum::<u64>();
        Ok((at, list(binding).get(index).ok_or_else(|| missing(request, index))?))
    }
}

/// First value that fails a test, with its text.
fn first<T: Copy + std::fmt::Debug>(values: &[T], is_fine: impl Fn(T) -> bool) -> Option<(usize, String)> {
    let index = values.iter().position(|value| !is_fine(*value))?;
    Some((index, format!("{:?}", values[index])))
}

fn range(at: u64, slot: &Slot) -> (usize, usize) {
    ((at + slot.offset) as usize, (at + slot.offset + slot.bytes) as usize)
}

fn check_type<T: Element>(slot: &Slot) -> Result<(), Fault> {
    if T::views(slot.dtype) {
        return Ok(());
    }
    let why = format!("values of the type {} cannot be seen as these", slot.dtype.name());
    Err(Fault::argument(&slot.name, why))
}

fn missing(request: usize, index: usize) -> Fault {
    Fault::argument(format!("tensor {index} of request {request}"), "it is not part of the call")
}
