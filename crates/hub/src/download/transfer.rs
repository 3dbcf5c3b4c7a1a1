//! Fetching the missing pieces of a file over several connections.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::partial::Partial;
use super::pieces::Pieces;
use crate::address::shown;
use crate::client::{Answer, Failure, FileFacts, Hub, Linked, Retries, header};
use crate::error::{Error, Result, file_error};
use crate::files;

/// Time between two records of what has arrived.
const RECORD_EVERY: Duration = Duration::from_millis(500);

/// Time between two reports to the caller.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// Bytes of one read.
const BUFFER_BYTES: usize = 256 << 10;

/// An attempt that brings this much counts as progress, and the failures before it are forgotten.
const PROGRESS_BYTES: u64 = 64 << 10;

/// Transfer of one file.
pub(super) struct Transfer<'a> {
    pub(super) hub: &'a Hub,
    /// URL of the file.
    pub(super) url: &'a str,
    /// Name in messages.
    pub(super) name: &'a str,
    pub(super) facts: &'a FileFacts,
    pub(super) partial: &'a Partial,
}

/// Reason for an incomplete transfer.
pub(super) enum Stop {
    /// The server sends whole files only.
    NoRanges,
    /// Anything else.
    Error(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// Reason that one request did not bring its piece.
enum Missed {
    NoRanges,
    Failure(Failure),
}

impl From<Failure> for Missed {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

/// State shared by the connections.
struct TransferState {
    counts: Mutex<Counts>,
    is_stopped: AtomicBool,
}

/// Received pieces and bytes.
struct Counts {
    pieces: Pieces,
    /// Bytes of this run, those that came twice included.
    received: u64,
    /// Time at which the pieces were last recorded.
    recorded: Instant,
}

impl Transfer<'_> {
    /// Fetches the missing ranges and returns the received bytes. `progress` gets the bytes
    /// present, and may stop the transfer.
    pub(super) fn run(
        &self,
        pieces: Pieces,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<u64, Stop> {
        let n_workers = self.hub.settings().connections.max(1).min(pieces.n_unfinished());
        let counts = Counts { pieces, received: 0, recorded: Instant::now() };
        let state = TransferState { counts: Mutex::new(counts), is_stopped: AtomicBool::new(false) };
        let (sender, receiver) = mpsc::channel();
        let mut outcome = Ok(());
        thread::scope(|scope| {
            for _ in 0..n_workers {
                let (sender, state) = (sender.clone(), &state);
                scope.spawn(move || {
                    let result = self.work(state);
                    if result.is_err() {
                        state.is_stopped.store(true, Ordering::Relaxed);
                    }
                    // The receiver lives until all senders are gone.
                    let _ = sender.send(result);
                });
            }
            drop(sender);
            loop {
                match receiver.recv_timeout(REPORT_EVERY) {
                    // The others stop because of the first one that fails.
                    Ok(Err(stop)) if outcome.is_ok() => outcome = Err(stop),
                    Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
                let done = state.counts.lock().pieces.done_bytes();
                if outcome.is_ok() && progress(done).is_break() {
                    state.is_stopped.store(true, Ordering::Relaxed);
                    outcome = Err(Stop::Error(Error::Cancelled));
                }
            }
        });
        let counts = state.counts.into_inner();
        let saved = self.partial.save(self.facts, &counts.pieces);
        // The first failure says more.
        outcome?;
        saved?;
        Ok(counts.received)
    }

    /// One connection: takes pieces until there are none left.
    fn work(&self, state: &TransferState) -> Result<(), Stop> {
        let path = self.partial.data();
        let mut file =
            files::open_regular(path, OpenOptions::new().write(true)).map_err(file_error("write", path))?;
        let is_stopped = || state.is_stopped.load(Ordering::Relaxed);
        loop {
            let next = state.counts.lock().pieces.take();
            let Some(piece) = next else { return Ok(()) };
            let mut retries = Retries::new(self.hub.settings());
            loop {
                let before = state.counts.lock().pieces.done()[piece];
                match self.fetch(state, &mut file, piece) {
                    Ok(()) => break,
                    Err(Missed::NoRanges) => return Err(Stop::NoRanges),
                    Err(Missed::Failure(failure)) => {
                        if state.counts.lock().pieces.done()[piece] >= before.saturating_add(PROGRESS_BYTES) {
                            retries.reset();
                        }
                        retries.wait(failure, &is_stopped)?;
                    }
                }
            }
        }
    }

    /// One request for what is missing of a piece, or for the file where parts of several answers
    /// may be of several versions.
    fn fetch(&self, state: &TransferState, file: &mut File, piece: usize) -> Result<(), Missed> {
        let (missing, whole) = {
            let pieces = &state.counts.lock().pieces;
            (pieces.missing(piece), pieces.whole(piece))
        };
        let by_ranges = self.facts.allow_ranges();
        let answer = if by_ranges { self.hub.range(self.url, &missing) } else { self.hub.whole(self.url) }?;
        self.check_version(&answer.linked)?;
        let range = match answer.response.status().as_u16() {
            206 if by_ranges => {
                self.check_range(&answer, &missing)?;
                missing
            }
            // The whole file is fine when the whole file is wanted; what was there of it is written
            // again.
            200 if whole == (0..self.facts.bytes) => {
                self.check_length(&answer)?;
                state.counts.lock().pieces.restart(piece);
                whole
            }
            200 => return Err(Missed::NoRanges),
            status => {
                let reason = format!("status {status} to a request for a file");
                return Err(Failure::lasting(Error::Answer { url: shown(self.url), reason }).into());
            }
        };
        Ok(self.copy(state, answer, file, piece, range)?)
    }

    /// Refuses another version of the file than the one that was begun.
    fn check_version(&self, linked: &Linked) -> Result<(), Failure> {
        match (&linked.etag, &self.facts.etag) {
            (Some(found), Some(expected)) if found != expected => {
                Err(Failure::lasting(Error::Changed { file: self.name.to_owned() }))
            }
            (None, Some(_)) if self.facts.sha256.is_none() => {
                let reason = "it has no ETag, unlike the answer before it".to_owned();
                Err(Failure::lasting(Error::Answer { url: shown(self.url), reason }))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a whole file of another length.
    fn check_length(&self, answer: &Answer) -> Result<(), Failure> {
        let length = header(answer.response.headers(), "content-length");
        match length.and_then(|text| text.trim().parse::<u64>().ok()) {
            Some(length) if length != self.facts.bytes => {
                Err(Failure::lasting(Error::Changed { file: self.name.to_owned() }))
            }
            _ => Ok(()),
        }
    }

    /// Refuses another range than the one that was asked for.
    fn check_range(&self, answer: &Answer, asked: &Range<u64>) -> Result<(), Failure> {
        let text = header(answer.response.headers(), "content-range").unwrap_or_default();
        let parsed = text.strip_prefix("bytes ").and_then(|text| {
            let (range, total) = text.split_once('/')?;
            let (start, _) = range.split_once('-')?;
            Some((start.trim().parse::<u64>().ok()?, total.trim().parse::<u64>().ok()))
        });
        match parsed {
            Some((_, Some(total))) if total != self.facts.bytes => {
                Err(Failure::lasting(Error::Changed { file: self.name.to_owned() }))
            }
            Some((start, _)) if start == asked.start => Ok(()),
            _ => {
                let reason = format!("the range `{}`, asked for {asked:?}", crate::error::shortened(text));
                Err(Failure::lasting(Error::Answer { url: shown(self.url), reason }))
            }
        }
    }

    /// Writes the body of an answer to its place.
    fn copy(
        &self,
        state: &TransferState,
        mut answer: Answer,
        file: &mut File,
        piece: usize,
        range: Range<u64>,
    ) -> Result<(), Failure> {
        let settings = self.hub.settings();
        let unwritten = |source| Failure::lasting(file_error("write", self.partial.data())(source));
        let mut reader = answer.response.body_mut().as_reader();
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut left = range.end - range.start;
        let (mut since, mut of_window) = (Instant::now(), 0);
        file.seek(SeekFrom::Start(range.start)).map_err(unwritten)?;
        while left > 0 {
            let wanted = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let n_read = match reader.read(&mut buffer[..wanted]) {
                Ok(0) => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
                other => other,
            }
            .map_err(|source| {
                let bytes = range.end - range.start - left;
                Failure::passing(Error::Interrupted { url: shown(self.url), bytes, source })
            })?;
            file.write_all(&buffer[..n_read]).map_err(unwritten)?;
            left -= n_read as u64;
            of_window += n_read as u64;
            self.advance(state, piece, n_read as u64).map_err(Failure::lasting)?;
            if state.is_stopped.load(Ordering::Relaxed) {
                return Err(Failure::lasting(Error::Cancelled));
            }
            if since.elapsed() >= settings.slow_after {
                if of_window < settings.slow_bytes && left > 0 {
                    let seconds = since.elapsed().as_secs();
                    let slow = Error::Slow { url: shown(self.url), bytes: of_window, seconds };
                    return Err(Failure::passing(slow));
                }
                (since, of_window) = (Instant::now(), 0);
            }
        }
        Ok(())
    }

    /// Counts bytes that are written, and records them now and then.
    fn advance(&self, state: &TransferState, piece: usize, n_bytes: u64) -> Result<()> {
        let mut counts = state.counts.lock();
        counts.pieces.advance(piece, n_bytes);
        counts.received += n_bytes;
        if counts.recorded.elapsed() >= RECORD_EVERY {
            counts.recorded = Instant::now();
            self.partial.save(self.facts, &counts.pieces)?;
        }
        Ok(())
    }
}
