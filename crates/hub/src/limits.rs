//! Bounds of what a hub, or somebody who can write to the store, may make this crate read, keep and
//! ask for. Beyond them is an error that names the bound.

/// Longest list of files that is read, in bytes: 100,000 files with their checksums take 25 MB.
pub(crate) const MAX_LISTING_BYTES: u64 = 32 << 20;

/// Most files of a repository.
pub(crate) const MAX_LISTED_FILES: usize = 100_000;

/// Most files of one model. Published models have at most some hundreds.
pub(crate) const MAX_MODEL_FILES: usize = 4096;

/// Longest file of a model, in bytes; it also bounds the record of its pieces.
pub(crate) const MAX_FILE_BYTES: u64 = 1 << 44;

/// Longest manifest, in bytes: the files of the largest model with the longest paths.
pub(crate) const MAX_MANIFEST_BYTES: u64 = 16 << 20;

/// Longest record of a partial file, in bytes: one number for each piece of the longest file.
pub(crate) const MAX_RECORD_BYTES: u64 = 4 << 20;

/// Most names that are compared with one that was not found, and the most characters of them.
pub(crate) const MAX_COMPARED: usize = 10_000;
pub(crate) const MAX_COMPARED_CHARS: usize = 200;
