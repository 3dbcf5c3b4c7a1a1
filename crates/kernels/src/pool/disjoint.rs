//! One mutable slice written by several threads, each in its own ranges.
//!
//! Rust's slice splitting covers contiguous parts; attention and matrix products write strided ones
//! (a few columns of many rows), which is what this is for.

use std::marker::PhantomData;
use std::ops::Range;

/// A `&mut [T]` whose parts are handed out to threads that promise not to overlap.
pub(crate) struct DisjointMut<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: the wrapper is a `&mut [T]` that hands out non-overlapping parts (the contract of
// `part`), which may be used on any thread exactly when `T` may be sent to it.
unsafe impl<T: Send> Send for DisjointMut<'_, T> {}
// SAFETY: as above; `&DisjointMut` gives access to nothing but those parts.
unsafe impl<T: Send> Sync for DisjointMut<'_, T> {}

impl<'a, T> DisjointMut<'a, T> {
    /// Borrows `whole` until the wrapper and all parts are gone.
    pub(crate) fn new(whole: &'a mut [T]) -> Self {
        Self { start: whole.as_mut_ptr(), len: whole.len(), borrow: PhantomData }
    }

    /// The values in `range`.
    ///
    /// # Panics
    /// If `range` does not lie in the slice.
    ///
    /// # Safety
    /// While the result lives, no other part that overlaps `range` is in use.
    #[allow(clippy::mut_from_ref)] // the contract above replaces the borrow checker
    #[inline(always)]
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "a part outside of its slice");
        // SAFETY: the range lies in the slice that `borrow` keeps alive and exclusively borrowed
        // (checked above); the caller keeps overlapping parts apart.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.end - range.start) }
    }
}
