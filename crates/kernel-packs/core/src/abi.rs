//! Requests of the host as slices: the only unchecked access to the memory, after checks of every
//! offset and size.

use core::arch::wasm32::memory_size;
use core::slice;

/// Bytes of a page of the memory.
const PAGE: usize = 64 << 10;
/// Alignment of areas and tensors in bytes.
const ALIGN: usize = 16;

/// Return codes.
#[derive(Clone, Copy)]
#[repr(u32)]
pub enum Code {
    /// All requests are computed.
    Done = 0,
    /// Sizes that contradict each other.
    Argument = 1,
    /// Sizes that the kernel does not take.
    Unsupported = 3,
    /// More values than the memory can have.
    Overflow = 4,
}

/// Offset and size of an area.
#[repr(C)]
#[derive(Clone, Copy)]
struct Area {
    offset: u32,
    bytes: u32,
}

/// Descriptor of a request.
#[repr(C)]
#[derive(Clone, Copy)]
struct Descriptor {
    input_a: Area,
    input_b: Area,
    output: Area,
    scratch: Area,
    parameters: Area,
}

/// One request.
pub struct Request<'m> {
    /// First input.
    pub first: Tensors<'m>,
    /// Other inputs.
    pub others: Tensors<'m>,
    /// Outputs.
    pub output: &'m mut [u8],
    /// Parameters, then sizes of symbols.
    pub parameters: Parameters<'m>,
}

/// Tensors of an area, one behind the other.
pub struct Tensors<'m>(&'m [u8]);

/// Parameters and sizes, 8 bytes each.
pub struct Parameters<'m>(&'m [u8]);

/// Values that any bytes are.
///
/// # Safety
/// No padding, no invalid bytes, an alignment of 16 at most.
pub unsafe trait Plain: Copy + 'static {}

// SAFETY: Integers and floating-point numbers.
unsafe impl Plain for u8 {}
// SAFETY: As above.
unsafe impl Plain for u16 {}
// SAFETY: As above.
unsafe impl Plain for f32 {}

/// Computes the requests of a call, up to the first that fails.
pub fn each(descriptors: u32, count: u32, compute: fn(Request<'_>) -> Result<(), Code>) -> Code {
    let (mut at, bytes) = (descriptors, size_of::<Descriptor>() as u32);
    for _ in 0..count {
        let result = Descriptor::read(at).and_then(|descriptor| descriptor.request()).and_then(compute);
        if let Err(code) = result {
            return code;
        }
        at = at.wrapping_add(bytes);
    }
    Code::Done
}

impl Area {
    /// End of the area, if it is in the memory.
    fn end(self) -> Result<u32, Code> {
        let end = self.offset.checked_add(self.bytes).ok_or(Code::Overflow)?;
        // The size of a full memory of 4 GiB does not fit; its last page is never used.
        if end as usize > (memory_size::<0>() - 1) * PAGE + (PAGE - 1) {
            Err(Code::Argument)
        } else {
            Ok(end)
        }
    }

    /// Checks that the area is in the memory, aligned, and begins at `least` or behind it; the end.
    fn check(self, least: u32) -> Result<u32, Code> {
        if self.bytes == 0 {
            return Ok(least);
        }
        let is_placed = self.offset >= least.max(1) && self.offset as usize % ALIGN == 0;
        if is_placed { self.end() } else { Err(Code::Argument) }
    }

    /// Bytes of an area that was checked.
    ///
    /// # Safety
    /// [`check`](Self::check) has accepted the area, and nothing writes to it during `'m`.
    unsafe fn bytes<'m>(self) -> &'m [u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: In the memory, not at offset 0, not written to.
        unsafe { slice::from_raw_parts(self.offset as *const u8, self.bytes as usize) }
    }

    /// Bytes of an area that was checked, to be written.
    ///
    /// # Safety
    /// [`check`](Self::check) has accepted the area, and nothing else refers to it during `'m`.
    unsafe fn bytes_mut<'m>(self) -> &'m mut [u8] {
        if self.bytes == 0 {
            return &mut [];
        }
        // SAFETY: In the memory, not at offset 0, and of this reference alone.
        unsafe { slice::from_raw_parts_mut(self.offset as *mut u8, self.bytes as usize) }
    }
}

impl Descriptor {
    fn read(at: u32) -> Result<Self, Code> {
        let area = Area { offset: at, bytes: size_of::<Self>() as u32 };
        if at == 0 || at as usize % align_of::<Self>() != 0 {
            return Err(Code::Argument);
        }
        area.end()?;
        // SAFETY: Aligned, in the memory, and any bytes are a descriptor.
        Ok(unsafe { *(at as *const Self) })
    }

    fn request<'m>(self) -> Result<Request<'m>, Code> {
        let Self { input_a, input_b, output, scratch, parameters } = self;
        // In this order, as the host places them: no area overlaps another.
        let mut end = 0;
        for area in [input_a, input_b, output, scratch, parameters] {
            end = area.check(end)?;
        }
        // SAFETY: Checked, and disjoint; requests are done one after the other.
        unsafe {
            Ok(Request {
                first: Tensors(input_a.bytes()),
                others: Tensors(input_b.bytes()),
                output: output.bytes_mut(),
                parameters: Parameters(parameters.bytes()),
            })
        }
    }
}

impl<'m> Tensors<'m> {
    /// Next tensor of so many values.
    pub fn take<T: Plain>(&mut self, values: usize) -> Result<&'m [T], Code> {
        let bytes = values.checked_mul(size_of::<T>()).ok_or(Code::Overflow)?;
        let (tensor, rest) = self.0.split_at_checked(bytes).ok_or(Code::Argument)?;
        let padding = (bytes.wrapping_neg() % ALIGN).min(rest.len());
        self.0 = &rest[padding..];
        // SAFETY: Any bytes are values of a plain type.
        let (before, tensor, after) = unsafe { tensor.align_to() };
        if before.is_empty() && after.is_empty() { Ok(tensor) } else { Err(Code::Argument) }
    }
}

/// The only output, of so many values.
pub fn values_mut<T: Plain>(output: &mut [u8], values: usize) -> Result<&mut [T], Code> {
    // SAFETY: Any bytes are values of a plain type.
    let (before, tensor, after) = unsafe { output.align_to_mut() };
    if before.is_empty() && after.is_empty() && tensor.len() == values {
        Ok(tensor)
    } else {
        Err(Code::Argument)
    }
}

impl Parameters<'_> {
    /// Bytes of the next parameter or size.
    fn next(&mut self) -> Result<[u8; 8], Code> {
        let (next, rest) = self.0.split_first_chunk().ok_or(Code::Argument)?;
        self.0 = rest;
        Ok(*next)
    }

    /// Next parameter, a number.
    pub fn number(&mut self) -> Result<f32, Code> {
        let [a, b, c, d, ..] = self.next()?;
        Ok(f32::from_le_bytes([a, b, c, d]))
    }

    /// Next parameter, a truth value.
    pub fn truth(&mut self) -> Result<bool, Code> {
        Ok(self.next()?[0] != 0)
    }

    /// Next size of a symbol.
    pub fn size(&mut self) -> Result<usize, Code> {
        usize::try_from(u64::from_le_bytes(self.next()?)).map_err(|_| Code::Overflow)
    }
}

/// Number of values of a tensor.
pub fn product(sizes: &[usize]) -> Result<usize, Code> {
    sizes.iter().try_fold(1usize, |product, &size| product.checked_mul(size)).ok_or(Code::Overflow)
}
