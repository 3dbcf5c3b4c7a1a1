//! The store of adapters: compact files in a folder, under names.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use ruvllm_kernels::low_rank::FactorFormat;
use ruvllm_memory::{PagePool, PoolConfig, Request};

use crate::adapter::{Adapter, Part};
use crate::compact::{self, CompactFile, Existing};
use crate::error::{Error, Result};
use crate::name::check_name;
use crate::place::BaseModel;
use crate::shortened::shortened;

/// Ending of the files.
const ENDING: &str = "ruvlora";

/// Adapters on this machine, under names.
///
/// ```text
/// NAME.ruvlora               a compact file
/// NAME.PID-N.new             one that is being written
/// ```
///
/// A file appears as a whole. Several processes may use one store. Making a `AdapterStore` touches
/// no disk.
#[derive(Debug, Clone)]
pub struct AdapterStore {
    root: PathBuf,
}

/// An adapter in the store: its name, and the header of its file.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StoredAdapter {
    /// Its name.
    pub name: String,
    /// Its file.
    pub file: CompactFile,
    /// Bytes of the file.
    pub bytes: u64,
}

/// A file of the store that is no adapter. [`AdapterStore::remove`] removes it.
#[derive(Debug)]
#[non_exhaustive]
pub struct DamagedAdapter {
    /// Its name.
    pub name: String,
    /// Its file.
    pub path: PathBuf,
    /// The damage.
    pub error: Error,
}

impl StoredAdapter {
    /// Largest rank of a site: the sum of the ranks of its updates.
    pub fn rank(&self) -> usize {
        self.file.layout().sites().iter().map(|at| at.factors.rank()).max().unwrap_or(0)
    }
}

impl AdapterStore {
    /// The store in a folder, which is created when an adapter is added.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Adds the sum of `parts` for a base model under a name. `source` names it for people, at most
    /// 4096 bytes of it. With `replace`, an adapter of this name is replaced.
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::NameTaken`], those of [`Adapter::new`], and [`Error::StoreWrite`],
    /// which leaves nothing behind.
    pub fn add(
        &self,
        name: &str,
        base: &Arc<BaseModel>,
        parts: &[Part<'_>],
        source: &str,
        replace: bool,
    ) -> Result<StoredAdapter> {
        check_name(name)?;
        let path = self.path(name);
        let taken = || Error::NameTaken { name: name.to_owned() };
        if !replace && path.symlink_metadata().is_ok() {
            return Err(taken());
        }
        let request = Request::default();
        let pool = pool_for(parts)?;
        let f16 = Adapter::new(base, parts, FactorFormat::F16, &pool, &request)?;
        let i8 = f16.to_format(FactorFormat::I8, &pool, &request)?;
        fs::create_dir_all(&self.root)
            .map_err(|source| Error::StoreWrite { path: self.root.clone(), source })?;
        let source = beginning(source, compact::MAX_TEXT_BYTES);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let existing = if replace { Existing::Replace } else { Existing::Keep };
        match compact::write(&path, [&f16, &i8], source, now, existing) {
            Err(Error::StoreWrite { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => {
                Err(taken())
            }
            written => written,
        }?;
        self.get(name)
    }

    /// All adapters in the order of their names, and the files that are none. Only headers are
    /// read.
    ///
    /// # Errors
    /// [`Error::Read`] for a folder that cannot be read; one that does not exist is empty.
    pub fn list(&self) -> Result<(Vec<StoredAdapter>, Vec<DamagedAdapter>)> {
        let unreadable = |source| Error::Read { path: self.root.clone(), source };
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Default::default()),
            entries => entries.map_err(unreadable)?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let name = entry.map_err(unreadable)?.file_name();
            let name = name.to_str().and_then(|name| name.strip_suffix(&format!(".{ENDING}")));
            names.extend(name.filter(|name| check_name(name).is_ok()).map(str::to_owned));
        }
        names.sort();
        let (mut adapters, mut damaged) = (Vec::new(), Vec::new());
        for name in names {
            match self.get(&name) {
                Ok(adapter) => adapters.push(adapter),
                // Another process has removed it meanwhile.
                Err(Error::UnknownAdapter { .. }) => {}
                Err(error) => damaged.push(DamagedAdapter { path: self.path(&name), name, error }),
            }
        }
        Ok((adapters, damaged))
    }

    /// The adapter of a name.
    ///
    /// # Errors
    /// [`Error::UnknownAdapter`], also for names that cannot exist, and those of
    /// [`CompactFile::open`].
    pub fn get(&self, name: &str) -> Result<StoredAdapter> {
        let unknown = || Error::UnknownAdapter { name: shortened(name) };
        check_name(name).map_err(|_| unknown())?;
        let path = self.path(name);
        let unreadable = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => unknown(),
            _ => Error::Read { path: path.clone(), source },
        };
        // A link could lead out of the store.
        let metadata = fs::symlink_metadata(&path).map_err(unreadable)?;
        if !metadata.is_file() {
            return Err(Error::NotCompact { path });
        }
        let file = CompactFile::open(&path)?;
        Ok(StoredAdapter { name: name.to_owned(), file, bytes: metadata.len() })
    }

    /// Removes an adapter, which may be damaged. Engines that have it in memory keep it there.
    ///
    /// # Errors
    /// [`Error::UnknownAdapter`], [`Error::StoreWrite`].
    pub fn remove(&self, name: &str) -> Result<u64> {
        let unknown = || Error::UnknownAdapter { name: shortened(name) };
        check_name(name).map_err(|_| unknown())?;
        let path = self.path(name);
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => unknown(),
            _ => Error::StoreWrite { path: path.clone(), source },
        };
        let bytes = fs::symlink_metadata(&path).map_err(failed)?.len();
        fs::remove_file(&path).map_err(failed)?;
        Ok(bytes)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(format!("{name}.{ENDING}"))
    }
}

/// A pool for the factors of `parts` in both formats.
fn pool_for(parts: &[Part<'_>]) -> Result<PagePool> {
    // A joint projection has three targets, and each factor and its scales begin at 64 bytes.
    let values = |update: &crate::Update| {
        let rows = update.rank.saturating_mul(6).saturating_mul(size_of::<f32>());
        update.a.len().saturating_add(update.b.len()).saturating_mul(3).saturating_add(rows + 1024)
    };
    let updates = parts.iter().flat_map(|part| part.file.updates());
    let bytes = updates.map(values).fold(0, usize::saturating_add);
    let config = PoolConfig::new(0);
    let page_bytes = config.page_bytes;
    let capacity = bytes.saturating_add(4 * page_bytes);
    PagePool::new(PoolConfig { capacity_bytes: capacity, ..config })
        .map_err(|source| Error::Memory { bytes, source })
}

/// At most `most` bytes of a text.
fn beginning(text: &str, most: usize) -> &str {
    let end = (0..=text.len().min(most)).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}
