//! A counting allocator over the system's: the only `unsafe` code of the crate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// The system's allocator with counters of calls and live bytes. Install it with
/// `#[global_allocator]`.
#[derive(Debug)]
pub struct Counting;

static CALLS: AtomicUsize = AtomicUsize::new(0);
static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);

/// True if threads that allocate for the first time are counted.
static COUNTS_NEW_THREADS: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// True if this thread is counted; set at its first call.
    static COUNTED: Cell<Option<bool>> = const { Cell::new(None) };
}

// SAFETY: both functions pass their arguments on to the system's allocator unchanged, and the
// counting allocates nothing; `realloc` and `alloc_zeroed` keep their default forms, which call
// these two.
#[allow(unsafe_code, reason = "an allocator cannot be written without")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let counted = COUNTED.get().unwrap_or_else(|| COUNTS_NEW_THREADS.load(Relaxed));
        COUNTED.set(Some(counted));
        CALLS.fetch_add(usize::from(counted), Relaxed);
        let live = LIVE_BYTES.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK_BYTES.fetch_max(live, Relaxed);
        // SAFETY: the caller keeps `GlobalAlloc::alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps `GlobalAlloc::dealloc`'s contract, and `alloc` gave out the
        // system's pointer.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Counts the calls of this thread from now on, and those of the threads that it starts.
///
/// The test harness's waiting thread allocates at arbitrary times, and is not counted.
pub fn count_calls() {
    COUNTED.set(Some(true));
    COUNTS_NEW_THREADS.store(true, Relaxed);
}

/// Number of counted allocations so far; 0 before [`count_calls`].
pub fn calls() -> usize {
    CALLS.load(Relaxed)
}

/// Live bytes of all threads.
pub fn live_bytes() -> usize {
    LIVE_BYTES.load(Relaxed)
}

/// Runs `work`; returns its result and the peak of live bytes above the bytes live before.
pub fn peak_bytes<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = live_bytes();
    PEAK_BYTES.store(before, Relaxed);
    let result = work();
    (result, PEAK_BYTES.load(Relaxed) - before)
}
