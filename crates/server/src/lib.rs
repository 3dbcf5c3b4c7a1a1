//! HTTP server over the ruvllm engine.

#![forbid(unsafe_code)]
