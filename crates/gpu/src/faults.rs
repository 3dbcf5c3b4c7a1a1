//! Faults that the driver reports outside a call.

use std::sync::OnceLock;

use crate::error::{Error, Result};

/// First error reported by the driver outside a call.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    lost: OnceLock<String>,
    other: OnceLock<String>,
}

impl Faults {
    /// Records the loss of the device; the first reason remains.
    pub(crate) fn set_lost(&self, reason: &str) {
        let _ = self.lost.set(reason.to_owned());
    }

    /// Records another error; the first one remains.
    pub(crate) fn set(&self, text: &str) {
        let _ = self.other.set(text.to_owned());
    }

    /// Fails with the recorded fault, if any.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(reason) = self.lost.get() {
            return Err(Error::DeviceLost { reason: reason.clone() });
        }
        self.other.get().map_or(Ok(()), |text| Err(Error::Driver(text.clone())))
    }
}
