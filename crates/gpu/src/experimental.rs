//! Consent to wgpu's experimental features.

/// Token for cooperative matrices, the one experimental feature in use.
///
/// wgpu asks for an `unsafe` token because such features may have bugs with undefined behaviour.
/// Cooperative loads and stores take an index that naga checks and a stride that it does not: the
/// last rows of a matrix may lie behind the end of the array. `wgsl::cooperative` loads from and
/// stores to arrays of workgroup memory only, with strides and rows that `Kernel::check` bounds,
/// and never touches buffers by them (ADR-0048).
#[allow(unsafe_code)]
pub(crate) fn features(cooperative: bool) -> wgpu::ExperimentalFeatures {
    if !cooperative {
        return wgpu::ExperimentalFeatures::disabled();
    }
    // SAFETY: every cooperative access lies within an array of workgroup memory (see above), so
    // that the unchecked stride reaches no other memory.
    unsafe { wgpu::ExperimentalFeatures::enabled() }
}
