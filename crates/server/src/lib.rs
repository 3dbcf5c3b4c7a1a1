//! HTTP server over the ruvllm engine.

#![forbid(unsafe_code)]

mod anthropic;
mod api_error;
mod app;
pub mod auth;
mod body;
pub mod config;
mod error;
mod field_schema;
mod gate;
mod generation;
#[cfg(feature = "grpc")]
mod grpc;
mod hex;
mod learning;
mod limits;
mod listen;
mod models;
mod native;
mod openai;
mod openapi;
mod reload;
mod request_id;
mod router;
mod routing;
mod server;
mod signals;
mod telemetry;
mod tenant;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod thinking_tests;
mod web;
mod witness;

pub use config::Config;
pub use error::Error;
pub use listen::{Address, Peer, ShutdownHandle};
pub use models::{BackendLoader, LoadedBackend, ModelEntry};
pub use reload::ReloadHandle;
pub use server::Server;
pub use telemetry::logging;
#[cfg(feature = "otlp")]
pub use telemetry::otlp;
