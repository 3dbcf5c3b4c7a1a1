//! `--device`: choice of the device, and a command's model loaded on it.
//!
//! ```text
//! DeviceArgs (--device) ──► Device ──load──► Loaded::Cpu(Engine)
//!                                      └───► Loaded::Gpu(GpuModel)   feature `gpu`
//! ```
//! Everything that names the GPU backend is in `gpu` and in the report of `doctor --gpu`; without
//! the feature both are absent and `--device gpu` is an error.

mod choice;
mod cpu;
mod error;
#[cfg(feature = "gpu")]
pub(crate) mod gpu;
mod loaded;
mod select;

pub(crate) use self::choice::{Device, DeviceArgs};
pub(crate) use self::cpu::{details, engine, warn};
pub(crate) use self::error::{DeviceError, in_flags};
pub(crate) use self::loaded::{DeviceConversation, GpuFacts, Loaded};
pub(crate) use self::select::Defaults;
