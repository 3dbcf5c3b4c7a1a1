//! Free memory of the heap: one call of the C library (ADR-0074).

#![allow(unsafe_code)]

/// Gives free memory of the heap back to the system. Nothing where the C library is not glibc,
/// which alone keeps what lies between memory in use.
pub(crate) fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the call takes no pointer, touches free memory alone, and locks what it walks over,
    // so any thread may make it at any time.
    let _ = unsafe { libc::malloc_trim(0) };
}
