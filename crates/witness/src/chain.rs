//! The end of a log: appends lines, whole batches or nothing; begins files; writes checkpoints.

use std::fs::File;
use std::io;
use std::mem;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::digest::Digest;
use crate::error::{Error, Result, io_error};
use crate::folder::{self, LogFile, OpenFile, Tail};
use crate::key::PrivateKey;
use crate::line::{self, Checkpoint, Event, FORMAT, FileStart, Parsed, Start, Torn};
use crate::time::Timestamp;

/// Settings of a chain.
pub(crate) struct Settings {
    pub(crate) key: Option<PrivateKey>,
    /// Bytes of a file after which another begins.
    pub(crate) max_file_bytes: u64,
    /// True to sync each batch.
    pub(crate) sync: bool,
    /// Lines after which a checkpoint follows.
    pub(crate) checkpoint_lines: u64,
    /// Time after which a checkpoint follows a line.
    pub(crate) checkpoint_after: Duration,
}

/// Times of lines: the clock of the system, and one that never jumps.
pub(crate) struct Clock {
    began: Instant,
    now: Box<dyn Fn() -> Timestamp + Send + Sync>,
}

impl Clock {
    pub(crate) fn new(now: Box<dyn Fn() -> Timestamp + Send + Sync>) -> Self {
        Self { began: Instant::now(), now }
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.now)()
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Body of a line of this moment.
    pub(crate) fn body<T: Serialize>(&self, kind: &str, fields: &T) -> Vec<u8> {
        line::body(kind, self.now(), self.elapsed_ms(), fields)
    }
}

/// Place in the chain after a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Link {
    seq: u64,
    hash: Digest,
}

/// The end of a log that is open for writing.
pub(crate) struct Chain {
    folder: PathBuf,
    settings: Settings,
    open: OpenFile,
    file: Box<dyn LogFile>,
    number: u64,
    /// Bytes of the file's complete lines.
    bytes: u64,
    /// True if the file has bytes behind them, of a batch that failed.
    is_dirty: bool,
    last: Link,
    /// Lines behind the last checkpoint, and time of the first of them.
    uncovered: u64,
    uncovered_since: Option<Instant>,
    /// Checkpoint whose copy beside the log is still to be written.
    unpublished: Option<Vec<u8>>,
    _lock: File,
}

impl Chain {
    /// Opens the log in `folder` behind its last complete line, or begins one; records the start.
    pub(crate) fn open(folder: &Path, settings: Settings, open: OpenFile, clock: &Clock) -> Result<Self> {
        folder::create(folder)?;
        let lock = folder::lock(folder)?;
        let (end, torn) = resume(folder)?;
        let (number, bytes, last) = match end {
            Some(end) => (end.number, end.bytes, end.last),
            None => (1, 0, Link { seq: 0, hash: Digest::ZERO }),
        };
        let (mut open, path) = (open, folder.join(folder::file_name(number)));
        let file = open(&path).map_err(io_error("open", &path))?;
        let mut chain = Self {
            folder: folder.to_owned(),
            settings,
            open,
            file,
            number,
            bytes,
            is_dirty: false,
            last,
            uncovered: 0,
            uncovered_since: None,
            unpublished: None,
            _lock: lock,
        };
        let mut bodies = Vec::new();
        if bytes == 0 {
            bodies.push(clock.body("file", &FileStart { format: FORMAT, file: number }));
        }
        bodies.push(clock.body("start", &Start { torn }));
        let begun = chain.write(&bodies).and_then(|()| folder::sync(folder));
        begun.and_then(|()| chain.checkpoint(clock)).map_err(io_error("write", &path))?;
        Ok(chain)
    }

    /// Sequence number of the last line.
    pub(crate) fn last_seq(&self) -> u64 {
        self.last.seq
    }

    /// Appends a line for each body, in another file if this one is full.
    ///
    /// # Errors
    /// No line was appended, and the call can be repeated.
    pub(crate) fn append(&mut self, bodies: &[Vec<u8>], clock: &Clock) -> io::Result<()> {
        if self.bytes >= self.settings.max_file_bytes {
            self.rotate(clock)?;
        }
        self.write(bodies)
    }

    /// Time at which a checkpoint is due.
    pub(crate) fn checkpoint_due(&self) -> Option<Instant> {
        if self.unpublished.is_some() {
            return Some(Instant::now());
        }
        let since = self.uncovered_since.filter(|_| self.settings.key.is_some())?;
        let is_due = self.uncovered >= self.settings.checkpoint_lines;
        Some(if is_due { since } else { since + self.settings.checkpoint_after })
    }

    /// Writes a checkpoint over all lines without one, and its copy beside the log.
    pub(crate) fn checkpoint(&mut self, clock: &Clock) -> io::Result<()> {
        if self.uncovered > 0
            && let Some(key) = &self.settings.key
        {
            let (key_id, time) = (key.public_key().id(), clock.now());
            let seq = self.last.seq + 1;
            let signature = key.sign(&line::message(seq, self.last.hash, time, key_id));
            let fields = Checkpoint { key_id, signature };
            let body = line::body("checkpoint", time, clock.elapsed_ms(), &fields);
            self.unpublished = Some(self.write_lines(&[body])?);
            (self.uncovered, self.uncovered_since) = (0, None);
        }
        if let Some(line) = &self.unpublished {
            // The copy must never be ahead of the log.
            self.file.sync()?;
            folder::replace_checkpoint(&self.folder, line)?;
            self.unpublished = None;
        }
        Ok(())
    }

    /// Begins the next file, behind a checkpoint at the end of this one.
    fn rotate(&mut self, clock: &Clock) -> io::Result<()> {
        self.clean()?;
        self.checkpoint(clock)?;
        self.file.sync()?;
        let number = self.number + 1;
        let mut file = (self.open)(&self.folder.join(folder::file_name(number)))?;
        // Bytes of an attempt that failed.
        file.cut(0)?;
        folder::sync(&self.folder)?;
        let body = clock.body("file", &FileStart { format: FORMAT, file: number });
        let (former, former_bytes) = (mem::replace(&mut self.file, file), mem::take(&mut self.bytes));
        if let Err(error) = self.write(&[body]) {
            (self.file, self.bytes, self.is_dirty) = (former, former_bytes, false);
            return Err(error);
        }
        self.number = number;
        Ok(())
    }

    /// Cuts off the bytes of a batch that failed.
    fn clean(&mut self) -> io::Result<()> {
        if self.is_dirty {
            self.file.cut(self.bytes)?;
            self.is_dirty = false;
        }
        Ok(())
    }

    fn write(&mut self, bodies: &[Vec<u8>]) -> io::Result<()> {
        self.write_lines(bodies)?;
        self.uncovered += bodies.len() as u64;
        self.uncovered_since.get_or_insert_with(Instant::now);
        Ok(())
    }

    /// Appends lines and returns their bytes. After an error the file is as before.
    fn write_lines(&mut self, bodies: &[Vec<u8>]) -> io::Result<Vec<u8>> {
        self.clean()?;
        let (mut lines, mut last) = (Vec::new(), self.last);
        for body in bodies {
            last.seq += 1;
            last.hash = line::seal(last.seq, last.hash, body, &mut lines);
        }
        let mut written = self.file.append(&lines);
        if self.settings.sync && written.is_ok() {
            // A failed sync may have lost any part of the batch, so all of it is written again.
            written = self.file.sync();
        }
        if let Err(error) = written {
            self.is_dirty = self.file.cut(self.bytes).is_err();
            return Err(error);
        }
        self.bytes += lines.len() as u64;
        self.last = last;
        Ok(lines)
    }
}

/// End of the log that a former process has left.
struct End {
    number: u64,
    bytes: u64,
    last: Link,
}

/// Finds the end of the log, and moves an incomplete last line out of the way. `None` for a folder
/// without a log.
fn resume(folder: &Path) -> Result<(Option<End>, Option<Torn>)> {
    let numbers = folder::list(folder)?;
    let mut torn = None;
    let mut end = None;
    // A file without a complete line is one whose first line was not finished.
    for (index, &number) in numbers.iter().enumerate().rev().take(2) {
        let path = folder.join(folder::file_name(number));
        let tail = folder::regular(&path).and_then(|mut file| folder::tail(&mut file));
        let tail = tail.map_err(io_error("read", &path))?;
        if tail.torn > 0 && index + 1 == numbers.len() {
            torn = Some(move_torn(folder, number, &path, &tail)?);
        }
        if tail.complete > 0 {
            let last = last_link(&path, &tail)?;
            end = Some(match end {
                Some(begun) => End { last, ..begun },
                None => End { number, bytes: tail.complete, last },
            });
            break;
        }
        let former = index.checked_sub(1).map_or(0, |index| numbers[index]);
        if index + 1 < numbers.len() || former + 1 != number {
            return Err(Error::Damaged { path, reason: "the file has no complete line".to_owned() });
        }
        end = Some(End { number, bytes: 0, last: Link { seq: 0, hash: Digest::ZERO } });
    }
    check_checkpoint(folder, end.as_ref().map_or(Link { seq: 0, hash: Digest::ZERO }, |end| end.last))?;
    Ok((end, torn))
}

fn move_torn(folder: &Path, number: u64, path: &Path, tail: &Tail) -> Result<Torn> {
    let to = folder::torn_path(folder, number);
    folder::move_torn(path, tail.complete, &to).map_err(io_error("move the incomplete line of", path))?;
    let moved_to = to.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Torn { bytes: tail.torn, moved_to })
}

/// Place in the chain after the last line of a file.
fn last_link(path: &Path, tail: &Tail) -> Result<Link> {
    let damaged = |reason: &str| Error::Damaged { path: path.to_owned(), reason: reason.to_owned() };
    let line = tail.last_line.as_deref().ok_or_else(|| damaged("the last line is too long"))?;
    link_of(line).ok_or_else(|| damaged("the last line is damaged"))
}

fn link_of(line: &[u8]) -> Option<Link> {
    let (computed, stated) = line::hashes(line)?;
    let parsed: Parsed = serde_json::from_slice(line).ok()?;
    // A larger number is none that a writer counts to.
    (computed == stated && parsed.seq < u64::MAX / 2).then_some(Link { seq: parsed.seq, hash: computed })
}

/// Refuses a log that ends before its latest checkpoint: appending to it would hide that lines were
/// removed.
fn check_checkpoint(folder: &Path, last: Link) -> Result<()> {
    let path = folder.join(folder::CHECKPOINT);
    let Some(bytes) = folder::checkpoint(&path)? else { return Ok(()) };
    let line = bytes.strip_suffix(b"\n").unwrap_or_default();
    let is_checkpoint =
        serde_json::from_slice(line).is_ok_and(|parsed: Parsed| matches!(parsed.event, Event::Checkpoint(_)));
    let Some(checkpoint) = link_of(line).filter(|_| is_checkpoint) else {
        return Err(Error::Damaged { path, reason: "the checkpoint is damaged".to_owned() });
    };
    if checkpoint.seq > last.seq {
        let (folder, checkpoint_seq) = (folder.to_owned(), checkpoint.seq);
        return Err(Error::CutTail { folder, checkpoint_seq, last_seq: last.seq });
    }
    if checkpoint.seq == last.seq && checkpoint.hash != last.hash {
        return Err(Error::Damaged { path, reason: "the checkpoint is not that of the log".to_owned() });
    }
    Ok(())
}
