#![doc = include_str!("../README.md")]
//!
//! # Parts
//! ```text
//! LoraFile ── Update { projection, layer, A, B }        format/: peft.rs, gguf.rs
//!    └─Part─▶ Adapter ── at(layer, Site) ──▶ LowRank    adapter.rs, layout.rs
//!                ▲
//! AdapterStore ── CompactFile                            store/, compact/
//!                ▲ hot, warm, cold
//! Registry ── Residency ── AdapterVersion                registry/, residency/
//!
//! AdapterGate ─over─▶ ScaledAdapter { adapter, scale, gate }   gate/, scaled.rs
//! ```

#![forbid(unsafe_code)]

mod adapter;
mod compact;
mod digest;
mod error;
pub mod export;
mod file;
mod format;
mod gate;
mod layout;
#[cfg(feature = "merge")]
pub mod merge;
mod micro;
mod name;
mod place;
mod registry;
mod residency;
mod scaled;
mod shortened;
mod store;
mod sync;
#[cfg(test)]
mod testing;

pub use ruvllm_kernels::low_rank::{FactorFormat, LowRank};

pub use crate::adapter::{Adapter, Part};
pub use crate::compact::CompactFile;
pub use crate::digest::Digests;
pub use crate::error::{Error, Result};
pub use crate::file::{LoraFile, Update};
pub use crate::gate::{AdapterGate, GateConfig, MAX_GATED};
pub use crate::layout::{Layout, SiteLayout, SiteShape};
pub use crate::micro::{Edit, MAX_RANK, MicroConfig, MicroLora, Preset, SiteEdit, Snapshot};
pub use crate::name::MAX_NAME_BYTES;
pub use crate::place::{BaseModel, Projection, Site};
pub use crate::registry::{RegisteredAdapter, Registry, Resolved};
pub use crate::residency::{
    Acquired, AdapterVersion, Limits, Precision, Residency, ResidencyConfig, ResidencyStatistics, Tier,
};
pub use crate::scaled::{GatedBy, ScaledAdapter, kv_digest};
pub use crate::store::{AdapterStore, DamagedAdapter, StoredAdapter};
