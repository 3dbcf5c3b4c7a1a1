//! File of a model: header and bytes.

use std::{path::Path, sync::Arc};

use crate::{
    data::FileBytes,
    error::Result,
    header::Header,
    memory::{self, FileMemory},
};

/// Part of a model: a file with its header, possibly the only one.
pub(crate) struct Part {
    pub(crate) header: Header,
    pub(crate) bytes: FileBytes,
}

impl Part {
    pub(crate) fn open(path: &Path, memory: FileMemory) -> Result<Self> {
        Self::new(Arc::new(memory::load(path, memory)?))
    }

    pub(crate) fn new(bytes: FileBytes) -> Result<Self> {
        let header = Header::parse(bytes.as_bytes())?;
        Ok(Self { header, bytes })
    }
}
