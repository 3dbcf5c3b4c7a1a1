#![doc = include_str!("../README.md")]
// The sandbox has one module that may: it loads compiled code (ADR-0096).
#![cfg_attr(not(feature = "wasmtime"), forbid(unsafe_code))]
#![deny(unsafe_code)]

mod archive;
mod contents;
#[cfg(feature = "sandbox")]
mod current;
mod error;
mod files;
mod host;
mod json;
pub mod limits;
#[cfg(feature = "sandbox")]
pub mod manager;
pub mod manifest;
mod name;
mod pack;
#[cfg(feature = "sandbox")]
pub mod sandbox;
pub mod signature;
mod store;
#[cfg(feature = "sandbox")]
mod sync;
mod trust;

pub use contents::Contents;
pub use error::{Error, Result};
pub use host::{Engine, EngineKind, Host};
pub use manifest::Manifest;
pub use name::{MANIFEST, SIGNATURE};
pub use pack::{Module, Pack, Policy, Release};
pub use ruvllm_witness::{Digest, KeyId, PrivateKey, PublicKey, Signature, Timestamp};
pub use semver::Version;
pub use store::{DamagedPack, InstalledPack, Store, StoredRelease};
pub use trust::{TrustedKey, TrustedKeys};

#[cfg(test)]
mod tests;
