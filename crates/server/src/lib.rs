//! HTTP server over the ruvllm engine.

#![forbid(unsafe_code)]

pub mod auth;
pub mod config;
pub mod limits;
