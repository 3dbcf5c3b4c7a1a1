//! Append-only, hash-chained log of requests with signed checkpoints.

#![forbid(unsafe_code)]
