//! The primitives of the pool's protocol: those of the standard library, or, for the model checker,
//! those of loom.

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

/// Locks; the data behind the pool's locks is valid at every point, so a panic elsewhere does not
/// spoil it.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
