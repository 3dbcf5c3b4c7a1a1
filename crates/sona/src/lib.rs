#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod background;
#[cfg(feature = "bank")]
pub mod bank;
mod budget;
pub mod continual;
mod error;
pub mod evaluation;
#[cfg(any(feature = "bank", feature = "store"))]
mod files;
pub mod hooks;
#[cfg(feature = "bank")]
pub mod index;
pub mod instant;
mod lexical;
mod masking;
pub mod memory;
pub mod model;
#[cfg(feature = "store")]
pub mod online;
pub mod quality;
pub mod random;
mod rating;
#[cfg(feature = "store")]
mod recorder;
pub mod reflection;
pub mod routing;
#[cfg(feature = "store")]
pub mod store;
#[cfg(feature = "store")]
pub mod trajectory;
pub mod tuning;

pub use crate::budget::{Charge, FixedBudget, MemoryBudget};
pub use crate::error::{Error, Result};
pub use crate::lexical::HashedWords;
pub use crate::masking::FunctionMasking;
pub use crate::rating::Rating;
#[cfg(feature = "store")]
pub use crate::recorder::{Recorder, RecorderOptions, RecorderStatus, Refusal};
#[cfg(feature = "store")]
pub use crate::store::LearningStore;
