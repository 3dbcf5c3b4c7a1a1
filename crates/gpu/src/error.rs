//! Errors of the crate.

/// Result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// Failure of a GPU operation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No adapter of the requested kind.
    #[error(
        "no GPU found: the Vulkan loader (libvulkan.so.1) or a driver is missing, or it lists no device \
         ({software} software adapters; Selection::software allows them)"
    )]
    NoAdapter {
        /// Software adapters present and not allowed.
        software: usize,
    },
    /// No adapter has the requested index or name.
    #[error("no adapter {wanted:?}; present: {present}")]
    UnknownAdapter {
        /// Requested index or name.
        wanted: String,
        /// Names of the selectable adapters.
        present: String,
    },
    /// The adapter lacks a feature that the operation needs.
    #[error("{adapter} lacks {feature}")]
    MissingFeature {
        /// Name of the adapter.
        adapter: String,
        /// Name of the feature.
        feature: &'static str,
    },
    /// The device was lost (driver reset, removal, [`Gpu::destroy`](crate::Gpu::destroy)); open it
    /// again.
    #[error("the GPU device is lost: {reason}")]
    DeviceLost {
        /// Description by the driver or wgpu.
        reason: String,
    },
    /// The budget does not cover the allocation.
    #[error("GPU memory budget is full: need {need} bytes, {free} of {budget} free")]
    OverBudget {
        /// Size of the allocation in bytes.
        need: u64,
        /// Bytes left in the budget.
        free: u64,
        /// Budget in bytes.
        budget: u64,
    },
    /// The driver failed an allocation within the budget.
    #[error("the GPU driver refused {bytes} bytes; lower the budget")]
    OutOfMemory {
        /// Size of the allocation in bytes.
        bytes: u64,
    },
    /// A buffer exceeds a limit of the device.
    #[error("a buffer of {bytes} bytes exceeds the device's limit of {limit}; split the matrix by rows")]
    BufferTooLarge {
        /// Size of the buffer in bytes.
        bytes: u64,
        /// Largest storage binding in bytes.
        limit: u64,
    },
    /// An operand has the wrong size.
    #[error("{what}: expected {expected}, found {found}")]
    Shape {
        /// Name of the operand.
        what: &'static str,
        /// Required size or condition.
        expected: String,
        /// Actual size.
        found: u64,
    },
    /// The same buffer was passed for two operands.
    #[error("{kernel}: one buffer in the place of two operands")]
    Aliased {
        /// Name of the kernel.
        kernel: String,
    },
    /// A kernel failed to compile, or the driver reported an error without its own variant.
    #[error("GPU error: {0}")]
    Driver(String),
}

/// Fails with [`Error::Shape`] unless `found` equals `expected`.
pub(crate) fn expect_size(what: &'static str, expected: u64, found: u64) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    Err(Error::Shape { what, expected: expected.to_string(), found })
}

/// Fails with [`Error::Shape`] unless `found` is a positive multiple of `unit`.
pub(crate) fn expect_multiple(what: &'static str, unit: u64, found: u64) -> Result<()> {
    if found > 0 && found.is_multiple_of(unit) {
        return Ok(());
    }
    Err(Error::Shape { what, expected: format!("a positive multiple of {unit}"), found })
}
