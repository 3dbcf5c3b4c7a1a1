//! Mutable slice written by several threads, each in its own ranges.
//!
//! Slice splitting covers contiguous parts only; attention and matrix products write strided parts
//! (a few columns of many rows).

use std::marker::PhantomData;
use std::ops::Range;

/// `&mut [T]` whose parts are given to threads that guarantee not to overlap.
pub(crate) struct DisjointMut<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: the wrapper is a `&mut [T]` that gives out non-overlapping parts (the contract of
// `part`), which may be used on any thread exactly if `T` is `Send`.
unsafe impl<T: Send> Send for DisjointMut<'_, T> {}
// SAFETY: as above; `&DisjointMut` gives access only to those parts.
unsafe impl<T: Send> Sync for DisjointMut<'_, T> {}

impl<'a, T> DisjointMut<'a, T> {
    /// Borrows `whole` for the lifetime of the wrapper and its parts.
    pub(crate) fn new(whole: &'a mut [T]) -> Self {
        Self { start: whole.as_mut_ptr(), len: whole.len(), borrow: PhantomData }
    }

    /// Values in `range`.
    ///
    /// # Panics
    /// If `range` is out of bounds.
    ///
    /// # Safety
    /// While the result lives, no other part that overlaps `range` may be in use.
    #[allow(clippy::mut_from_ref)] // the contract above replaces the borrow checker
    #[inline(always)]
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "a part outside of its slice");
        // SAFETY: the range lies in the slice that `borrow` keeps alive and exclusively borrowed
        // (checked above); the caller keeps overlapping parts apart.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.end - range.start) }
    }
}
