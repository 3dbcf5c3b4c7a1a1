//! Opens a folder whose `config.json` and weight file are any bytes, and reads all that it offers.
//!
//! The input is the length of the configuration in two bytes, the configuration, and the weight file.

#![no_main]

use std::fs;
use std::hint::black_box;
use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use ruvllm_models::{Checkpoint, HfFolder, Model};

/// One folder for all inputs, in memory where the system has such a place.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = PathBuf::from("/dev/shm");
    let parent = if memory.is_dir() { memory } else { std::env::temp_dir() };
    let folder = tempfile::tempdir_in(parent).expect("a folder");
    folder.keep()
});

fuzz_target!(|input: &[u8]| {
    let Some((&[low, high], rest)) = input.split_first_chunk() else { return };
    let length = usize::from(u16::from_le_bytes([low, high])).min(rest.len());
    let (config, weights) = rest.split_at(length);
    fs::write(FOLDER.join("config.json"), config).expect("written");
    fs::write(FOLDER.join("model.safetensors"), weights).expect("written");
    let Ok(folder) = HfFolder::open(&*FOLDER) else { return };
    for tensor in folder.tensors() {
        let data = folder.data(tensor).expect("a listed tensor has data");
        assert_eq!(data.as_ref().len() as u64, tensor.bytes());
    }
    let _ = black_box(Model::load(&folder, &mut |_| ()));
    let _ = black_box(folder.file_metadata());
});
