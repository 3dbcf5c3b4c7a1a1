//! SHA-256 of files.

use std::fmt::Write;
use std::fs::OpenOptions;
use std::io::Read;
use std::ops::ControlFlow;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::error::{Error, Result, file_error};
use crate::files;

/// True if `text` is a SHA-256 in lower-case hexadecimal.
pub(crate) fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// SHA-256 of a file in lower-case hexadecimal; `progress` hears the bytes of each step and may
/// stop the work.
pub(crate) fn sha256_of_file(
    path: &Path,
    progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<String> {
    let mut file =
        files::open_regular(path, OpenOptions::new().read(true)).map_err(file_error("read", path))?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let n_read = file.read(&mut buffer).map_err(file_error("read", path))?;
        if n_read == 0 {
            break;
        }
        hasher.update(&buffer[..n_read]);
        if progress(n_read as u64).is_break() {
            return Err(Error::Cancelled);
        }
    }
    let mut text = String::with_capacity(64);
    for byte in hasher.finalize() {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}
