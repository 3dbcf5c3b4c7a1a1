//! Tiles of the products of an open device: measured ones, else those of the table.

use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use crate::adapter::AdapterInfo;
use crate::cache::{CacheError, tiles};
use crate::kernel::{CooperativeTile, Target, Tile};
use crate::tuning::{ProductShape, Tuning};

/// Tiles of a device, and their file.
#[derive(Debug)]
pub(crate) struct Tiles {
    target: Target,
    tuning: RwLock<Tuning>,
    file: Option<PathBuf>,
}

impl Tiles {
    /// Reads the tiles of an adapter in a folder; the second value is the reason that a file is
    /// ignored.
    pub(crate) fn open(
        folder: Option<&Path>,
        info: &AdapterInfo,
        target: Target,
    ) -> (Self, Option<CacheError>) {
        let file = folder.map(|folder| info.tiles_file(folder));
        let read = file.as_deref().map(|path| tiles::read(path, info, target)).transpose();
        let (tuning, fault) = match read {
            Ok(tuning) => (tuning.flatten(), None),
            Err(fault) => (None, Some(fault)),
        };
        (Self { target, tuning: RwLock::new(tuning.unwrap_or_default()), file }, fault)
    }

    pub(crate) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Writes the tiles to their file, if there is a place for it.
    pub(crate) fn save(&self) -> Result<(), CacheError> {
        self.file.as_deref().map_or(Ok(()), |path| tiles::write(path, &self.get()))
    }

    pub(crate) fn get(&self) -> Tuning {
        self.tuning.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set(&self, tuning: Tuning) {
        *self.tuning.write().unwrap_or_else(PoisonError::into_inner) = tuning;
    }

    /// Tile of a product of few rows.
    pub(crate) fn product(&self, shape: ProductShape) -> Tile {
        self.tuning.read().unwrap_or_else(PoisonError::into_inner).product(shape, self.target)
    }

    /// Tile of a product of many rows; `None` without cooperative matrices.
    pub(crate) fn gemm(&self, shape: ProductShape) -> Option<CooperativeTile> {
        self.tuning.read().unwrap_or_else(PoisonError::into_inner).gemm(shape, self.target)
    }
}
