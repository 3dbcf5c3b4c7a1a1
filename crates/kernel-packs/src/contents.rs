//! Files of a pack as they were read or built; nothing is verified.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;

use ruvllm_witness::{Digest, PrivateKey, Signature};

use crate::archive;
use crate::error::{Error, Result, excerpt, io_error, within};
use crate::files;
use crate::limits::{
    MAX_ARCHIVE_BYTES, MAX_KERNEL_BYTES, MAX_KERNELS, MAX_MANIFEST_BYTES, MAX_PATH_PARTS, SIGNATURE_BYTES,
};
use crate::manifest::Manifest;
use crate::name::{MANIFEST, SIGNATURE, check_path};

/// Files of a pack, in memory. Anybody may have made them: [`verify`](Self::verify) is the way to
/// modules that may run.
#[derive(Debug, Clone)]
pub struct Contents {
    pub(crate) manifest: Manifest,
    pub(crate) manifest_bytes: Vec<u8>,
    pub(crate) signature: Option<Vec<u8>>,
    /// Kernel files by their paths: those of the manifest.
    pub(crate) kernels: BTreeMap<String, Arc<[u8]>>,
}

impl Contents {
    /// Reads a pack: a folder or an archive. The path itself may be a link, nothing in the pack.
    ///
    /// # Errors
    /// As [`from_archive`](Self::from_archive); for folders [`Error::NotRegular`],
    /// [`Error::UnlistedFile`], [`Error::MissingFile`] and those of [`Manifest::parse`];
    /// [`Error::Io`].
    pub fn open(path: &Path) -> Result<Self> {
        let target = files::resolve(path)?;
        if target.is_dir() {
            Self::from_folder(&target)
        } else {
            Self::from_archive(&files::read(&target, MAX_ARCHIVE_BYTES)?)
        }
    }

    /// Reads a folder: manifest, signature and kernel files, and nothing else in it.
    fn from_folder(folder: &Path) -> Result<Self> {
        let manifest_bytes = read_listed(folder, MANIFEST, MAX_MANIFEST_BYTES)?;
        let manifest = Manifest::parse(&manifest_bytes)?;
        let mut names = BTreeSet::new();
        list(folder, "", &mut names)?;
        names.remove(MANIFEST);
        let has_signature = names.remove(SIGNATURE);
        let paths: BTreeSet<&str> = manifest.kernels.iter().map(|kernel| kernel.path.as_str()).collect();
        if let Some(path) = names.iter().find(|name| !paths.contains(name.as_str())) {
            return Err(Error::UnlistedFile { path: excerpt(path) });
        }
        let signature = has_signature.then(|| read_listed(folder, SIGNATURE, SIGNATURE_BYTES)).transpose()?;
        let mut kernels = BTreeMap::new();
        for kernel in &manifest.kernels {
            if !kernels.contains_key(&kernel.path) {
                let bytes = read_listed(folder, &kernel.path, MAX_KERNEL_BYTES)?;
                kernels.insert(kernel.path.clone(), bytes.into());
            }
        }
        Ok(Self { manifest, manifest_bytes, signature, kernels })
    }

    /// Reads an archive, which must have the one form of its files.
    ///
    /// # Errors
    /// [`Error::Limit`], [`Error::Archive`], [`Error::EntryType`], [`Error::Path`],
    /// [`Error::UnlistedFile`], [`Error::MissingFile`], [`Error::Length`], [`Error::Duplicate`],
    /// [`Error::NotCanonical`], and those of [`Manifest::parse`].
    pub fn from_archive(archive: &[u8]) -> Result<Self> {
        let mut read: Option<Self> = None;
        archive::read(archive, |mut entry| {
            let Some(contents) = &mut read else {
                if entry.path != MANIFEST {
                    return Err(Error::MissingFile { path: MANIFEST.to_owned() });
                }
                let manifest_bytes = entry.read(MAX_MANIFEST_BYTES)?;
                let manifest = Manifest::parse(&manifest_bytes)?;
                read = Some(Self { manifest, manifest_bytes, signature: None, kernels: BTreeMap::new() });
                return Ok(());
            };
            let twice = |id: &str| Error::Duplicate { place: "the archive".to_owned(), id: id.to_owned() };
            if entry.path == MANIFEST || entry.path == SIGNATURE && contents.signature.is_some() {
                return Err(twice(&entry.path));
            }
            if entry.path == SIGNATURE {
                contents.signature = Some(entry.read(SIGNATURE_BYTES)?);
                return Ok(());
            }
            let kernel = contents.manifest.kernels.iter().find(|kernel| kernel.path == entry.path);
            let kernel = kernel.ok_or_else(|| Error::UnlistedFile { path: entry.path.clone() })?;
            if contents.kernels.contains_key(&entry.path) {
                return Err(twice(&entry.path));
            }
            if entry.bytes != kernel.bytes {
                let (expected, found) = (kernel.bytes, entry.bytes);
                return Err(Error::Length { kernel: kernel.id.clone(), expected, found });
            }
            let bytes = entry.read(MAX_KERNEL_BYTES)?;
            contents.kernels.insert(entry.path, bytes.into());
            Ok(())
        })?;
        let contents = read.ok_or_else(|| Error::MissingFile { path: MANIFEST.to_owned() })?;
        let paths = contents.manifest.kernels.iter().map(|kernel| &kernel.path);
        if let Some(path) = paths.into_iter().find(|path| !contents.kernels.contains_key(*path)) {
            return Err(Error::MissingFile { path: path.clone() });
        }
        // Also data behind the end, other orders and other headers.
        if contents.to_archive()? == archive { Ok(contents) } else { Err(Error::NotCanonical) }
    }

    /// Builds a pack from a folder with a draft of the manifest: fills in hashes and sizes that
    /// are absent, and with a key the id of the key, and signs with it. Other files of the folder
    /// are left out.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`Error::HashMismatch`] and [`Error::Length`] for values that are
    /// there and differ from the files; [`Error::NotWasm`]; [`Error::OtherKey`].
    pub fn build(folder: &Path, key: Option<&PrivateKey>) -> Result<Self> {
        let mut manifest = Manifest::parse_draft(&read_listed(folder, MANIFEST, MAX_MANIFEST_BYTES)?)?;
        let mut kernels = BTreeMap::<String, Arc<[u8]>>::new();
        for kernel in &mut manifest.kernels {
            let bytes = match kernels.get(&kernel.path) {
                Some(bytes) => bytes.clone(),
                None => read_listed(folder, &kernel.path, MAX_KERNEL_BYTES)?.into(),
            };
            if kernel.bytes == 0 {
                kernel.bytes = bytes.len() as u64;
            }
            if kernel.sha256 == Digest::ZERO {
                kernel.sha256 = Digest::of(&bytes);
            }
            kernel.check_module(&bytes)?;
            kernels.insert(kernel.path.clone(), bytes);
        }
        if let Some(key) = key.filter(|_| manifest.author.signing_key == Default::default()) {
            manifest.author.signing_key = key.public_key().id();
        }
        let manifest_bytes = manifest.to_bytes()?;
        // Sizes, their sum and the length of the text are known only now.
        let manifest = Manifest::parse(&manifest_bytes)?;
        let mut built = Self { manifest, manifest_bytes, signature: None, kernels };
        if let Some(key) = key {
            built.sign(key)?;
        }
        Ok(built)
    }

    /// Signs the manifest after a check of all kernel files.
    ///
    /// # Errors
    /// [`Error::OtherKey`], [`Error::Length`], [`Error::HashMismatch`], [`Error::NotWasm`].
    pub fn sign(&mut self, key: &PrivateKey) -> Result<()> {
        let (expected, found) = (self.manifest.author.signing_key, key.public_key().id());
        if expected != found {
            return Err(Error::OtherKey { expected, found });
        }
        self.check_modules()?;
        self.signature = Some(format!("{}\n", key.sign(&self.manifest_bytes)).into_bytes());
        Ok(())
    }

    /// The archive of the pack. Equal packs have equal bytes.
    ///
    /// # Errors
    /// [`Error::Archive`] does not occur for a pack that was read or built.
    pub fn to_archive(&self) -> Result<Vec<u8>> {
        archive::write(self.files())
    }

    /// Paths and bytes of all files, in the order of archives.
    pub fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let signature = self.signature.as_deref().map(|bytes| (SIGNATURE, bytes));
        let kernels = self.kernels.iter().map(|(path, bytes)| (path.as_str(), &**bytes));
        std::iter::once((MANIFEST, self.manifest_bytes.as_slice())).chain(signature).chain(kernels)
    }

    /// The manifest, which nobody has vouched for yet.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// SHA-256 of the bytes of the manifest, by which packs are told apart.
    pub fn manifest_sha256(&self) -> Digest {
        Digest::of(&self.manifest_bytes)
    }

    /// True if the pack has a signature, whoever made it.
    pub fn is_signed(&self) -> bool {
        self.signature.is_some()
    }

    /// The signature.
    ///
    /// # Errors
    /// [`Error::Unsigned`]; [`Error::BadSignature`] for a file that is none.
    pub(crate) fn parsed_signature(&self) -> Result<Signature> {
        let bytes = self.signature.as_deref().ok_or(Error::Unsigned)?;
        let text = std::str::from_utf8(bytes).ok().and_then(|text| text.strip_suffix('\n'));
        let key = self.manifest.author.signing_key;
        text.and_then(|text| text.parse().ok()).ok_or(Error::BadSignature { key })
    }

    /// Checks length, hash and format of all kernel files. Kernels of one file agree about it.
    pub(crate) fn check_modules(&self) -> Result<()> {
        let mut checked = BTreeSet::new();
        self.manifest.kernels.iter().filter(|kernel| checked.insert(&kernel.path)).try_for_each(|kernel| {
            let bytes = self.kernels.get(&kernel.path);
            kernel.check_module(bytes.ok_or_else(|| Error::MissingFile { path: kernel.path.clone() })?)
        })
    }
}

/// Reads a file of a folder by its path in the pack; no folder on the way is a link.
fn read_listed(folder: &Path, path: &str, most: u64) -> Result<Vec<u8>> {
    let mut at = folder.to_owned();
    let parts: Vec<&str> = path.split('/').collect();
    for part in &parts[..parts.len() - 1] {
        at.push(part);
        if at.is_symlink() {
            return Err(Error::NotRegular { path: at });
        }
    }
    match files::read(&folder.join(path), most) {
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound && folder.is_dir() => {
            Err(Error::MissingFile { path: path.to_owned() })
        }
        read => read,
    }
}

/// Collects the paths of files below a folder.
fn list(folder: &Path, prefix: &str, names: &mut BTreeSet<String>) -> Result<()> {
    for entry in fs::read_dir(folder).map_err(io_error("list", folder))? {
        let entry = entry.map_err(io_error("list", folder))?;
        let name = entry.file_name();
        let name = name
            .to_str()
            .ok_or_else(|| Error::Path { path: excerpt(&name.to_string_lossy()), why: "it is not UTF-8" })?;
        let path = format!("{prefix}{name}");
        let kind = entry.file_type().map_err(io_error("read", &entry.path()))?;
        if kind.is_dir() {
            within("folders in one another", path.split('/').count() as u64, MAX_PATH_PARTS as u64 - 1)?;
            list(&entry.path(), &format!("{path}/"), names)?;
        } else if kind.is_file() {
            check_path(&path)?;
            names.insert(path);
            within("files of the pack", names.len() as u64, MAX_KERNELS as u64 + 2)?;
        } else {
            return Err(Error::NotRegular { path: entry.path() });
        }
    }
    Ok(())
}

impl crate::manifest::Kernel {
    /// Checks length, hash and format of the kernel's module.
    ///
    /// # Errors
    /// [`Error::Length`], [`Error::HashMismatch`], [`Error::NotWasm`].
    pub(crate) fn check_module(&self, module: &[u8]) -> Result<()> {
        /// Magic number and version of a core module.
        const WASM: &[u8] = b"\0asm\x01\0\0\0";
        let kernel = || self.id.clone();
        if module.len() as u64 != self.bytes {
            let (expected, found) = (self.bytes, module.len() as u64);
            return Err(Error::Length { kernel: kernel(), expected, found });
        }
        let found = Digest::of(module);
        if found != self.sha256 {
            return Err(Error::HashMismatch { kernel: kernel(), expected: self.sha256, found });
        }
        if module.starts_with(WASM) { Ok(()) } else { Err(Error::NotWasm { kernel: kernel() }) }
    }
}
