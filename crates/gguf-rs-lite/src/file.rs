//! Atomic writes of a model to a path.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufWriter},
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::{
    error::{Error, Result},
    header::TensorInfo,
    metadata::Metadata,
    writer::Writer,
};

/// Writer passed to the closure of [`write_file`].
pub type FileWriter = Writer<BufWriter<File>>;

/// Writes a file atomically: `fill` gets a [`Writer`] after the header and provides all tensor
/// data.
///
/// The file is written under a temporary name in the same folder, flushed to disk, and renamed to
/// `path` when complete. On failure the temporary file is removed and an existing file at `path` is
/// unchanged.
///
/// # Errors
/// Errors of [`Writer`], of the file system, and of `fill`.
pub fn write_file<E: From<Error>>(
    path: impl AsRef<Path>,
    metadata: &Metadata,
    tensors: impl IntoIterator<Item = TensorInfo>,
    fill: impl FnOnce(&mut FileWriter) -> Result<(), E>,
) -> Result<(), E> {
    write_atomic(path, |file| {
        let mut writer = Writer::new(file, metadata, tensors)?;
        fill(&mut writer)?;
        Ok(writer.finish()?)
    })
}

/// Writes any file atomically: `fill` gets a buffered file and gives it back.
///
/// As [`write_file`]: temporary name in the same folder, flush to disk, rename; on failure an
/// existing file is unchanged.
///
/// # Errors
/// Errors of the file system, and of `fill`.
pub fn write_atomic<E: From<Error>>(
    path: impl AsRef<Path>,
    fill: impl FnOnce(BufWriter<File>) -> Result<BufWriter<File>, E>,
) -> Result<(), E> {
    let path = path.as_ref();
    let (temporary, file) = Temporary::create(path)?;
    let file = fill(BufWriter::with_capacity(1 << 20, file))?;
    let file = file.into_inner().map_err(|e| Error::write(e.into_error()))?;
    file.sync_all().map_err(failed("write", &temporary.path))?;
    drop(file);
    temporary.rename_to(path)?;
    Ok(())
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::File { action, path: path.to_owned(), source }
}

/// Temporary file that is removed unless renamed to its final name.
struct Temporary {
    path: PathBuf,
    renamed: bool,
}

impl Temporary {
    /// Creates a new file beside `target`.
    fn create(target: &Path) -> Result<(Self, File)> {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let no_name = || failed("create", target)(io::ErrorKind::InvalidFilename.into());
        let mut name = std::ffi::OsString::from(".");
        name.push(target.file_name().ok_or_else(no_name)?);
        name.push(format!(".{}-{}.tmp", process::id(), SERIAL.fetch_add(1, Ordering::Relaxed)));
        let path = target.with_file_name(name);
        // Errors name the final path, which the caller knows.
        let file =
            OpenOptions::new().write(true).create_new(true).open(&path).map_err(failed("create", target))?;
        Ok((Self { path, renamed: false }, file))
    }

    fn rename_to(mut self, target: &Path) -> Result<()> {
        fs::rename(&self.path, target).map_err(failed("create", target))?;
        self.renamed = true;
        sync_parent(target).map_err(failed("write", target))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.renamed {
            // Nothing more can be done about a file that cannot be removed; the failure that led
            // here is reported.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Makes a rename durable. Only Unix can flush a folder.
#[cfg(unix)]
fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

#[cfg(not(unix))]
fn sync_parent(_: &Path) -> io::Result<()> {
    Ok(())
}
