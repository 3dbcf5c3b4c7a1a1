//! The archive of a pack: a tar file (ustar) without compression, in one form for its files.
//!
//! Manifest, signature, then the kernel files in the order of their paths; every header has the
//! mode 0644 and zeros for owner and time. Whoever reads an archive writes it again and compares,
//! so that no byte of it is without meaning.

use std::io::{self, Read};

use tar::{Archive, Builder, EntryType, Header};

use crate::error::{Error, Result, excerpt, within};
use crate::limits::MAX_ARCHIVE_BYTES;
use crate::name::check_path;

/// A file of an archive before its contents are read.
pub(crate) struct ArchiveEntry<'a, 'b> {
    /// Its path, which is a path of packs.
    pub(crate) path: String,
    /// Its bytes by the header.
    pub(crate) bytes: u64,
    entry: tar::Entry<'a, &'b [u8]>,
}

impl ArchiveEntry<'_, '_> {
    /// Reads the contents, if they are at most `most` bytes.
    ///
    /// # Errors
    /// [`Error::Limit`] before anything is read; [`Error::Archive`] for an archive that ends
    /// before.
    pub(crate) fn read(&mut self, most: u64) -> Result<Vec<u8>> {
        within(format!("{} (bytes)", self.path), self.bytes, most)?;
        let mut bytes = Vec::new();
        self.entry.read_to_end(&mut bytes).map_err(damaged)?;
        if bytes.len() as u64 != self.bytes {
            return Err(damaged(io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(bytes)
    }
}

/// Calls `each` with the files of an archive, in their order.
///
/// # Errors
/// [`Error::Limit`], [`Error::Archive`], [`Error::EntryType`], [`Error::Path`], and those of
/// `each`.
pub(crate) fn read(bytes: &[u8], mut each: impl FnMut(ArchiveEntry<'_, '_>) -> Result<()>) -> Result<()> {
    within("the archive (bytes)", bytes.len() as u64, MAX_ARCHIVE_BYTES)?;
    let mut archive = Archive::new(bytes);
    // Raw: an extension header, which can hold a path of any length, is an entry of its type here.
    for entry in archive.entries().map_err(damaged)?.raw(true) {
        let entry = entry.map_err(damaged)?;
        let path = String::from_utf8(entry.path_bytes().into_owned());
        let path = path.map_err(|error| Error::Path {
            path: excerpt(&String::from_utf8_lossy(error.as_bytes())),
            why: "it is not UTF-8",
        })?;
        let kind = entry.header().entry_type();
        if kind != EntryType::Regular {
            return Err(Error::EntryType { path: excerpt(&path), kind: char::from(kind.as_byte()) });
        }
        check_path(&path)?;
        let bytes = entry.header().entry_size().map_err(damaged)?;
        each(ArchiveEntry { path, bytes, entry })?;
    }
    Ok(())
}

/// The archive of files.
///
/// # Errors
/// [`Error::Archive`] does not occur for paths of packs.
pub(crate) fn write<'a>(files: impl Iterator<Item = (&'a str, &'a [u8])>) -> Result<Vec<u8>> {
    let mut builder = Builder::new(Vec::new());
    for (path, bytes) in files {
        let mut header = Header::new_ustar();
        header.set_path(path).map_err(damaged)?;
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_device_major(0).and_then(|()| header.set_device_minor(0)).map_err(damaged)?;
        header.set_size(bytes.len() as u64);
        set_checksum(&mut header).map_err(damaged)?;
        builder.append(&header, bytes).map_err(damaged)?;
    }
    builder.into_inner().map_err(damaged)
}

/// Sets the checksum of a header in the digits that GNU tar writes: six, a zero and a space.
pub(crate) fn set_checksum(header: &mut Header) -> io::Result<()> {
    header.set_cksum();
    let digits = format!("{:06o}\0 ", header.cksum()?);
    // A header has 512 bytes, so that the sum has six digits at most.
    header.as_old_mut().cksum.copy_from_slice(&digits.as_bytes()[..8]);
    Ok(())
}

fn damaged(source: io::Error) -> Error {
    Error::Archive { source }
}
