//! Split models, `NAME-00001-of-00003.gguf` and so on: finding and checking of the parts.

use std::path::{Path, PathBuf};

use crate::{
    error::{Error, Result},
    memory::FileMemory,
    metadata::Metadata,
    part::Part,
};

const NO_KEY: &str = "split.no";
const COUNT_KEY: &str = "split.count";
const TENSORS_KEY: &str = "split.tensors.count";

/// Membership of a file in a split model, from its metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Membership {
    /// Number of this part, counted from 0; may be absent or wrong.
    no: Option<u64>,
    /// Number of parts, at least 2.
    pub(crate) count: u64,
    /// Tensors in all parts together.
    n_tensors: Option<u64>,
}

impl Membership {
    /// The membership stated in `metadata`, if the file is one of several.
    pub(crate) fn of(metadata: &Metadata) -> Result<Option<Self>> {
        match metadata.get_u64(COUNT_KEY)? {
            None | Some(0 | 1) => Ok(None),
            Some(count) => Ok(Some(Self {
                no: metadata.get_u64(NO_KEY)?,
                count,
                n_tensors: metadata.get_u64(TENSORS_KEY)?,
            })),
        }
    }
}

/// Opens the file at `path` and, if it is one part of a split model, all parts in order.
pub(crate) fn open(path: &Path, memory: FileMemory) -> Result<Vec<Part>> {
    let opened = Part::open(path, memory)?;
    let Some(split) = Membership::of(&opened.header.metadata)? else {
        return Ok(vec![opened]);
    };
    let no = split.no.unwrap_or(0);
    if no >= split.count {
        let expected = "a number below split.count";
        return Err(Error::MetadataRange { key: NO_KEY.to_owned(), expected, value: no.to_string() });
    }
    let Some(stem) = stem(path, no, split.count) else {
        let part = no.saturating_add(1);
        return Err(Error::SplitName { path: path.to_owned(), part, count: split.count });
    };
    let mut opened = Some(opened);
    let mut parts: Vec<Part> = Vec::new();
    for i in 0..split.count {
        // A wrong count ends here at the first file that does not exist.
        let part_path = part_path(path, stem, i, split.count);
        let part = match opened.take_if(|_| i == no) {
            Some(part) => part,
            None => Part::open(&part_path, memory)
                .map_err(|source| Error::SplitPart { path: part_path.clone(), source: Box::new(source) })?,
        };
        check_member(&part, &part_path, i, split.count)?;
        parts.push(part);
    }
    let found: u64 = parts.iter().map(|part| part.header.tensors.len() as u64).sum();
    match split.n_tensors {
        Some(stated) if stated != found => Err(Error::SplitMismatch {
            path: path.to_owned(),
            key: TENSORS_KEY,
            expected: found,
            found: stated.to_string(),
        }),
        _ => Ok(parts),
    }
}

/// Checks that an opened part says of itself what its name says.
fn check_member(part: &Part, path: &Path, no: u64, count: u64) -> Result<()> {
    let metadata = &part.header.metadata;
    for (key, expected) in [(COUNT_KEY, count), (NO_KEY, no)] {
        let found = metadata.get_u64(key)?;
        if found != Some(expected) {
            let found = found.map_or_else(|| "absent".to_owned(), |n| n.to_string());
            return Err(Error::SplitMismatch { path: path.to_owned(), key, expected, found });
        }
    }
    Ok(())
}

/// The end of the file name of part `no`, counted from 0.
fn suffix(no: u64, count: u64) -> String {
    format!("-{:05}-of-{count:05}.gguf", no.saturating_add(1))
}

/// The file name without the suffix of part `no`.
fn stem(path: &Path, no: u64, count: u64) -> Option<&str> {
    path.file_name()?.to_str()?.strip_suffix(&suffix(no, count))
}

fn part_path(sibling: &Path, stem: &str, no: u64, count: u64) -> PathBuf {
    sibling.with_file_name(format!("{stem}{}", suffix(no, count)))
}
