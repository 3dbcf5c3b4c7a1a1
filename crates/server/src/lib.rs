//! HTTP server over the ruvllm engine.

#![forbid(unsafe_code)]

mod anthropic;
mod api_error;
mod app;
mod auth;
mod body;
mod generation;
mod limits;
mod models;
mod openai;
mod request_id;
#[cfg(test)]
mod testing;
mod witness;

pub use models::ModelEntry;
