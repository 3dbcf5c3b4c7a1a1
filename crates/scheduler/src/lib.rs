#![doc = include_str!("../README.md")]
//!
//! # One iteration of the loop
//! ```text
//! submit, cancel ──▶ Scheduler ── expire ──▶ requests whose deadline has passed
//!                        ├── admit ────────▶ next waiting request, if free tokens of KV cache suffice
//!                        │◀─ started ─────── tokens that it has from the prefix cache
//!                        ├── plan ─────────▶ tokens of each running request in this step
//!                        ├── victim ───────▶ request to preempt when memory falls short after all
//!                        │◀─ preempted ───── it waits again
//!                        │◀─ advanced ────── tokens computed per request
//!                        │◀─ finished ────── requests that ended
//!                        └◀─ observe ─────── duration of the step
//! ```
//!
//! Times are durations since a moment that the caller chooses; they do not go back. Calls that name
//! an unknown request do nothing.

#![forbid(unsafe_code)]

mod config;
mod cost;
mod entries;
mod prefixes;
mod queue;
mod rank;
mod rates;
mod request;
mod scheduler;
mod shares;
#[cfg(feature = "simulator")]
pub mod simulator;
mod statistics;
mod tenants;
mod work;

pub use config::Config;
pub use request::{Refusal, Request, RequestId, TenantId};
pub use scheduler::Scheduler;
pub use statistics::Statistics;
pub use work::Work;
