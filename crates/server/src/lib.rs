//! HTTP server over the ruvllm engine.

#![forbid(unsafe_code)]

mod api_error;
mod app;
mod auth;
mod body;
mod generation;
mod limits;
mod models;
mod openai;
mod request_id;
mod telemetry;
#[cfg(test)]
mod testing;

pub use models::ModelEntry;
pub use telemetry::logging;
#[cfg(feature = "otlp")]
pub use telemetry::otlp;
