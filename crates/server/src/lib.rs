//! HTTP server over the ruvllm engine.

#![forbid(unsafe_code)]

#[cfg_attr(not(test), expect(dead_code, reason = "no router of the server merges its routes yet"))]
mod web;
