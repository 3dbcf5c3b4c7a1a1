//! Views of bytes as numbers.

#![allow(unsafe_code, reason = "the one cast from bytes to numbers")]

/// A type that any bits are a value of and that has no padding, so that scratch memory can be seen as a slice of it.
///
/// # Safety
/// Every pattern of bits is a value, there are no padding bytes, and the alignment is at most 64.
pub unsafe trait Element: Copy {}

macro_rules! elements {
    ($($number:ty),*) => {$(
        // SAFETY: a primitive number: any bits are a value, and there is no padding.
        unsafe impl Element for $number {}
    )*};
}

elements!(u8, i8, u16, i16, u32, i32, u64, i64, usize, isize, f32, f64);

/// The first `len` numbers of `bytes`.
///
/// # Panics
/// If `bytes` is shorter or not aligned.
pub(super) fn numbers<T: Element>(bytes: &mut [u8], len: usize) -> &mut [T] {
    // SAFETY: any bytes are values of `T` and any values of `T` are bytes, which is the contract of `Element`.
    let (before, numbers, _) = unsafe { bytes.align_to_mut::<T>() };
    assert!(before.is_empty(), "scratch that is not aligned");
    &mut numbers[..len]
}
