//! One reserved address range, and spans that own its parts: the crate's `unsafe` code.
//!
//! A [`Span`] owns the bytes of its range. Initially one span covers the region; spans can be split
//! and joined, but not copied, so that two spans never overlap. All other code of the crate is
//! safe: an allocator that returns a page twice does not compile.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};

/// Smallest page size with huge pages. Below it one huge page would back several pages, which could
/// then not be returned one by one.
#[cfg(target_os = "linux")]
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A reserved address range; zeroed memory is mapped when it is first written.
pub(crate) struct Region {
    map: MmapRaw,
    /// Bytes from the start of the mapping to the first aligned byte.
    skip: usize,
    /// Alignment of the first byte, and granularity of returned memory.
    align: usize,
    /// Unique id; spans carry it.
    id: u64,
}

/// Exclusive ownership of a range of bytes of one region. `start` counts from the region's first
/// byte.
#[derive(Debug)]
pub(crate) struct Span {
    region: u64,
    start: usize,
    len: usize,
}

impl Region {
    /// Reserves `len` bytes aligned to `align`, a power of two; the span covers all of them.
    pub(crate) fn reserve(len: usize, align: usize) -> io::Result<(Self, Span)> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let padded = len.checked_add(align).ok_or(io::ErrorKind::OutOfMemory)?;
        let map = MmapRaw::from(MmapOptions::new().len(padded).no_reserve_swap().map_anon()?);
        let skip = map.as_mut_ptr().addr().wrapping_neg() & (align - 1);
        #[cfg(target_os = "linux")]
        if align >= HUGE_PAGE_BYTES {
            // Best effort: works without huge pages too.
            let _ = map.advise_range(memmap2::Advice::HugePage, skip, len);
        }
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Ok((Self { map, skip, align, id }, Span { region: id, start: 0, len }))
    }

    /// Bytes of a span.
    ///
    /// # Panics
    /// If the span belongs to another region.
    #[inline]
    pub(crate) fn bytes<'a>(&'a self, span: &'a Span) -> &'a [u8] {
        // SAFETY: the pointer is that of `span.len` mapped bytes (`pointer`), initialized because
        // fresh memory is zeroed. Spans do not overlap, and the borrow of this one keeps
        // `bytes_mut` away.
        unsafe { std::slice::from_raw_parts(self.pointer(span), span.len) }
    }

    /// Mutable bytes of a span.
    ///
    /// # Panics
    /// If the span belongs to another region.
    #[inline]
    pub(crate) fn bytes_mut<'a>(&'a self, span: &'a mut Span) -> &'a mut [u8] {
        // SAFETY: as in `bytes`; the exclusive borrow of the only span of these bytes makes the
        // slice the only access.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(span), span.len) }
    }

    /// Zeroes `len` bytes of a span from `offset` on, by returning their memory to the system.
    ///
    /// On systems without a guarantee of zeros (all but Linux), zeros are written and the memory
    /// stays.
    ///
    /// # Panics
    /// If the span belongs to another region, or the range is outside of it or not aligned.
    pub(crate) fn discard(&self, span: &mut Span, offset: usize, len: usize) {
        assert!(offset <= span.len && len <= span.len - offset, "a range outside of its span");
        let is_whole = (span.start + offset).is_multiple_of(self.align) && len.is_multiple_of(self.align);
        assert!(is_whole, "a part of a page cannot be discarded");
        if !self.return_to_system(span, offset, len) {
            self.bytes_mut(span)[offset..offset + len].fill(0);
        }
    }

    #[cfg(target_os = "linux")]
    fn return_to_system(&self, span: &mut Span, offset: usize, len: usize) -> bool {
        let start = self.pointer(span).addr() - self.map.as_mut_ptr().addr() + offset;
        let advice = memmap2::UncheckedAdvice::DontNeed;
        // SAFETY: the advice makes the bytes zero. They are inside of `span`, which is borrowed
        // exclusively, and are whole units of at least the system's pages (`discard` checks both),
        // so that nothing beside them changes.
        unsafe { self.map.unchecked_advise_range(advice, start, len) }.is_ok()
    }

    #[cfg(not(target_os = "linux"))]
    fn return_to_system(&self, _: &mut Span, _: usize, _: usize) -> bool {
        false
    }

    #[inline]
    fn pointer(&self, span: &Span) -> *mut u8 {
        assert_eq!(span.region, self.id, "a span of another region");
        // SAFETY: a span of this region lies in the `len` bytes that `reserve` gave to the first
        // one, and those lie in the mapping, which lives as long as `self`.
        unsafe { self.map.as_mut_ptr().add(self.skip + span.start) }
    }
}

impl Span {
    /// Offset of the first byte in the region.
    #[inline]
    pub(crate) fn start(&self) -> usize {
        self.start
    }

    /// Length in bytes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Offset of the end (exclusive).
    #[inline]
    pub(crate) fn end(&self) -> usize {
        self.start + self.len
    }

    /// Splits the span: keeps the first `at` bytes and returns the rest.
    ///
    /// # Panics
    /// If the span is shorter than `at`.
    #[inline]
    pub(crate) fn split_off(&mut self, at: usize) -> Self {
        let rest = self.len.checked_sub(at).expect("a cut inside the span");
        self.len = at;
        Self { region: self.region, start: self.start + at, len: rest }
    }

    /// Appends the adjacent span `next`.
    ///
    /// # Panics
    /// If `next` does not start where this one ends.
    #[inline]
    pub(crate) fn append(&mut self, next: Self) {
        assert!(next.region == self.region && next.start == self.end(), "only neighbours can be joined");
        self.len += next.len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_memory_is_aligned_and_zero() {
        for align in [512 << 10, 2 << 20] {
            let (region, mut span) = Region::reserve(8 << 20, align).unwrap();
            assert!(region.bytes(&span).as_ptr().addr().is_multiple_of(align));
            assert!(region.bytes(&span).iter().all(|&byte| byte == 0));
            region.bytes_mut(&mut span).fill(7);
            assert!(region.bytes(&span).iter().all(|&byte| byte == 7));
        }
    }

    #[test]
    fn a_discarded_range_is_zero_and_its_surroundings_stay() {
        let page = 1 << 20;
        let (region, mut span) = Region::reserve(4 * page, page).unwrap();
        region.bytes_mut(&mut span).fill(7);
        region.discard(&mut span, page, 2 * page);
        let sums: Vec<u64> = region
            .bytes(&span)
            .chunks(page)
            .map(|page| page.iter().map(|&byte| u64::from(byte)).sum())
            .collect();
        assert_eq!(sums, [7 * page as u64, 0, 0, 7 * page as u64]);
    }

    #[test]
    fn parts_are_separate_and_join_again() {
        let (region, mut low) = Region::reserve(1 << 20, 1 << 20).unwrap();
        let mut high = low.split_off(1000);
        region.bytes_mut(&mut low).fill(1);
        region.bytes_mut(&mut high).fill(2);
        low.append(high);
        assert_eq!((low.start(), low.len()), (0, 1 << 20));
        let bytes = region.bytes(&low);
        assert!(bytes[..1000].iter().all(|&byte| byte == 1) && bytes[1000..].iter().all(|&byte| byte == 2));
    }

    #[test]
    #[should_panic(expected = "a span of another region")]
    fn a_span_of_another_region_is_refused() {
        let (_, span) = Region::reserve(1 << 20, 1 << 20).unwrap();
        let (other, _) = Region::reserve(1 << 20, 1 << 20).unwrap();
        other.bytes(&span);
    }

    #[test]
    #[should_panic(expected = "only neighbours can be joined")]
    fn spans_that_do_not_touch_are_not_joined() {
        let (_, mut low) = Region::reserve(1 << 20, 1 << 20).unwrap();
        let mut middle = low.split_off(1000);
        let high = middle.split_off(1000);
        low.append(high);
    }

    #[test]
    fn a_region_that_no_system_has_room_for_is_an_error() {
        assert!(Region::reserve(usize::MAX - 5, 1 << 20).is_err());
        assert!(Region::reserve(1 << 62, 1 << 20).is_err());
    }
}
