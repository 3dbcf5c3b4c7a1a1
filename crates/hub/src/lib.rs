#![doc = include_str!("../README.md")]
//!
//! # Main types
//! - [`ModelReference`] is the text `hf://ORG/REPO[/FILE][@REVISION]`.
//! - [`Hub`] asks a hub, with the settings of [`HubSettings`]: which files there are, and for their
//!   bytes.
//! - [`Store`] keeps files and names: [`Store::pull`], [`Store::list`], [`Store::get`],
//!   [`Store::remove`].
//!
//! # Guarantees
//!
//! - A name in the store means files that are whole and, where the hub states a SHA-256, verified.
//!   A process that is killed at any moment leaves the former state or the new one, and bytes that
//!   the next call continues with.
//! - The token is sent to the endpoint alone, never to where it redirects, and stands in no
//!   message. An endpoint with a name or password in it is refused.
//! - Parts of a file are put together only if the hub names its version: by a SHA-256, or by an
//!   ETag that every answer repeats. Else the file comes in one answer, or from its start, and
//!   [`StoredFile::unverified`] says so.
//! - Nothing that a server names is written outside the store, and no name is stored that another
//!   system could not store, or that could not be shown as it is.
//! - Time and memory are bounded: silence, trickling and failing again and again end a call with an
//!   error that says so. A list has at most 100,000 files in 32 MiB, a model 4096 files of 16 TiB
//!   each, a manifest 16 MiB.

#![forbid(unsafe_code)]

mod address;
mod client;
mod digest;
mod download;
mod error;
mod files;
mod limits;
mod listing;
mod names;
mod near;
mod pull;
mod reference;
mod select;
mod settings;
mod store;

pub use client::Hub;
pub use download::PullStage;
pub use error::{Error, Result};
pub use listing::{Listing, RemoteFile};
pub use pull::{OnPull, PullProgress, Pulled};
pub use reference::{DEFAULT_REVISION, ModelReference};
pub use settings::{DEFAULT_ENDPOINT, HubSettings, OnRetry, Retry, Token};
pub use store::{DamagedModel, Store, StoredFile, StoredModel};
