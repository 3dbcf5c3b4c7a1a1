//! The system's allocator, which counts what it gives out: the only `unsafe` code of the crate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// Counts calls and live bytes; otherwise the system's allocator. To be installed with
/// `#[global_allocator]`.
#[derive(Debug)]
pub struct Counting;

static CALLS: AtomicUsize = AtomicUsize::new(0);
static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Calls of threads that allocate for the first time are counted.
static COUNTS_NEW_THREADS: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Calls of this thread are counted; decided at its first one.
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
/// The thread of the test harness that waits for the test allocates when it pleases, and is not
/// counted.
pub fn count_calls() {
    COUNTED.set(Some(true));
    COUNTS_NEW_THREADS.store(true, Relaxed);
}

/// Number of counted allocations so far; 0 before [`count_calls`].
pub fn calls() -> usize {
    CALLS.load(Relaxed)
}

/// Bytes that are allocated now, by all threads.
pub fn live_bytes() -> usize {
    LIVE_BYTES.load(Relaxed)
}

/// The result of `work`, and the most bytes allocated at one time during it beyond those allocated
/// before.
pub fn peak_bytes<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = live_bytes();
    PEAK_BYTES.store(before, Relaxed);
    let result = work();
    (result, PEAK_BYTES.load(Relaxed) - before)
}
