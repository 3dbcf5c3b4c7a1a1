//! The step loop: the one way in which text is generated (ADR-0041).
//!
//! ```text
//! Engine::submit ─▶ StepThread ─▶ StepLoop ─ plan ─▶ Scheduler (crate ruvllm-scheduler)
//!                                    │ Step: tokens and parts, plain data
//!                                    ▼
//!                                 Executor ── logits of wanted rows ──▶ Request: sampler, text
//!                                    │                                      │
//!                NativeExecutor, SessionExecutor                    Inbox ─▶ RequestHandle
//! ```
//! A step computes tokens of any number of sequences: prompt chunks and single tokens together. The
//! result of a sequence depends on its own tokens alone (ADR-0003), so a request gets the same text
//! whatever else runs.

mod adapters;
mod events;
mod executor;
mod handle;
mod history;
mod inbox;
mod job;
mod native;
mod prompt_logprobs;
mod reader;
mod request;
mod sessions;
mod statistics;
mod step_loop;
mod thread;
mod tuning;

pub(crate) use self::adapters::RequestAdapters;
pub use self::events::RequestEvent;
pub use self::handle::{Chunk, RequestHandle};
pub use self::history::StepRecord;
pub(crate) use self::inbox::Inbox;
pub(crate) use self::job::{Facts, Job, Outlet, Prepared};
pub(crate) use self::sessions::SessionExecutor;
pub(crate) use self::statistics::StepCounters;
pub use self::statistics::StepStatistics;
pub(crate) use self::step_loop::{AdapterLoader, Loaded, StepLoop};
pub(crate) use self::thread::StepThread;
pub(crate) use self::tuning::Tuning;
pub use self::tuning::{TuningOptions, TuningStatus};
