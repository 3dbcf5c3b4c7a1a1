//! Files that commands write: they appear complete or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::process;

/// Writes `bytes` beside `path` and renames them there once they are on the disk.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", process::id()));
    let temporary = path.with_file_name(name);
    let written = File::create_new(&temporary)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The first error is the one to report; a file that is left over names itself as temporary.
        let _ = fs::remove_file(&temporary);
    }
    written
}
