//! Writing compact files.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use ruvllm_kernels::low_rank::FactorFormat;

use super::SECTIONS;
use super::header::{Header, Section, second_section};
use crate::adapter::Adapter;
use crate::error::{Error, Result};

/// Treatment of a file that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Existing {
    Keep,
    Replace,
}

/// Writes the file of an adapter, given in the formats of [`SECTIONS`]. It appears as a whole, or
/// not at all; on any failure nothing is left.
///
/// # Errors
/// [`Error::StoreWrite`]; of the kind [`io::ErrorKind::AlreadyExists`] for [`Existing::Keep`].
pub(crate) fn write(
    path: &Path,
    adapters: [&Adapter; 2],
    source: &str,
    added_unix: u64,
    existing: Existing,
) -> Result<()> {
    debug_assert!(adapters.iter().zip(SECTIONS).all(|(adapter, format)| adapter.layout().format() == format));
    let section =
        |adapter: &Adapter| Section { crc: crc32fast::hash(adapter.factors()), digests: *adapter.digests() };
    let header = Header {
        sections: adapters.map(section),
        added_unix,
        source: source.to_owned(),
        base: (**adapters[0].base()).clone(),
        layout: adapters[0].layout().clone(),
    };
    let header = header.encode().ok_or_else(|| Error::TooManySites { path: path.to_owned() })?;
    let temporary = Temporary::new(path);
    temporary
        .write(&header, adapters)
        .and_then(|()| temporary.publish(path, existing))
        .map_err(|source| Error::StoreWrite { path: path.to_owned(), source })
}

/// A file that is removed unless it was renamed.
struct Temporary(PathBuf);

impl Temporary {
    fn new(path: &Path) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self(path.with_extension(format!("{}-{number}.new", std::process::id())))
    }

    fn write(&self, header: &[u8], [f16, i8]: [&Adapter; 2]) -> io::Result<()> {
        // One of a process that had this id and was killed.
        let _ = fs::remove_file(&self.0);
        let mut file = OpenOptions::new().write(true).create_new(true).open(&self.0)?;
        let padding = second_section(header.len() as u64, f16.bytes()) - (header.len() + f16.bytes()) as u64;
        file.write_all(header)?;
        file.write_all(f16.factors())?;
        file.write_all(&[0; 64][..padding as usize])?;
        file.write_all(i8.factors())?;
        file.sync_all()
    }

    fn publish(&self, path: &Path, existing: Existing) -> io::Result<()> {
        match existing {
            Existing::Replace => fs::rename(&self.0, path)?,
            // A rename would replace what another process has written meanwhile.
            Existing::Keep => match fs::hard_link(&self.0, path) {
                Err(error) if error.kind() == io::ErrorKind::Unsupported && !path.exists() => {
                    fs::rename(&self.0, path)?;
                }
                linked => linked?,
            },
        }
        // Windows has no such call for folders.
        match path.parent().filter(|_| cfg!(unix)) {
            Some(folder) => File::open(folder)?.sync_all(),
            None => Ok(()),
        }
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

const _: () = assert!(matches!(SECTIONS, [FactorFormat::F16, FactorFormat::I8]));
