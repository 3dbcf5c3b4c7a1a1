//! HTTP server over the ruvllm engine.

#![forbid(unsafe_code)]

mod api_error;
mod app;
pub mod auth;
mod body;
pub mod config;
mod generation;
mod limits;
mod models;
mod openai;
mod request_id;
#[cfg(test)]
mod testing;

pub use models::ModelEntry;
