//! Verification: the hash chain over all files, signatures, and copies of checkpoints.

use std::fs;
use std::path::{Path, PathBuf};

use crate::digest::Digest;
use crate::error::{Result, io_error};
use crate::finding::{Fault, Finding};
use crate::folder;
use crate::key::PublicKey;
use crate::line::{self, Checkpoint, Dropped, FORMAT, FileStart, Head};
use crate::lines::{Lines, Next};
use crate::time::Timestamp;

/// Findings that a report lists; further ones are counted.
const MAX_FINDINGS: usize = 100;

/// Settings of [`verify`].
#[derive(Debug, Clone, Default)]
pub struct VerifyOptions {
    /// Keys whose checkpoints are valid. Without any, signatures are not verified.
    pub keys: Vec<PublicKey>,
    /// Number of the first file, if older ones were archived; `None` is 1.
    pub first_file: Option<u64>,
    /// Copies of `checkpoint.json` that were kept elsewhere.
    pub checkpoints: Vec<PathBuf>,
}

/// Result of [`verify`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Files.
    pub files: u64,
    /// Lines of all kinds.
    pub lines: u64,
    /// Requests.
    pub requests: u64,
    /// Requests that were dropped because the queue was full.
    pub dropped: u64,
    /// Valid checkpoints.
    pub checkpoints: u64,
    /// True if signatures were verified.
    pub has_keys: bool,
    /// Sequence number of the last line.
    pub last_seq: u64,
    /// Sequence number of the last valid checkpoint.
    pub last_checkpoint: Option<u64>,
    /// Times of the first and the last line, by the clock of the system.
    pub times: Option<(Timestamp, Timestamp)>,
    /// True if a writer has the log open; its last line may be incomplete.
    pub is_open: bool,
    /// Damage, in the order of the log; at most 100.
    pub findings: Vec<Finding>,
    /// Number of all findings.
    pub finding_count: u64,
}

impl Report {
    /// True without findings.
    pub fn is_valid(&self) -> bool {
        self.finding_count == 0
    }

    /// Lines behind the last valid checkpoint: nothing proves that none is missing behind them.
    pub fn uncovered(&self) -> u64 {
        self.last_seq.saturating_sub(self.last_checkpoint.unwrap_or(0)).min(self.lines)
    }
}

/// Verifies the log in `folder`, with memory for one line.
///
/// # Errors
/// A file that cannot be read. Damage is in the report.
pub fn verify(folder: impl AsRef<Path>, options: &VerifyOptions) -> Result<Report> {
    let folder = folder.as_ref();
    let mut check = Check::new(options);
    check.report.is_open = folder::is_open(folder);
    // Read before the lines: a writer that goes on is never behind its checkpoint.
    let has_copy = check.read_copies(folder)?;
    let numbers = folder::list(folder)?;
    let first = options.first_file.unwrap_or(1);
    let mut expected = first;
    for &number in numbers.iter().filter(|&&number| number >= first) {
        if number > expected {
            check.find_in(&folder::file_name(expected), Fault::NoFile);
        }
        expected = number.saturating_add(1);
        check.file(folder, number, Some(&number) == numbers.last())?;
    }
    if expected == first {
        check.find_in(&folder::file_name(first), Fault::NoFile);
    }
    check.end(has_copy);
    Ok(check.report)
}

/// Successor that the chain expects.
struct Expected {
    seq: u64,
    /// Hashes that `prev` may be; empty for any, behind a line that has none.
    prev: Vec<Digest>,
}

/// Copy of a checkpoint.
struct Copy {
    file: String,
    seq: u64,
    bytes: Vec<u8>,
    is_met: bool,
}

struct Check<'a> {
    options: &'a VerifyOptions,
    report: Report,
    expected: Option<Expected>,
    copies: Vec<Copy>,
    has_checkpoint_line: bool,
    file: String,
    line: u64,
}

impl<'a> Check<'a> {
    fn new(options: &'a VerifyOptions) -> Self {
        let begins = options.first_file.is_none_or(|first| first <= 1);
        Self {
            options,
            report: Report { has_keys: !options.keys.is_empty(), ..Report::default() },
            expected: begins.then(|| Expected { seq: 1, prev: vec![Digest::ZERO] }),
            copies: Vec::new(),
            has_checkpoint_line: false,
            file: String::new(),
            line: 0,
        }
    }

    /// Reads copies of checkpoints. True if there is that beside the log.
    fn read_copies(&mut self, folder: &Path) -> Result<bool> {
        let beside = folder.join(folder::CHECKPOINT);
        let mut has_copy = false;
        for path in [&beside].into_iter().chain(&self.options.checkpoints) {
            let is_beside = path == &beside;
            let file = if is_beside { folder::CHECKPOINT.to_owned() } else { path.display().to_string() };
            let Some(bytes) = folder::checkpoint(path)? else {
                if !is_beside {
                    fs::metadata(path).map_err(io_error("read", path))?;
                }
                continue;
            };
            has_copy |= is_beside;
            let line = bytes.strip_suffix(b"\n").unwrap_or(b"");
            let is_sound = line::hashes(line).is_some_and(|(computed, stated)| computed == stated);
            match serde_json::from_slice::<Head>(line) {
                Ok(head) if is_sound && head.kind == "checkpoint" => {
                    self.copies.push(Copy { file, seq: head.seq, bytes, is_met: false });
                }
                _ => self.find_in(&file, Fault::CheckpointFile),
            }
        }
        Ok(has_copy)
    }

    fn file(&mut self, folder: &Path, number: u64, is_last: bool) -> Result<()> {
        (self.file, self.line) = (folder::file_name(number), 0);
        self.report.files += 1;
        let path = folder.join(&self.file);
        let mut lines = Lines::new(folder::regular(&path).map_err(io_error("read", &path))?);
        loop {
            let next = lines.next().map_err(io_error("read", &path))?;
            self.line += 1;
            match next {
                Next::Line(line) => self.check_line(line, number),
                Next::TooLong => self.skip_line(Fault::TooLong),
                Next::Torn(_) if is_last && self.report.is_open => {}
                Next::Torn(bytes) => self.find(None, Fault::Torn { bytes }),
                Next::End if self.line == 1 && !(is_last && self.report.is_open) => {
                    self.find(None, Fault::WrongFile);
                    return Ok(());
                }
                Next::End => return Ok(()),
            }
        }
    }

    fn check_line(&mut self, line: &[u8], number: u64) {
        let Some((computed, stated)) = line::hashes(line) else { return self.skip_line(Fault::NotALine) };
        if computed != stated {
            self.skip_line(Fault::Altered);
            // The successor was made for the original: either part may be it.
            self.expected.iter_mut().for_each(|expected| expected.prev = vec![computed, stated]);
            return;
        }
        let Ok(head) = serde_json::from_slice::<Head>(line) else { return self.skip_line(Fault::NotALine) };
        self.check_place(&head);
        self.expected = Some(Expected { seq: head.seq.saturating_add(1), prev: vec![computed] });
        let report = &mut self.report;
        report.lines += 1;
        report.last_seq = head.seq;
        report.times = Some((report.times.map_or(head.time, |(first, _)| first), head.time));
        if self.line == 1 {
            self.check_first(&head, line, number);
        }
        match head.kind.as_str() {
            "request" => self.report.requests += 1,
            "dropped" => match serde_json::from_slice::<Dropped>(line) {
                Ok(dropped) => self.report.dropped = self.report.dropped.saturating_add(dropped.count),
                Err(_) => self.find(Some(head.seq), Fault::NotALine),
            },
            "checkpoint" => self.check_checkpoint(&head, line),
            _ => {}
        }
    }

    /// Compares sequence number and predecessor with those expected.
    fn check_place(&mut self, head: &Head) {
        let Some(Expected { seq, prev }) = &self.expected else { return };
        let seq = *seq;
        let fault = if head.seq > seq {
            Fault::Missing { from: seq, to: head.seq - 1 }
        } else if head.seq < seq {
            Fault::OutOfOrder
        } else if prev.is_empty() || prev.contains(&head.prev) {
            return;
        } else {
            Fault::Replaced
        };
        self.find(Some(head.seq), fault);
    }

    /// Checks the first line of a file.
    fn check_first(&mut self, head: &Head, line: &[u8], number: u64) {
        match serde_json::from_slice::<FileStart>(line) {
            Ok(start) if head.kind == "file" && start.format > FORMAT => {
                self.find(Some(head.seq), Fault::Format(start.format));
            }
            Ok(start) if head.kind == "file" && start.file == number => {}
            _ => self.find(Some(head.seq), Fault::WrongFile),
        }
    }

    fn check_checkpoint(&mut self, head: &Head, line: &[u8]) {
        self.has_checkpoint_line = true;
        for copy in self.copies.iter_mut().filter(|copy| copy.seq == head.seq) {
            copy.is_met |= copy.bytes.strip_suffix(b"\n") == Some(line);
        }
        let Ok(Checkpoint { key_id, signature }) = serde_json::from_slice(line) else {
            return self.find(Some(head.seq), Fault::NotALine);
        };
        if !self.options.keys.is_empty() {
            let Some(key) = self.options.keys.iter().find(|key| key.id() == key_id) else {
                return self.find(Some(head.seq), Fault::UnknownKey(key_id));
            };
            let message = line::message(head.seq, head.prev, head.time, key_id);
            if !key.verifies(&message, &signature) {
                return self.find(Some(head.seq), Fault::Signature(key_id));
            }
        }
        self.report.checkpoints += 1;
        self.report.last_checkpoint = Some(head.seq);
    }

    /// Faults that show at the end of the log.
    fn end(&mut self, has_copy: bool) {
        let last_seq = self.report.last_seq;
        for copy in std::mem::take(&mut self.copies) {
            if !copy.is_met {
                let checkpoint_seq = copy.seq;
                let is_cut = checkpoint_seq > last_seq;
                let fault = if is_cut {
                    Fault::CutTail { checkpoint_seq, last_seq }
                } else {
                    Fault::CheckpointDiffers
                };
                self.find_in(&copy.file, fault);
            }
        }
        if self.has_checkpoint_line && !has_copy {
            self.find_in(folder::CHECKPOINT, Fault::NoCheckpointFile);
        }
        if self.report.has_keys && self.report.checkpoints == 0 {
            self.find_in(folder::CHECKPOINT, Fault::NoCheckpoint);
        }
    }

    /// Notes a line without a usable place; the next one may be its successor.
    fn skip_line(&mut self, fault: Fault) {
        let seq = self.expected.as_ref().map(|expected| expected.seq);
        self.find(seq, fault);
        self.report.lines += 1;
        if let Some(expected) = &mut self.expected {
            expected.seq = expected.seq.saturating_add(1);
            expected.prev.clear();
        }
    }

    fn find(&mut self, seq: Option<u64>, fault: Fault) {
        let (file, line) = (self.file.clone(), Some(self.line));
        self.push(Finding { file, line, seq, fault });
    }

    fn find_in(&mut self, file: &str, fault: Fault) {
        self.push(Finding { file: file.to_owned(), line: None, seq: None, fault });
    }

    fn push(&mut self, finding: Finding) {
        self.report.finding_count += 1;
        if self.report.findings.len() < MAX_FINDINGS {
            self.report.findings.push(finding);
        }
    }
}
