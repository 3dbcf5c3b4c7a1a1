//! A bump arena: slices are cut from the front of what is left, and all given back at once.

use crate::scratch::Element;
use crate::scratch::element::numbers;
use crate::{Error, PagePool, Pages, Request, Result};

/// What every slice starts at a multiple of: a cache line, which is also the widest vector register.
const ALIGN: usize = 64;

/// Scratch memory that is cut into slices by a [`Frame`] and is whole again when the frame ends.
///
/// ```
/// use ruvllm_memory::{Arena, Content, PagePool, PoolConfig, Request};
///
/// let pool = PagePool::new(PoolConfig::new(64 << 20))?;
/// let mut arena = Arena::new(&pool, 1 << 20, &Request::new(Content::Temporary))?;
/// for _step in 0..3 {
///     let mut frame = arena.frame();
///     let scores: &mut [f32] = frame.zeroed(1000)?;
///     {
///         let mut inner = frame.nested();
///         let row: &mut [f32] = inner.zeroed(64)?; // given back at the end of this block
///         row[0] = 1.0;
///     }
///     scores[0] = 2.0;
/// }
/// # Ok::<(), ruvllm_memory::Error>(())
/// ```
#[derive(Debug)]
pub struct Arena {
    pages: Pages,
}

/// The part of an [`Arena`] that is still free, for as long as the slices cut from it live.
#[derive(Debug)]
pub struct Frame<'a> {
    left: &'a mut [u8],
    capacity_bytes: usize,
}

impl Arena {
    /// An arena of at least `bytes` bytes, rounded up to whole pages.
    ///
    /// # Errors
    /// Those of [`PagePool::allocate`].
    pub fn new(pool: &PagePool, bytes: usize, request: &Request) -> Result<Self> {
        let n_pages = bytes.div_ceil(pool.page_bytes()).max(1);
        Ok(Self { pages: pool.allocate(n_pages, request)? })
    }

    /// The whole arena, free.
    pub fn frame(&mut self) -> Frame<'_> {
        let left = self.pages.bytes_mut();
        Frame { capacity_bytes: left.len(), left }
    }

    /// Bytes in all.
    pub fn capacity_bytes(&self) -> usize {
        self.pages.bytes().len()
    }
}

impl<'a> Frame<'a> {
    /// `len` numbers with whatever bits were left there, aligned to 64 bytes.
    ///
    /// # Errors
    /// [`Error::ScratchExhausted`].
    pub fn slice<T: Element>(&mut self, len: usize) -> Result<&'a mut [T]> {
        let wanted_bytes = len.saturating_mul(size_of::<T>());
        let (free_bytes, capacity_bytes) = (self.left.len(), self.capacity_bytes);
        // Cut in whole cache lines, so that the rest starts at one. The arena itself is whole lines.
        let cut = wanted_bytes
            .checked_next_multiple_of(ALIGN)
            .filter(|&cut| cut <= free_bytes)
            .ok_or(Error::ScratchExhausted { wanted_bytes, free_bytes, capacity_bytes })?;
        let (taken, left) = std::mem::take(&mut self.left).split_at_mut(cut);
        self.left = left;
        Ok(numbers(taken, len))
    }

    /// `len` zeros, aligned to 64 bytes.
    ///
    /// # Errors
    /// [`Error::ScratchExhausted`].
    pub fn zeroed<T: Element + Default>(&mut self, len: usize) -> Result<&'a mut [T]> {
        let slice = self.slice(len)?;
        slice.fill(T::default());
        Ok(slice)
    }

    /// A frame of what is left; what is cut from it is free again when it ends.
    pub fn nested(&mut self) -> Frame<'_> {
        Frame { left: self.left, capacity_bytes: self.capacity_bytes }
    }

    /// Bytes that are left.
    pub fn free_bytes(&self) -> usize {
        self.left.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PoolConfig;

    fn arena() -> Arena {
        let pool = PagePool::new(PoolConfig { page_bytes: 512 << 10, ..PoolConfig::new(1 << 20) }).unwrap();
        Arena::new(&pool, 1, &Request::default()).unwrap()
    }

    #[test]
    fn slices_are_aligned_and_do_not_overlap() {
        let mut arena = arena();
        let mut frame = arena.frame();
        let bytes: &mut [u8] = frame.slice(3).unwrap();
        let floats: &mut [f32] = frame.slice(17).unwrap();
        let none: &mut [u64] = frame.slice(0).unwrap();
        let words: &mut [u64] = frame.zeroed(5).unwrap();
        bytes.fill(0xff);
        floats.fill(1.5);
        assert_eq!((none.len(), words.iter().sum::<u64>()), (0, 0));
        assert!(bytes.iter().all(|&byte| byte == 0xff) && floats.iter().all(|&x| x == 1.5));
        let starts = [bytes.as_ptr().addr(), floats.as_ptr().addr(), words.as_ptr().addr()];
        assert!(starts.iter().all(|start| start.is_multiple_of(ALIGN)));
        assert_eq!(frame.free_bytes(), (512 << 10) - 64 - 128 - 64);
    }

    #[test]
    fn a_nested_frame_gives_back_what_it_took() {
        let mut arena = arena();
        let mut frame = arena.frame();
        let before = frame.free_bytes();
        {
            let mut inner = frame.nested();
            inner.slice::<u8>(before).unwrap();
            assert_eq!(inner.free_bytes(), 0);
        }
        assert_eq!(frame.free_bytes(), before);
    }

    #[test]
    fn too_much_is_an_error_and_takes_nothing() {
        let mut arena = arena();
        let capacity = arena.capacity_bytes();
        let mut frame = arena.frame();
        frame.slice::<u8>(64).unwrap();
        for len in [capacity, usize::MAX / 8, usize::MAX] {
            let Err(Error::ScratchExhausted { free_bytes, capacity_bytes, .. }) = frame.slice::<u64>(len)
            else {
                panic!("{len} numbers do not fit");
            };
            assert_eq!((free_bytes, capacity_bytes), (capacity - 64, capacity));
        }
        assert_eq!(frame.free_bytes(), capacity - 64);
    }
}
