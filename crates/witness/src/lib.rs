#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod chain;
mod digest;
mod entry;
mod error;
mod finding;
mod folder;
mod key;
mod line;
mod lines;
mod queue;
mod read;
mod time;
mod verify;
mod writer;

pub use digest::Digest;
pub use entry::{AdapterUse, Content, Entry, Outcome};
pub use error::{Error, Result};
pub use finding::{Fault, Finding};
pub use key::{KeyId, PrivateKey, PublicKey, Signature};
pub use line::{Checkpoint, Dropped, Event, FileStart, MAX_LINE_BYTES, Start, Torn};
pub use queue::Status;
pub use read::{Filter, Line, LogReader};
pub use time::Timestamp;
pub use verify::{Report, VerifyOptions, verify};
pub use writer::{OnFault, Options, Refusal, WhenFull, Writer};

#[cfg(test)]
mod tests;
