//! Compiled modules on disk.
//!
//! A file per module and settings of the engine: a header with both digests, the length and the
//! SHA-256 of everything else, then the code. A file that does not pass every check is no error:
//! the module is compiled again, and the file replaced.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use ruvllm_witness::Digest;
use wasmtime::{Engine, Module};

use super::compiled::{self, OwnCode};
use crate::error::{Error, Result, io_error};
use crate::files;
use crate::sandbox::fault::Fault;
use crate::sandbox::interface::CacheCounts;

/// First bytes of a file: its kind and version.
const MAGIC: &[u8; 8] = b"rvkcode1";
/// Bytes before the code: magic, settings, module, length, SHA-256.
const HEADER: usize = 8 + 32 + 32 + 8 + 32;
/// Most bytes of a file.
const MAX_BYTES: u64 = 256 << 20;

/// Folder of compiled modules.
#[derive(Debug)]
pub(super) struct Cache {
    folder: PathBuf,
    /// User of this process, where the system has users.
    owner: Option<u32>,
    hits: AtomicU64,
    misses: AtomicU64,
    rejected: AtomicU64,
}

impl Cache {
    /// Opens or creates the folder.
    ///
    /// # Errors
    /// [`Error::Writable`] for a folder that others may change, [`Error::OtherOwner`],
    /// [`Error::NotRegular`] for a link, [`Error::Io`].
    pub(super) fn open(folder: &Path) -> Result<Self> {
        files::create_folder(folder)?;
        let [hits, misses, rejected] = std::array::from_fn(|_| AtomicU64::new(0));
        let mut cache = Self { folder: folder.to_owned(), owner: None, hits, misses, rejected };
        cache.check_folder()?;
        // A file of this process has its user.
        let probe = cache.temporary();
        files::write_new(&probe, &[])?;
        let owner = owner(&probe);
        files::remove_file(&probe)?;
        cache.owner = owner?;
        cache.check_folder()?;
        Ok(cache)
    }

    /// Checks that the folder is one, and that this user alone may change it.
    fn check_folder(&self) -> Result<()> {
        let folder = &self.folder;
        if folder.is_symlink() || !folder.is_dir() {
            return Err(Error::NotRegular { path: folder.clone() });
        }
        self.check_owner(folder)
    }

    /// Checks that a file or folder is of this user, and that nobody else may change it.
    fn check_owner(&self, path: &Path) -> Result<()> {
        files::check_private(path)?;
        if self.owner.is_some() && owner(path)? != self.owner {
            return Err(Error::OtherOwner { path: path.to_owned() });
        }
        Ok(())
    }

    /// Name of a file that no other call uses.
    fn temporary(&self) -> PathBuf {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        self.folder.join(format!("new-{}-{number}", process::id()))
    }

    /// The compiled module: from its file, or compiled and written.
    ///
    /// # Errors
    /// [`Fault::Malformed`] within [`Error::Kernel`] for modules that cannot be compiled;
    /// [`Error::Writable`] if others may change the folder by now; [`Error::Io`] if the file cannot
    /// be written.
    pub(super) fn module(&self, engine: &Engine, kernel: &str, wasm: &[u8]) -> Result<Module> {
        self.check_folder()?;
        let key = Key { module: Digest::of(wasm), settings: super::settings::digest(engine) };
        let path = self.folder.join(key.file_name());
        let (counter, found) = match self.read(&path, &key, engine) {
            Ok(module) => (&self.hits, Some(module)),
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => (&self.misses, None),
            Err(_) => (&self.rejected, None),
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if let Some(module) = found {
            return Ok(module);
        }
        let module = compile(engine, kernel, wasm)?;
        let code = module.serialize().map_err(|error| malformed(kernel, &error))?;
        self.write(&path, &key.file(&code))?;
        Ok(module)
    }

    /// Replaces a file. Several processes may do so at a time: one file of them stays.
    fn write(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        let temporary = self.temporary();
        let written = files::replace(path, &temporary, bytes);
        if written.is_err() {
            // The first error is the one to know.
            let _ = files::remove_file(&temporary);
        }
        written
    }

    /// Loads a file that passes all checks.
    fn read(&self, path: &Path, key: &Key, engine: &Engine) -> Result<Module> {
        let bytes = files::read(path, MAX_BYTES)?;
        self.check_owner(path)?;
        let refused = || Error::NotRegular { path: path.to_owned() };
        let code = key.code(&bytes).ok_or_else(refused)?;
        compiled::load(engine, &OwnCode(code)).map_err(|_| refused())
    }

    /// The counters.
    pub(super) fn counts(&self) -> CacheCounts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CacheCounts { hits: of(&self.hits), misses: of(&self.misses), rejected: of(&self.rejected) }
    }
}

/// Compiles a module.
///
/// # Errors
/// [`Error::Kernel`].
pub(super) fn compile(engine: &Engine, kernel: &str, wasm: &[u8]) -> Result<Module> {
    Module::from_binary(engine, wasm).map_err(|error| malformed(kernel, &error))
}

fn malformed(kernel: &str, error: &wasmtime::Error) -> Error {
    Error::kernel(kernel, Fault::Malformed { why: error.root_cause().to_string() })
}

/// User of a file or folder, where the system has users.
fn owner(path: &Path) -> Result<Option<u32>> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let metadata = std::fs::symlink_metadata(path).map_err(io_error("read", path))?;
        Ok(Some(metadata.uid()))
    }
    #[cfg(not(unix))]
    {
        let _ = path;
        Ok(None)
    }
}

/// Everything that compiled code depends on.
struct Key {
    module: Digest,
    settings: Digest,
}

impl Key {
    /// Name of the file: both digests, that of the settings in part.
    fn file_name(&self) -> String {
        format!("{}-{:.16}.code", self.module, self.settings.to_string())
    }

    /// Header with the SHA-256 of header and code.
    fn header(&self, code: &[u8]) -> Vec<u8> {
        let mut header = Vec::with_capacity(HEADER);
        header.extend(MAGIC);
        header.extend(self.settings.0);
        header.extend(self.module.0);
        header.extend((code.len() as u64).to_le_bytes());
        // Of both digests, so that neither a header nor a code fits another.
        let sum = [Digest::of(&header).0, Digest::of(code).0].concat();
        header.extend(Digest::of(&sum).0);
        header
    }

    /// Bytes of the file.
    fn file(&self, code: &[u8]) -> Vec<u8> {
        let mut bytes = self.header(code);
        bytes.extend(code);
        bytes
    }

    /// Code of a file that is of this key.
    fn code<'a>(&self, file: &'a [u8]) -> Option<&'a [u8]> {
        let (header, code) = file.split_at_checked(HEADER)?;
        (header == self.header(code)).then_some(code)
    }
}

/// True for a file whose header fits its own digests and code, whatever module it is of.
#[cfg(test)]
pub(crate) fn passes(file: &[u8]) -> bool {
    let digest = |at: usize| file.get(at..at + 32).and_then(|bytes| bytes.try_into().ok()).map(Digest);
    let (Some(settings), Some(module)) = (digest(8), digest(40)) else { return false };
    Key { module, settings }.code(file).is_some()
}
