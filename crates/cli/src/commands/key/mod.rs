//! `ruvllm key`: API keys of `ruvllm serve`.

pub(crate) mod list;
pub(crate) mod new;
pub(crate) mod rm;
pub(crate) mod rotate;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::{Args, Subcommand};
use ruvllm_server::auth::{KeyFile, KeysError, Moment};

use crate::error::{Error, Result};
use crate::result_file::{self, Readers};
use crate::user_folders;

/// Make, list and remove API keys of `ruvllm serve`
#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    New(new::NewArgs),
    List(list::ListArgs),
    Rotate(rotate::RotateArgs),
    Rm(rm::RmArgs),
}

/// The keys file of a command.
#[derive(Debug, Args)]
pub(crate) struct FileArgs {
    /// Keys file [default: ruvllm/keys.toml in the user's configuration folder]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

impl FileArgs {
    /// Path of the file.
    ///
    /// # Errors
    /// [`Error::NoKeysFolder`].
    fn path(&self) -> Result<PathBuf> {
        let default = || user_folders::config().map(|folder| folder.join("keys.toml"));
        self.file.clone().or_else(default).ok_or(Error::NoKeysFolder)
    }
}

/// Reads a keys file; one that does not exist has no keys.
///
/// # Errors
/// [`Error::Keys`].
fn read(path: &Path) -> Result<KeyFile> {
    match KeyFile::read(path) {
        Err(KeysError::Read { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            Ok(KeyFile::default())
        }
        file => Ok(file?),
    }
}

/// Changes a keys file. Another command that changes it waits until this one has ended.
///
/// # Errors
/// [`Error::WriteFile`], and the errors of reading and changing it.
fn update<T>(path: &Path, change: impl FnOnce(&mut KeyFile) -> Result<T>) -> Result<T> {
    let failed = |source| Error::WriteFile { path: path.to_owned(), source };
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        user_folders::make_private(folder).map_err(failed)?;
    }
    // A file of its own: the keys file is replaced by renaming.
    let lock = File::create(path.with_extension("lock")).map_err(failed)?;
    lock.lock().map_err(failed)?;
    let mut file = read(path)?;
    let changed = change(&mut file)?;
    write(path, &file)?;
    Ok(changed)
}

/// Replaces a keys file; a new one is readable by its owner alone.
///
/// # Errors
/// [`Error::WriteFile`].
fn write(path: &Path, file: &KeyFile) -> Result<()> {
    let failed = |source| Error::WriteFile { path: path.to_owned(), source };
    result_file::write(path, file.to_text().as_bytes(), Readers::Owner).map_err(failed)
}

fn now() -> Moment {
    Moment::new(SystemTime::now())
}
