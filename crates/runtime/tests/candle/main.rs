//! The candle backend: comparison with the engine's logits, and refusals. Run by `cargo xtask
//! second-opinion`.

mod agreement;
mod refused;
mod session;
mod support;
