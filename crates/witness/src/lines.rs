//! Lines of a file, with a limit of their length.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind};

use crate::line::MAX_LINE_BYTES;

/// Reader of lines; needs memory for one.
pub(crate) struct Lines {
    reader: BufReader<File>,
    line: Vec<u8>,
}

/// Next piece of a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<'a> {
    /// A line without its line feed.
    Line(&'a [u8]),
    /// A line that is longer than any of a log; skipped.
    TooLong,
    /// A last line without a line feed, of this many bytes.
    Torn(u64),
    End,
}

impl Lines {
    pub(crate) fn new(file: File) -> Self {
        Self { reader: BufReader::with_capacity(64 << 10, file), line: Vec::new() }
    }

    pub(crate) fn next(&mut self) -> io::Result<Next<'_>> {
        self.line.clear();
        let mut bytes: u64 = 0;
        loop {
            let chunk = match self.reader.fill_buf() {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                chunk => chunk?,
            };
            if chunk.is_empty() {
                return Ok(if bytes == 0 { Next::End } else { Next::Torn(bytes) });
            }
            let feed = chunk.iter().position(|&byte| byte == b'\n');
            let part = &chunk[..feed.unwrap_or(chunk.len())];
            bytes += part.len() as u64;
            if bytes < MAX_LINE_BYTES as u64 {
                self.line.extend(part);
            }
            let used = part.len() + usize::from(feed.is_some());
            self.reader.consume(used);
            if feed.is_some() {
                let fits = bytes < MAX_LINE_BYTES as u64;
                return Ok(if fits { Next::Line(&self.line) } else { Next::TooLong });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn lines_are_limited_and_torn_ones_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let long = vec![b'x'; MAX_LINE_BYTES];
        fs::write(&path, [b"one\n\n", &long[1..], b"\n", &long, b"\ntorn"].concat()).unwrap();
        let mut lines = Lines::new(File::open(&path).unwrap());
        assert_eq!(lines.next().unwrap(), Next::Line(b"one"));
        assert_eq!(lines.next().unwrap(), Next::Line(b""));
        assert_eq!(lines.next().unwrap(), Next::Line(&long[1..]));
        assert_eq!(lines.next().unwrap(), Next::TooLong);
        assert_eq!(lines.next().unwrap(), Next::Torn(4));
        assert_eq!(lines.next().unwrap(), Next::End);
    }
}
