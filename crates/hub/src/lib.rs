//! A store of model files on this machine, and a client of the protocol of the Hugging Face hub that fills it.
//!
//! It knows names, files and checksums; what is inside the files it does not know, so it is of use to any program that
//! needs models. There is no async runtime: a download runs on a few threads of its own and ends with the call.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//! use ruvllm_hub::{Hub, Store};
//!
//! let store = Store::from_env()?;
//! let reference = "hf://org/repo-GGUF/Q4_K_M@main".parse()?;
//! let pulled = store.pull(&Hub::from_env()?, &reference, Some("small"), &mut |step| {
//!     println!("{} of {} bytes", step.bytes_done, step.bytes_total);
//!     ControlFlow::Continue(())
//! })?;
//! println!("{}", pulled.model.path.display());
//! assert_eq!(store.get("small")?.commit, pulled.model.commit);
//! # Ok::<(), ruvllm_hub::Error>(())
//! ```
//!
//! - [`ModelReference`] is the text `hf://ORG/REPO[/FILE][@REVISION]`.
//! - [`Hub`] asks a hub, with the settings of [`HubSettings`]: which files there are, and for their bytes.
//! - [`Store`] keeps files and names: [`Store::pull`], [`Store::list`], [`Store::get`], [`Store::remove`].
//!
//! # What can be relied on
//!
//! - A name in the store means files that are whole and, where the hub states a SHA-256, verified. A process that is killed
//!   at any moment leaves the former state or the new one, and bytes that the next call continues with.
//! - The token is sent to the endpoint alone, never to where it redirects, and stands in no message.
//! - Nothing that a server names is written outside the store.
//! - Time and memory are bounded: silence, trickling and failing again and again end a call with an error that says so.

#![forbid(unsafe_code)]

mod client;
mod digest;
mod download;
mod error;
mod files;
mod listing;
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
pub use settings::{DEFAULT_ENDPOINT, HubSettings, Token};
pub use store::{Store, StoredFile, StoredModel};
