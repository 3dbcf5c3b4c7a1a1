//! Memory of model files: mapped or read, optionally locked.

use std::{
    fmt::Display,
    io::{self, Read},
    path::Path,
};

use memmap2::{Mmap, MmapMut};

use crate::{
    error::{Error, Result},
    map,
};

/// Memory options of an opened model file. Default: mapped, not locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileMemory {
    /// Maps the file: pages are read on first access and may be dropped again.
    ///
    /// The file must not be truncated or overwritten in place while the model is open, see
    /// [`Gguf::open`](crate::Gguf::open). If false, the whole file is read into private memory, and
    /// later changes of the file have no effect.
    pub mmap: bool,
    /// Locks the bytes in memory (`mlock`), so that they are read now and never paged out.
    ///
    /// Unix only; the process limit `RLIMIT_MEMLOCK` must allow it.
    pub mlock: bool,
}

impl Default for FileMemory {
    fn default() -> Self {
        Self { mmap: true, mlock: false }
    }
}

/// Bytes of a regular file.
pub(crate) fn load(path: &Path, memory: FileMemory) -> Result<Mmap> {
    let bytes = if memory.mmap { map::map_file(path)? } else { read(path)? };
    if memory.mlock {
        lock(&bytes, path.display())?;
    }
    Ok(bytes)
}

/// Copies `bytes` to private memory.
pub(crate) fn copy(bytes: &[u8], memory: FileMemory) -> Result<Mmap> {
    const NAME: &str = "the model in the program";
    let failed = |source| Error::File { action: "allocate memory for", path: NAME.into(), source };
    let mut copy = MmapMut::map_anon(bytes.len()).map_err(failed)?;
    copy.copy_from_slice(bytes);
    let copy = copy.make_read_only().map_err(failed)?;
    if memory.mlock {
        lock(&copy, NAME)?;
    }
    Ok(copy)
}

/// Reads a file into pages of its own: aligned as a mapping is, and refused by the system instead
/// of aborting the process if there is no memory for them.
fn read(path: &Path) -> Result<Mmap> {
    let failed = |action| move |source| Error::File { action, path: path.to_owned(), source };
    let mut file = map::open_file(path)?;
    let len = file.metadata().map_err(failed("read"))?.len();
    let len = usize::try_from(len).map_err(|_| failed("read")(io::ErrorKind::FileTooLarge.into()))?;
    read_from(&mut file, len).map_err(|(action, error)| failed(action)(error))
}

/// The next `len` bytes of `file`, or the step that failed: there is no memory for them, or the
/// file has become shorter.
fn read_from(file: &mut impl Read, len: usize) -> Result<Mmap, (&'static str, io::Error)> {
    let mut bytes = MmapMut::map_anon(len).map_err(|error| ("allocate memory for", error))?;
    file.read_exact(&mut bytes).map_err(|error| ("read", error))?;
    bytes.make_read_only().map_err(|error| ("read", error))
}

fn lock(bytes: &Mmap, name: impl Display) -> Result<()> {
    #[cfg(unix)]
    let locked = bytes.lock();
    #[cfg(not(unix))]
    let locked: io::Result<()> = Err(io::ErrorKind::Unsupported.into());
    let (name, bytes) = (name.to_string(), bytes.len() as u64);
    locked.map_err(|source| Error::Lock { name, bytes, limit: locked_limit(), source })
}

/// `RLIMIT_MEMLOCK` of this process in bytes (Linux only); `None` if unknown or unlimited.
fn locked_limit() -> Option<u64> {
    parse_limit(&std::fs::read_to_string("/proc/self/limits").ok()?)
}

fn parse_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: FileMemory = FileMemory { mmap: false, mlock: false };

    #[test]
    fn read_files_do_not_change_with_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights");
        for len in [0, 1, 4096, 10_000] {
            let content: Vec<u8> = (0..len).map(|i| i as u8).collect();
            std::fs::write(&path, &content).unwrap();
            let bytes = load(&path, READ).unwrap();
            // A mapping of this file would kill the process at the next access.
            std::fs::write(&path, "").unwrap();
            assert_eq!(&bytes[..], content);
            assert_eq!(bytes.as_ptr().addr() % 4096, 0);
        }
        assert!(matches!(load(folder.path(), READ), Err(Error::NotAFile { .. })));
        assert!(matches!(load(&folder.path().join("none"), READ), Err(Error::File { action: "open", .. })));
    }

    #[test]
    fn a_file_that_shrinks_or_has_no_room_is_an_error() {
        let content: &[u8] = &[7; 5000];
        assert_eq!(read_from(&mut { content }, 5000).unwrap()[..], *content);
        let (action, error) = read_from(&mut { content }, 5001).unwrap_err();
        assert_eq!((action, error.kind()), ("read", io::ErrorKind::UnexpectedEof));
        // More addresses than there are.
        let (action, _) = read_from(&mut { content }, usize::MAX >> 2).unwrap_err();
        assert_eq!(action, "allocate memory for");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn locked_files_are_counted_by_the_system() {
        let locked_kib = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap().trim();
            line.strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap()
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights");
        std::fs::write(&path, vec![7; 10_000]).unwrap();
        for mmap in [true, false] {
            let before = locked_kib();
            let bytes = load(&path, FileMemory { mmap, mlock: true }).unwrap();
            assert!(locked_kib() >= before + 8, "mmap {mmap}");
            assert_eq!(bytes[9_999], 7);
            drop(bytes);
            assert_eq!(locked_kib(), before);
        }
        let copied = copy(&[3; 5000], FileMemory { mmap: false, mlock: true }).unwrap();
        assert!(copied[..] == [3; 5000] && locked_kib() >= 4);
    }

    #[test]
    fn the_limit_is_read_and_named() {
        let limits = "Limit Soft Hard Units\nMax locked memory         8388608    unlimited  bytes\n";
        assert_eq!(parse_limit(limits), Some(8 << 20));
        assert_eq!(parse_limit("Max locked memory  unlimited  unlimited  bytes"), None);
        assert_eq!(parse_limit(""), None);
        let error = |limit| {
            let source = io::ErrorKind::OutOfMemory.into();
            Error::Lock { name: "m.gguf".into(), bytes: 9, limit, source }.to_string()
        };
        assert_eq!(
            error(Some(5)),
            "cannot lock 9 bytes of m.gguf in memory: the limit of locked memory (RLIMIT_MEMLOCK) is 5 bytes; \
             raise it with `ulimit -l`"
        );
        assert!(error(None).contains("(RLIMIT_MEMLOCK) may be too low; raise it with `ulimit -l`"));
    }
}
