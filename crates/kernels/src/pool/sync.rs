//! Synchronization primitives of the pool's protocol: the standard library's, or loom's for the
//! model checker.

#[cfg(not(all(test, loom)))]
pub(super) use std::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicPtr, AtomicUsize, fence},
};

#[cfg(all(test, loom))]
pub(super) use loom::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicPtr, AtomicUsize, fence},
};

/// Locks, ignoring poison: the data behind the pool's locks is valid at every point.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
