//! Bounded reads of the small files beside weights: configurations, vocabularies, templates.

use std::{
    fs::{self, File},
    io::{self, ErrorKind, Read},
    path::Path,
};

/// Reads a regular file of at most `limit` bytes.
///
/// For untrusted files: memory and time are bounded whatever length the file reports, and while it
/// grows.
///
/// # Errors
/// Errors of the operating system; [`ErrorKind::FileTooLarge`] for a file of more than `limit`
/// bytes (no more than these are read); [`ErrorKind::InvalidInput`] for anything but a regular
/// file, such as a pipe, which could block forever.
///
/// ```
/// let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
/// assert!(gguf_rs_lite::read_bounded(&path, 1 << 20)?.starts_with(b"[package]"));
/// let error = gguf_rs_lite::read_bounded(&path, 9).expect_err("it is longer");
/// assert_eq!(error.kind(), std::io::ErrorKind::FileTooLarge);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn read_bounded(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    // Checked before opening, because opening a pipe would block.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        let reason = format!("it is larger than {limit} bytes");
        return Err(io::Error::new(ErrorKind::FileTooLarge, reason));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_the_longest_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        fs::write(&path, [7; 10]).expect("written");
        assert_eq!(read_bounded(&path, 10).expect("it fits"), [7; 10]);
        assert_eq!(read_bounded(&path, 9).map_err(|error| error.kind()), Err(ErrorKind::FileTooLarge));
        assert_eq!(read_bounded(&path, u64::MAX).expect("it fits").len(), 10);
        let missing = read_bounded(&folder.path().join("none"), 10);
        assert_eq!(missing.map_err(|error| error.kind()), Err(ErrorKind::NotFound));
    }

    #[test]
    fn only_regular_files_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let refused = |path: &Path| read_bounded(path, 10).expect_err("it is refused").kind();
        assert_eq!(refused(folder.path()), ErrorKind::InvalidInput);
        #[cfg(unix)]
        assert_eq!(refused(Path::new("/dev/zero")), ErrorKind::InvalidInput);
    }
}
