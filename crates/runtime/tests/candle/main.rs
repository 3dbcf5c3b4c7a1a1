//! The candle backend: a second opinion on the engine's logits, and what it refuses. `cargo xtask
//! second-opinion` runs it.

mod agreement;
mod refused;
mod session;
mod support;
