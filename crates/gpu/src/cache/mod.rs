//! Compiled pipelines on disk: one file per adapter and version of the kernels (ADR-0043).
//!
//! ```text
//! PipelineStore ── which file, load, save
//!   ├── entry   header and checksum of the file
//!   ├── files   rules for folder and file, atomic write
//!   ├── tiles   measured tiles, as text
//!   └── driver  the driver's cache, made from verified data (the crate's only unsafe block)
//! ```

mod driver;
mod entry;
mod error;
mod files;
pub(crate) mod tiles;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use self::error::CacheError;
use crate::adapter::AdapterInfo;

/// Version of the generated kernels, raised when their WGSL changes. A file of another version is
/// not read, so that it does not accumulate pipelines that no program asks for.
const KERNELS_VERSION: u32 = 1;

/// Maximum size of the driver's data in bytes.
const LIMIT: u64 = 64 << 20;

/// File of the pipeline cache, and the size read from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Bytes of compiled pipelines read at start; 0 without a usable file.
    pub loaded_bytes: u64,
}

/// The driver's pipeline cache and its file.
#[derive(Debug)]
pub(crate) struct PipelineStore {
    file: CacheFile,
    identity: entry::Identity,
    driver: wgpu::PipelineCache,
    /// Bytes of the driver's data in the file, as last read or written.
    stored: Mutex<u64>,
}

impl AdapterInfo {
    /// File of this adapter's compiled pipelines in `folder`; `None` if it has no pipeline cache.
    pub fn cache_file(&self, folder: &Path) -> Option<PathBuf> {
        let key = self.cache_key.as_ref()?;
        Some(folder.join(format!("{key}_v{KERNELS_VERSION}.bin")))
    }
}

impl PipelineStore {
    /// Opens the cache of an adapter in `folder`, empty if there is no usable file.
    ///
    /// The second value is the reason that a file is ignored. `None` as the first value: the folder
    /// cannot be used, or the adapter has no pipeline cache.
    pub(crate) fn open(
        device: &wgpu::Device,
        info: &AdapterInfo,
        folder: &Path,
    ) -> (Option<Self>, Option<CacheError>) {
        let Some(path) = info.cache_file(folder) else { return (None, None) };
        if let Err(error) = files::prepare_folder(folder) {
            return (None, Some(error));
        }
        let identity = entry::identity(info, KERNELS_VERSION);
        let (bytes, mut fault) = match files::read(&path, LIMIT + entry::HEADER as u64) {
            Ok(bytes) => (bytes, None),
            Err(error) => (None, Some(error)),
        };
        let verified = bytes.as_deref().and_then(|bytes| {
            entry::decode(bytes, &identity)
                .map_err(|reason| fault = Some(CacheError::Damaged { path: path.clone(), reason }))
                .ok()
        });
        let driver = driver::pipeline_cache(device, verified.as_ref());
        let loaded_bytes = verified.map_or(0, |data| data.bytes().len() as u64);
        let file = CacheFile { path, loaded_bytes };
        (Some(Self { file, identity, driver, stored: Mutex::new(loaded_bytes) }), fault)
    }

    pub(crate) fn file(&self) -> &CacheFile {
        &self.file
    }

    /// Cache to pass when a pipeline is created.
    pub(crate) fn driver(&self) -> &wgpu::PipelineCache {
        &self.driver
    }

    /// Writes the driver's data unless the file holds as many bytes already: drivers only add to
    /// it. Data beyond the limit is not written and the file removed, so that the next start begins
    /// with an empty cache.
    ///
    /// # Errors
    /// [`CacheError`] if the folder is no longer usable or the file cannot be written.
    pub(crate) fn save(&self) -> Result<(), CacheError> {
        let mut stored = self.stored();
        let Some(data) = self.driver.get_data() else { return Ok(()) };
        let (path, bytes) = (&self.file.path, data.len() as u64);
        if bytes == *stored {
            return Ok(());
        }
        if let Some(folder) = path.parent() {
            files::prepare_folder(folder)?;
        }
        if bytes > LIMIT {
            files::remove(path)?;
            *stored = bytes;
            return Ok(());
        }
        files::write(path, &[&entry::header(&data, &self.identity), &data])?;
        *stored = bytes;
        Ok(())
    }

    fn stored(&self) -> MutexGuard<'_, u64> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
