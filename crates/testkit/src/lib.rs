#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

pub mod allocator;
mod data;
mod random;

pub use data::{builtin_model, model_data, workspace};
pub use random::Random;
