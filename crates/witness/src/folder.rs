//! Files of a log in its folder.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::error::{Error, Result, io_error};
use crate::line::MAX_LINE_BYTES;

/// The latest checkpoint: a copy of its line.
pub(crate) const CHECKPOINT: &str = "checkpoint.json";
const LOCK: &str = "witness.lock";

/// Name of the file with this number; the first is 1.
pub(crate) fn file_name(number: u64) -> String {
    format!("witness-{number:08}.jsonl")
}

/// Number of a file by its name.
fn file_number(name: &str) -> Option<u64> {
    let number = name.strip_prefix("witness-")?.strip_suffix(".jsonl")?.parse().ok()?;
    (file_name(number) == name && number < u64::MAX / 2).then_some(number)
}

/// Numbers of the log's files, in order.
pub(crate) fn list(folder: &Path) -> Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(folder).map_err(io_error("list", folder))? {
        let name = entry.map_err(io_error("list", folder))?.file_name();
        numbers.extend(name.to_str().and_then(file_number));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Creates the folder of a log; on Unix for its owner alone.
pub(crate) fn create(folder: &Path) -> Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder).map_err(io_error("create", folder))
}

/// Options for files of the log: on Unix for their owner alone.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Takes the lock of a writer, which lasts until the file is closed or the process ends.
pub(crate) fn lock(folder: &Path) -> Result<File> {
    let path = folder.join(LOCK);
    let file =
        private().write(true).create(true).truncate(false).open(&path).map_err(io_error("create", &path))?;
    // A reader that asks if there is a writer has the lock for an instant.
    for _ in 0..20 {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(10)),
            Err(TryLockError::Error(source)) => return Err(io_error("lock", &path)(source)),
        }
    }
    Err(Error::InUse { folder: folder.to_owned() })
}

/// True if a writer has the log open.
pub(crate) fn is_open(folder: &Path) -> bool {
    let lock = regular(&folder.join(LOCK)).map(|file| file.try_lock_shared());
    matches!(lock, Ok(Err(TryLockError::WouldBlock)))
}

/// Opens a regular file for reading; a pipe would wait for its writer.
pub(crate) fn regular(path: &Path) -> io::Result<File> {
    if fs::metadata(path)?.is_file() { File::open(path) } else { Err(ErrorKind::InvalidInput.into()) }
}

/// Bytes of the latest checkpoint; `None` without one. One that is too long is cut, which makes it
/// no line.
pub(crate) fn checkpoint(path: &Path) -> Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    match regular(path).and_then(|file| file.take(4096).read_to_end(&mut bytes)) {
        Ok(_) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error("read", path)(error)),
    }
}

/// Replaces the latest checkpoint: the file is the former one or the new one.
pub(crate) fn replace_checkpoint(folder: &Path, line: &[u8]) -> io::Result<()> {
    let (path, temporary) = (folder.join(CHECKPOINT), folder.join("checkpoint.new"));
    let mut file = private().write(true).create(true).truncate(true).open(&temporary)?;
    file.write_all(line).and_then(|()| file.sync_all())?;
    fs::rename(&temporary, &path)?;
    sync(folder)
}

/// Makes names in the folder survive a power cut.
pub(crate) fn sync(folder: &Path) -> io::Result<()> {
    // Windows has no such call for folders.
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

/// A file that is appended to. A seam for tests of disks that are full.
pub(crate) trait LogFile: Send {
    /// Appends bytes; after an error any part of them may be in the file.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Cuts the file back to `length` bytes.
    fn cut(&mut self, length: u64) -> io::Result<()>;
    /// Waits until all bytes are on the disk.
    fn sync(&mut self) -> io::Result<()>;
}

/// Opens a file for appending and creates it if it is absent.
pub(crate) type OpenFile = Box<dyn FnMut(&Path) -> io::Result<Box<dyn LogFile>> + Send>;

/// Opens files of the file system.
pub(crate) fn open_file(path: &Path) -> io::Result<Box<dyn LogFile>> {
    // Without O_APPEND, which on Windows forbids to cut.
    let mut file = private().write(true).create(true).truncate(false).open(path)?;
    file.seek(SeekFrom::End(0))?;
    Ok(Box::new(file))
}

impl LogFile for File {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn cut(&mut self, length: u64) -> io::Result<()> {
        self.set_len(length)?;
        self.seek(SeekFrom::Start(length)).map(drop)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}

/// End of a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    /// Bytes of its complete lines.
    pub(crate) complete: u64,
    /// Bytes behind them, of a line without an end.
    pub(crate) torn: u64,
    /// The last complete line without its line feed; `None` without one, or if it is longer than
    /// any line of a log.
    pub(crate) last_line: Option<Vec<u8>>,
}

/// Reads the end of a file, backwards.
pub(crate) fn tail(file: &mut File) -> io::Result<Tail> {
    let length = file.seek(SeekFrom::End(0))?;
    let complete = last_feed(file, length, u64::MAX)?.map_or(0, |at| at + 1);
    let mut last_line = None;
    if complete > 0 {
        let begin = match last_feed(file, complete - 1, MAX_LINE_BYTES as u64)? {
            Some(feed) => feed + 1,
            None => 0,
        };
        let bytes = complete - 1 - begin;
        if bytes < MAX_LINE_BYTES as u64 {
            file.seek(SeekFrom::Start(begin))?;
            let mut line = Vec::new();
            file.take(bytes).read_to_end(&mut line)?;
            last_line = Some(line);
        }
    }
    Ok(Tail { complete, torn: length - complete, last_line })
}

/// Place of the last line feed in the `within` bytes before `end`.
fn last_feed(file: &mut File, end: u64, within: u64) -> io::Result<Option<u64>> {
    const CHUNK: u64 = 64 << 10;
    let (mut end, least) = (end, end.saturating_sub(within));
    let mut chunk = Vec::new();
    while end > least {
        let begin = end.saturating_sub(CHUNK).max(least);
        file.seek(SeekFrom::Start(begin))?;
        chunk.clear();
        file.take(end - begin).read_to_end(&mut chunk)?;
        if let Some(at) = chunk.iter().rposition(|&byte| byte == b'\n') {
            return Ok(Some(begin + at as u64));
        }
        end = begin;
    }
    Ok(None)
}

/// Path of a file for the bytes of an incomplete line, in a folder where several may lie.
pub(crate) fn torn_path(folder: &Path, number: u64) -> PathBuf {
    let path = |n: u64| folder.join(format!("torn-{number:08}-{n}.part"));
    (1..).map(path).find(|path| fs::symlink_metadata(path).is_err()).unwrap_or_else(|| path(0))
}

/// Moves the bytes of `file` from `complete` on to a file of their own.
pub(crate) fn move_torn(from: &Path, complete: u64, to: &Path) -> io::Result<()> {
    let mut source = OpenOptions::new().read(true).write(true).open(from)?;
    source.seek(SeekFrom::Start(complete))?;
    let mut part = private().write(true).create_new(true).open(to)?;
    io::copy(&mut source, &mut part)?;
    part.sync_all()?;
    source.set_len(complete)?;
    source.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_in_order_and_other_names_are_ignored() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["witness-00000010.jsonl", "witness-00000002.jsonl", "witness-3.jsonl", "x", CHECKPOINT] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(list(folder.path()).unwrap(), [2, 10]);
        assert_eq!(file_number("witness-123456789.jsonl"), Some(123_456_789));
        assert_eq!(file_number("witness-+0000001.jsonl"), None);
        assert_eq!(file_number("witness-18446744073709551615.jsonl"), None);
    }

    #[test]
    fn the_end_of_a_file_is_found_backwards() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let long = "x".repeat(200_000);
        for (text, complete, torn, last_line) in [
            (String::new(), 0, 0, None),
            ("torn".to_owned(), 0, 4, None),
            ("\n".to_owned(), 1, 0, Some("")),
            ("one\n".to_owned(), 4, 0, Some("one")),
            ("one\ntwo\nto".to_owned(), 8, 2, Some("two")),
            (format!("one\n{long}\n{long}"), 200_005, 200_000, Some(long.as_str())),
        ] {
            fs::write(&path, &text).unwrap();
            let expected = Tail { complete, torn, last_line: last_line.map(|line| line.as_bytes().to_vec()) };
            assert_eq!(tail(&mut File::open(&path).unwrap()).unwrap(), expected);
        }
        fs::write(&path, vec![b'x'; MAX_LINE_BYTES]).unwrap();
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"\n").unwrap();
        let found = tail(&mut File::open(&path).unwrap()).unwrap();
        assert_eq!((found.complete, found.last_line), (MAX_LINE_BYTES as u64 + 1, None));
    }

    #[test]
    fn a_log_has_one_writer() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!is_open(folder.path()));
        let held = lock(folder.path()).unwrap();
        assert!(is_open(folder.path()));
        assert!(matches!(lock(folder.path()), Err(Error::InUse { .. })));
        drop(held);
        assert!(!is_open(folder.path()));
        lock(folder.path()).unwrap();
    }
}
