//! Locks of `parking_lot` and atomics of `std`, or those of loom for model checking.

#[cfg(not(all(test, loom)))]
pub(crate) use self::system::*;

#[cfg(all(test, loom))]
pub(crate) use self::model::*;

#[cfg(not(all(test, loom)))]
mod system {
    pub(crate) use parking_lot::{Mutex, MutexGuard};
    pub(crate) use std::sync::Arc;
    pub(crate) use std::sync::atomic::AtomicU64;

    #[inline]
    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock()
    }
}

#[cfg(all(test, loom))]
mod model {
    pub(crate) use loom::sync::atomic::AtomicU64;
    pub(crate) use loom::sync::{Arc, Mutex, MutexGuard};

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().expect("no model panics while it holds a lock")
    }
}
