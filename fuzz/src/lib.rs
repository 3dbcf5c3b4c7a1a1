//! Scratch folder and input splitting of the targets that open folders.

use std::path::PathBuf;
use std::sync::LazyLock;

/// One folder for all inputs of a process, in memory if the system has `/dev/shm`.
pub static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = PathBuf::from("/dev/shm");
    let parent = if memory.is_dir() { memory } else { std::env::temp_dir() };
    let folder = tempfile::tempdir_in(parent).expect("a folder");
    folder.keep()
});

/// Splits an input into a configuration, whose length is in the first two bytes, and the rest.
pub fn config_and_weights(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&[low, high], rest) = input.split_first_chunk()?;
    let length = usize::from(u16::from_le_bytes([low, high])).min(rest.len());
    Some(rest.split_at(length))
}
