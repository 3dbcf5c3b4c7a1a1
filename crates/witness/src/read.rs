//! Reading entries back, without verifying them.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result, io_error};
use crate::folder;
use crate::line::{Event, Parsed};
use crate::lines::{Lines, Next};
use crate::time::Timestamp;

/// Selection of lines. A selection by tenant or request has requests alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Earliest time, by the clock of the system.
    pub since: Option<Timestamp>,
    /// Time before which lines are selected.
    pub until: Option<Timestamp>,
    /// A tenant, with those below it: `org` selects `org/team`.
    pub tenant: Option<String>,
    /// Id of a request.
    pub request_id: Option<String>,
    /// True for requests alone.
    pub requests_only: bool,
}

/// A line of the log.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Line {
    /// Sequence number.
    pub seq: u64,
    /// Time by the clock of the system.
    pub time: Timestamp,
    /// Milliseconds since the log was opened, by a clock that never jumps.
    pub elapsed_ms: u64,
    /// The event.
    pub event: Event,
    /// The line as it is in the file, without its line feed.
    pub text: String,
}

/// Lines of a log, in its order.
///
/// A line that cannot be used is an error, and the next call goes on behind it.
pub struct LogReader {
    folder: PathBuf,
    filter: Filter,
    numbers: VecDeque<u64>,
    lines: Option<Lines>,
    file: String,
    line: u64,
}

impl LogReader {
    /// Opens the log in `folder`.
    ///
    /// # Errors
    /// A folder that cannot be read.
    pub fn open(folder: impl AsRef<Path>, filter: Filter) -> Result<Self> {
        let folder = folder.as_ref().to_owned();
        let numbers = folder::list(&folder)?.into();
        Ok(Self { folder, filter, numbers, lines: None, file: String::new(), line: 0 })
    }

    fn open_next(&mut self) -> Option<Result<()>> {
        let number = self.numbers.pop_front()?;
        (self.file, self.line) = (folder::file_name(number), 0);
        let path = self.folder.join(&self.file);
        Some(folder::regular(&path).map_err(io_error("read", &path)).map(|file| {
            self.lines = Some(Lines::new(file));
        }))
    }
}

impl Iterator for LogReader {
    type Item = Result<Line>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let Some(lines) = &mut self.lines else {
                match self.open_next()? {
                    Ok(()) => continue,
                    Err(error) => return Some(Err(error)),
                }
            };
            self.line += 1;
            let line = match lines.next() {
                Ok(Next::Line(line)) => parse(line).ok_or("not a line of a witness log"),
                Ok(Next::TooLong) => Err("longer than any line of a log"),
                // Of a writer at work, or of one that was killed.
                Ok(Next::Torn(_) | Next::End) => {
                    self.lines = None;
                    continue;
                }
                Err(source) => {
                    self.lines = None;
                    return Some(Err(io_error("read", &self.folder.join(&self.file))(source)));
                }
            };
            match line {
                Ok(line) if self.filter.selects(&line) => return Some(Ok(line)),
                Ok(_) => {}
                Err(reason) => {
                    return Some(Err(Error::Line { file: self.file.clone(), line: self.line, reason }));
                }
            }
        }
    }
}

fn parse(line: &[u8]) -> Option<Line> {
    let text = str::from_utf8(line).ok()?;
    let Parsed { seq, time, elapsed_ms, event, .. } = serde_json::from_str(text).ok()?;
    Some(Line { seq, time, elapsed_ms, event, text: text.to_owned() })
}

impl Filter {
    fn selects(&self, line: &Line) -> bool {
        let is_in_time = self.since.is_none_or(|since| line.time >= since)
            && self.until.is_none_or(|until| line.time < until);
        let is_selected = match &line.event {
            Event::Request(entry) => {
                let is_of_tenant = |tenant: &String| {
                    entry
                        .tenant
                        .strip_prefix(tenant.as_str())
                        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
                };
                self.tenant.as_ref().is_none_or(is_of_tenant)
                    && self.request_id.as_ref().is_none_or(|id| *id == entry.request_id)
            }
            _ => self.tenant.is_none() && self.request_id.is_none() && !self.requests_only,
        };
        is_in_time && is_selected
    }
}
