//! Opens a folder with any bytes as its `config.json` and weight file, and reads all tensors.
//!
//! The input has the length of the configuration in two bytes, the configuration, and the weight
//! file.

#![no_main]

use std::fs;
use std::hint::black_box;

use libfuzzer_sys::fuzz_target;
use ruvllm_fuzz::{FOLDER, config_and_weights};
use ruvllm_models::{Checkpoint, Encoder, Error, HfFolder, Model, is_encoder};

fuzz_target!(|input: &[u8]| {
    let Some((config, weights)) = config_and_weights(input) else { return };
    fs::write(FOLDER.join("config.json"), config).expect("written");
    fs::write(FOLDER.join("model.safetensors"), weights).expect("written");
    let Ok(folder) = HfFolder::open(&*FOLDER) else { return };
    for tensor in folder.tensors() {
        let data = match folder.data(tensor) {
            Ok(data) => data,
            // Values of quantized matrices are looked at when they are asked for.
            Err(Error::TensorValue { .. }) if folder.quantized().is_some() => continue,
            Err(error) => panic!("a listed tensor has data: {error}"),
        };
        assert_eq!(data.as_ref().len() as u64, tensor.bytes());
    }
    if is_encoder(folder.metadata()) {
        let _ = black_box(Encoder::load(&folder, &mut |_| ()));
    } else {
        let _ = black_box(Model::load(&folder, &mut |_| ()));
    }
    let _ = black_box(folder.file_metadata());
});
