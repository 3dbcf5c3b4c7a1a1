//! Partial files: the data and a record of the received ranges.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::pieces::Pieces;
use crate::client::FileFacts;
use crate::error::{Result, file_error};
use crate::files;
use crate::limits::MAX_RECORD_BYTES;

/// Suffix of a partial file.
const PARTIAL: &str = ".part";

/// Suffix of the record of such a file.
const STATE: &str = ".part.json";

/// Version of the record's form; records of others are not used.
const STATE_VERSION: u32 = 1;

/// Partial file and its record.
#[derive(Debug)]
pub(crate) struct Partial {
    target: PathBuf,
    data: PathBuf,
    state: PathBuf,
}

/// The record of a partial file.
#[derive(Serialize, Deserialize)]
struct State {
    version: u32,
    /// The version of the file on the server.
    etag: Option<String>,
    sha256: Option<String>,
    bytes: u64,
    piece_bytes: u64,
    done: Vec<u64>,
}

impl Partial {
    /// The partial file of `target`.
    pub(crate) fn of(target: &Path) -> Self {
        let beside = |suffix: &str| {
            let mut name = target.file_name().unwrap_or_default().to_owned();
            name.push(suffix);
            target.with_file_name(name)
        };
        Self { target: target.to_owned(), data: beside(PARTIAL), state: beside(STATE) }
    }

    /// The file that receives the bytes.
    pub(super) fn data(&self) -> &Path {
        &self.data
    }

    /// Bytes of the disk that what has arrived takes. They are used for the rest of the file, or
    /// free before it is fetched from the start.
    pub(crate) fn disk_bytes(&self) -> u64 {
        files::disk_bytes_at(&self.data)
    }

    /// Pieces that have arrived of this very version of the file. A record that does not fit counts
    /// as none. Only files with a checksum are continued: the record may be ahead of the data after
    /// a power cut, and the checksum would notice.
    pub(super) fn load(&self, facts: &FileFacts) -> Option<Pieces> {
        facts.sha256.as_ref()?;
        let state: State =
            serde_json::from_slice(&files::read_bounded(&self.state, MAX_RECORD_BYTES).ok()?).ok()?;
        let is_same = state.version == STATE_VERSION
            && state.etag == facts.etag
            && state.sha256 == facts.sha256
            && state.bytes == facts.bytes
            && fs::symlink_metadata(&self.data).is_ok_and(|data| data.is_file() && data.len() == facts.bytes);
        Pieces::resumed(state.bytes, state.piece_bytes, state.done).filter(|_| is_same)
    }

    /// Creates an empty file of the right length.
    pub(super) fn create(&self, facts: &FileFacts) -> Result<()> {
        self.discard()?;
        let file = OpenOptions::new().write(true).create_new(true).open(&self.data);
        let file = file.map_err(file_error("create", &self.data))?;
        file.set_len(facts.bytes).map_err(file_error("write", &self.data))
    }

    /// Records what has arrived. A kill at any moment leaves this record or the one before.
    pub(super) fn save(&self, facts: &FileFacts, pieces: &Pieces) -> Result<()> {
        if facts.sha256.is_none() {
            return Ok(());
        }
        let state = State {
            version: STATE_VERSION,
            etag: facts.etag.clone(),
            sha256: facts.sha256.clone(),
            bytes: facts.bytes,
            piece_bytes: pieces.piece_bytes(),
            done: pieces.done().to_vec(),
        };
        let temporary = self.state.with_extension("new");
        serde_json::to_vec(&state)
            .map_err(io::Error::from)
            .and_then(|text| files::create(&temporary)?.write_all(&text))
            .and_then(|()| fs::rename(&temporary, &self.state))
            .map_err(file_error("write", &self.state))
    }

    /// Renames the complete file, once it is on the disk.
    pub(super) fn finish(self) -> Result<()> {
        files::open_regular(&self.data, OpenOptions::new().write(true))
            .and_then(|file| file.sync_all())
            .and_then(|()| fs::rename(&self.data, &self.target))
            .map_err(file_error("write", &self.target))?;
        files::sync_folder_of(&self.target)?;
        files::remove(&self.state)
    }

    /// Deletes the partial file and its record.
    pub(super) fn discard(&self) -> Result<()> {
        files::remove(&self.state)?;
        files::remove(&self.data)
    }

    /// The file that receives the bytes, and the record.
    pub(crate) fn into_paths(self) -> [PathBuf; 2] {
        [self.data, self.state]
    }

    /// True if a file has the name of one that receives bytes, and so perhaps holes.
    pub(crate) fn is_data(path: &Path) -> bool {
        path.as_os_str().as_encoded_bytes().ends_with(PARTIAL.as_bytes())
    }
}
