#![doc = include_str!("../README.md")]
//!
//! # Parts
//! ```text
//! LoraFile ── Update { projection, layer, A, B }        format/: peft.rs, gguf.rs
//!    └─Part─▶ Adapter ── at(layer, Site) ──▶ LowRank    adapter.rs, low_rank.rs
//! ```

#![forbid(unsafe_code)]

mod adapter;
mod combine;
mod error;
mod file;
mod format;
mod low_rank;
mod place;

pub use crate::adapter::{Adapter, Part};
pub use crate::error::{Error, Result};
pub use crate::file::{LoraFile, Update};
pub use crate::low_rank::LowRank;
pub use crate::place::{BaseModel, Projection, Site};
