//! Scheduler of a step loop for language models: which tokens of which requests are computed in the
//! next forward pass.
//!
//! A state machine without threads, clocks and tokens: times are passed in, requests are numbers of
//! tokens. The owner of the model runs the loop, so that the same scheduler runs in an engine, in a
//! simulator and in a test.
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
