//! Reading compact files.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ruvllm_kernels::low_rank::{FactorFormat, LowRank};
use ruvllm_kernels::quant::SharedBytes;
use ruvllm_memory::{PagePool, Pages, Request};

use super::header::{Header, PREFIX_BYTES, Prefix, second_section};
use super::{SECTIONS, Section};
use crate::adapter::{Adapter, Resident};
use crate::digest::Digests;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::place::BaseModel;

/// Bytes that are read, summed and checked while they are in the CPU's cache.
const CHUNK_BYTES: usize = 256 << 10;

/// A compact adapter file: its header. The file is open only while it is read.
#[derive(Debug, Clone)]
pub struct CompactFile {
    path: PathBuf,
    header: Header,
    header_bytes: u64,
}

impl CompactFile {
    /// Reads the header of a file, and checks it and the length of the file.
    ///
    /// # Errors
    /// [`Error::NotCompact`] for other formats, [`Error::Damaged`], and [`Error::Read`].
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_file(path).map(|(file, _)| file)
    }

    fn open_file(path: &Path) -> Result<(Self, File)> {
        let unreadable = |source| Error::Read { path: path.to_owned(), source };
        let not_compact = || Error::NotCompact { path: path.to_owned() };
        // A pipe would be waited for.
        if !fs::metadata(path).map_err(unreadable)?.is_file() {
            return Err(not_compact());
        }
        let mut file = File::open(path).map_err(unreadable)?;
        let mut bytes = vec![0; PREFIX_BYTES];
        match file.read_exact(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(not_compact()),
            read => read.map_err(unreadable)?,
        }
        let damaged = |what: &str| Error::Damaged { path: path.to_owned(), what: what.to_owned() };
        let Prefix { header_bytes } = Prefix::read(&bytes).ok_or_else(not_compact)?.map_err(damaged)?;
        let len = file.metadata().map_err(unreadable)?.len();
        if len < header_bytes as u64 {
            return Err(damaged("it is cut"));
        }
        bytes.resize(header_bytes, 0);
        file.read_exact(&mut bytes[PREFIX_BYTES..]).map_err(unreadable)?;
        let header = Header::decode(&bytes).map_err(damaged)?;
        let opened = Self { path: path.to_owned(), header, header_bytes: header_bytes as u64 };
        let last = opened.header.layout_of(SECTIONS[1]).map_err(|_| damaged("its shapes are too large"))?;
        let expected = opened.section_start(1).saturating_add(last.bytes() as u64);
        if len != expected {
            return Err(damaged(&format!("it has {len} bytes of {expected}")));
        }
        Ok((opened, file))
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Shape of the model that it is for.
    pub fn base(&self) -> &BaseModel {
        &self.header.base
    }

    /// Files that the adapter was made of, as they were named.
    pub fn source(&self) -> &str {
        &self.header.source
    }

    /// Time of writing in seconds since 1970.
    pub fn added_unix(&self) -> u64 {
        self.header.added_unix
    }

    /// Shapes of the factors, in F16.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.header.layout
    }

    /// Digest of the factors in F16: the identity of the adapter.
    pub fn digest(&self) -> &[u8; 32] {
        &self.header.sections[0].digests.factors
    }

    /// Bytes of the factors in a format; `None` unless it is F16 or I8.
    pub fn bytes(&self, format: FactorFormat) -> Option<usize> {
        if !SECTIONS.contains(&format) {
            return None;
        }
        Some(self.header.layout_of(format).ok()?.bytes())
    }

    /// Reads the factors in F16 or I8 into pages of `pool`: one copy, with a CRC-32 and a check
    /// for values that are not finite on the way.
    ///
    /// # Errors
    /// [`Error::BaseModel`] for another model, [`Error::Format`] for F32, [`Error::Changed`] if
    /// the file has other contents than when it was opened, [`Error::Damaged`], [`Error::Read`],
    /// and [`Error::Memory`].
    pub fn load(
        &self,
        base: &Arc<BaseModel>,
        format: FactorFormat,
        pool: &PagePool,
        request: &Request,
    ) -> Result<Adapter> {
        Self::load_from(&self.path, self.digest(), base, format, pool, request)
    }

    /// As [`load`](Self::load), of a file that had this digest.
    pub(crate) fn load_from(
        path: &Path,
        digest: &[u8; 32],
        base: &Arc<BaseModel>,
        format: FactorFormat,
        pool: &PagePool,
        request: &Request,
    ) -> Result<Adapter> {
        let section = SECTIONS.iter().position(|stored| *stored == format);
        let section = section.ok_or(Error::Format { format })?;
        let (now, mut file) = Self::open_file(path)?;
        if now.digest() != digest {
            return Err(Error::Changed { path: path.to_owned() });
        }
        now.check_base(base)?;
        let layout = now.header.layout_of(format)?;
        let bytes = layout.bytes();
        let n_pages = bytes.div_ceil(pool.page_bytes()).max(1);
        let mut pages: Pages =
            pool.allocate(n_pages, request).map_err(|source| Error::Memory { bytes, source })?;
        let Section { crc, digests } = now.header.sections[section].clone();
        now.read(&mut file, section, crc, &mut pages.bytes_mut()[..bytes])?;
        now.check_values(&layout, &pages.bytes()[..bytes])?;
        let bytes = SharedBytes::new(Resident::new(pages, bytes));
        Adapter::from_bytes(Arc::clone(base), layout, bytes, digests)
    }

    /// Reads the factors in F16, checked as by [`load`](Self::load).
    pub(crate) fn read_f16(&self) -> Result<Vec<u8>> {
        let (now, mut file) = Self::open_file(&self.path)?;
        let mut bytes = vec![0; now.header.layout.bytes()];
        now.read(&mut file, 0, now.header.sections[0].crc, &mut bytes)?;
        if now.digest() == self.digest() {
            Ok(bytes)
        } else {
            Err(Error::Changed { path: self.path.clone() })
        }
    }

    /// Reads all sections, and checks checksums, values and digests.
    ///
    /// # Errors
    /// As [`load`](Self::load), without memory of a pool.
    pub fn verify(&self) -> Result<()> {
        let (now, mut file) = Self::open_file(&self.path)?;
        for (index, (format, section)) in SECTIONS.into_iter().zip(&now.header.sections).enumerate() {
            let layout = now.header.layout_of(format)?;
            // In f32, so that the bytes are aligned to values and scales.
            let mut values = vec![0_f32; layout.bytes().div_ceil(size_of::<f32>())];
            let bytes = &mut bytemuck::cast_slice_mut(&mut values)[..layout.bytes()];
            now.read(&mut file, index, section.crc, bytes)?;
            now.check_values(&layout, bytes)?;
            if Digests::new(&now.header.base, &layout, bytes) != section.digests {
                return Err(now.damaged("its digest is not that of its factors"));
            }
        }
        Ok(())
    }

    /// Checks that the file is for a model.
    ///
    /// # Errors
    /// [`Error::BaseModel`].
    pub fn check_base(&self, base: &BaseModel) -> Result<()> {
        match &self.header.base {
            found if found == base => Ok(()),
            found => Err(Error::BaseModel {
                path: self.path.clone(),
                found: found.to_string(),
                expected: base.to_string(),
            }),
        }
    }

    /// Reads a section, and compares its CRC-32.
    fn read(&self, file: &mut File, section: usize, crc: u32, out: &mut [u8]) -> Result<()> {
        let unreadable = |source| Error::Read { path: self.path.clone(), source };
        file.seek(SeekFrom::Start(self.section_start(section))).map_err(unreadable)?;
        let mut hasher = crc32fast::Hasher::new();
        let mut is_finite = true;
        for chunk in out.chunks_mut(CHUNK_BYTES) {
            file.read_exact(chunk).map_err(unreadable)?;
            hasher.update(chunk);
            is_finite &= SECTIONS[section] != FactorFormat::F16 || is_finite_f16(chunk);
        }
        if hasher.finalize() != crc {
            return Err(self.damaged("its factors have a wrong checksum"));
        }
        if is_finite { Ok(()) } else { Err(self.damaged("it has values that are not finite")) }
    }

    /// Checks the scales of I8 factors; values in F16 are checked while they are read.
    fn check_values(&self, layout: &Layout, bytes: &[u8]) -> Result<()> {
        let is_finite = layout.format() == FactorFormat::F16
            || layout.sites().iter().all(|at| {
                let factors = LowRank::new(&at.factors, bytes);
                factors.a().is_finite()
                    && (0..at.factors.expansions().len()).all(|index| factors.b(index).is_finite())
            });
        if is_finite { Ok(()) } else { Err(self.damaged("it has values that are not finite")) }
    }

    fn section_start(&self, section: usize) -> u64 {
        match section {
            0 => self.header_bytes,
            _ => second_section(self.header_bytes, self.header.layout.bytes()),
        }
    }

    fn damaged(&self, what: &str) -> Error {
        Error::Damaged { path: self.path.clone(), what: what.to_owned() }
    }
}

/// True if no value has the largest exponent, which infinities and NaN have.
fn is_finite_f16(bytes: &[u8]) -> bool {
    // Without an early end, so that it becomes vector code.
    let largest = |value: &[u8]| u8::from(value[1] & 0x7c == 0x7c);
    bytes.chunks_exact(2).map(largest).fold(0, |found, largest| found | largest) == 0
}
