//! Names of exports and areas of the interface.

/// Export of the memory.
pub(super) const MEMORY: &str = "memory";
/// Export of the global with the offset behind static data.
pub(super) const HEAP_BASE: &str = "__heap_base";
/// Export that prepares an instance.
pub(super) const INIT: &str = "kernel_init";
/// Export with the offset of the kernel's needs.
pub(super) const INFO: &str = "kernel_info";
/// Export of the gradient.
pub(super) const BACKWARD: &str = "kernel_backward";
/// Export that is called before an instance is closed.
pub(super) const CLEANUP: &str = "kernel_cleanup";
/// Area with all requests, in faults.
pub(super) const REQUESTS: &str = "requests";
