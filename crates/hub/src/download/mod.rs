//! Download of one file: in pieces, resumed after interruptions, verified, renamed when complete.

use std::ops::ControlFlow;
use std::path::Path;

use crate::address::shown;
use crate::client::{FileFacts, Hub};
use crate::digest::sha256_of_file;
use crate::error::{Error, Result};

mod partial;
mod pieces;
mod transfer;

pub(crate) use partial::Partial;
use pieces::Pieces;
use transfer::{Stop, Transfer};

/// Stage of a download.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PullStage {
    /// Transfer of the bytes.
    Download,
    /// Computation of the checksum.
    Verify,
}

/// A file to be fetched.
pub(crate) struct Download<'a> {
    pub(crate) hub: &'a Hub,
    /// URL of the file.
    pub(crate) url: &'a str,
    /// Name in messages.
    pub(crate) name: &'a str,
    pub(crate) facts: &'a FileFacts,
    /// Path of the finished file. Its folder exists.
    pub(crate) target: &'a Path,
}

/// Hears the stage and how many bytes of the file have passed it, and may stop the work.
pub(crate) type FileProgress<'a> = dyn FnMut(PullStage, u64) -> ControlFlow<()> + 'a;

/// A complete file.
pub(crate) struct Arrived {
    pub(crate) sha256: String,
    /// Bytes received from the hub.
    pub(crate) received_bytes: u64,
}

impl Download<'_> {
    /// Fetches the file.
    pub(crate) fn run(&self, progress: &mut FileProgress<'_>) -> Result<Arrived> {
        let mut received_bytes = 0;
        loop {
            let partial = Partial::of(self.target);
            let (pieces, is_continued) = match partial.load(self.facts) {
                Some(pieces) => (pieces, true),
                None => (self.create(&partial)?, false),
            };
            received_bytes += self.transfer(&partial, pieces, progress)?;
            let mut hashed = 0;
            let found = sha256_of_file(partial.data(), &mut |n_bytes| {
                hashed += n_bytes;
                progress(PullStage::Verify, hashed)
            })?;
            match &self.facts.sha256 {
                Some(expected) if *expected != found => {
                    partial.discard()?;
                    // Data of an earlier run may be damaged, by a power cut for example. A second
                    // round has nothing to continue, so it is the last.
                    if !is_continued {
                        let (file, expected) = (self.name.to_owned(), expected.clone());
                        return Err(Error::Checksum { file, expected, found });
                    }
                }
                _ => {
                    partial.finish()?;
                    return Ok(Arrived { sha256: found, received_bytes });
                }
            }
        }
    }

    /// An empty partial file.
    fn create(&self, partial: &Partial) -> Result<Pieces> {
        partial.create(self.facts)?;
        let (bytes, settings) = (self.facts.bytes, self.hub.settings());
        if !self.facts.allow_ranges() {
            return Ok(Pieces::new(bytes, bytes));
        }
        let piece_bytes = Pieces::sensible_length(bytes, settings.connections, settings.piece_bytes);
        Ok(Pieces::new(bytes, piece_bytes))
    }

    /// Fetches the missing pieces; as one piece if the server knows no ranges. Returns the received
    /// bytes.
    fn transfer(&self, partial: &Partial, pieces: Pieces, progress: &mut FileProgress<'_>) -> Result<u64> {
        let Self { hub, url, name, facts, .. } = *self;
        let transfer = Transfer { hub, url, name, facts, partial };
        let mut report = |done| progress(PullStage::Download, done);
        let mut end = transfer.run(pieces, &mut report);
        if let Err(Stop::NoRanges) = end {
            end = transfer.run(Pieces::new(facts.bytes, facts.bytes), &mut report);
        }
        match end {
            Ok(received) => Ok(received),
            Err(Stop::NoRanges) => {
                let reason = "neither the range nor the whole file that was asked for".to_owned();
                Err(Error::Answer { url: shown(url), reason })
            }
            Err(Stop::Error(error)) => {
                if matches!(error, Error::Changed { .. }) {
                    partial.discard()?;
                }
                Err(error)
            }
        }
    }
}
