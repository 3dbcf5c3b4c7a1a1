//! Locks of `parking_lot` and atomics of `std`, or those of loom for model checking.

#[cfg(not(all(test, loom)))]
pub(crate) use self::system::*;

#[cfg(all(test, loom))]
pub(crate) use self::model::*;

#[cfg(not(all(test, loom)))]
mod system {
    pub(crate) use parking_lot::{Mutex, MutexGuard};
    pub(crate) use std::sync::atomic::AtomicUsize;

    use std::cell::Cell;
    use std::sync::atomic::Ordering;

    #[inline]
    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock()
    }

    /// Unique number of the calling thread, from 0.
    #[inline]
    pub(crate) fn thread_number() -> usize {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
        }
        let number = NUMBER.get();
        if number != usize::MAX {
            return number;
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        NUMBER.set(number);
        number
    }
}

#[cfg(all(test, loom))]
mod model {
    pub(crate) use loom::sync::atomic::AtomicUsize;
    pub(crate) use loom::sync::{Mutex, MutexGuard};

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().expect("no model panics while it holds a lock")
    }

    loom::thread_local! {
        static NUMBER: std::cell::Cell<usize> = std::cell::Cell::new(0);
    }

    pub(crate) fn thread_number() -> usize {
        NUMBER.with(std::cell::Cell::get)
    }

    /// Sets the number of the calling thread of a model.
    pub(crate) fn set_thread_number(number: usize) {
        NUMBER.with(|place| place.set(number));
    }
}
