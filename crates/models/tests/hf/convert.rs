//! Folders written as GGUF files, and quantized on the way to a file or to memory.

use std::ops::ControlFlow;
use std::path::Path;

use gguf_rs_lite::{Gguf, TensorType};
use ruvllm_kernels::ThreadPool;
use ruvllm_models::quantize::{InSitu, QuantizeOptions, Recipe, convert, quantize};
use ruvllm_models::{Checkpoint, Error, Model};

use crate::support::{TINY, assert_same_tensors, folder, gguf, tensors, tiny};

fn recipe(name: &str) -> Recipe {
    Recipe::from_name(name).expect("a recipe")
}

fn write(checkpoint: &dyn Checkpoint, path: &Path, matrices: Option<&str>) -> Gguf {
    let pool = ThreadPool::new(2).expect("threads");
    convert(checkpoint, path, matrices.map(recipe), &pool, &mut |_| ControlFlow::Continue(()))
        .expect("written");
    Gguf::open(path).expect("a valid file")
}

#[test]
fn a_converted_folder_is_the_file_of_the_independent_converter() {
    let output = tempfile::tempdir().expect("a folder");
    for name in TINY {
        let folder = folder(name);
        let path = output.path().join("as-it-is.gguf");
        let as_it_is = write(&folder, &path, None);
        assert_same_tensors(&as_it_is, &folder);
        assert_eq!(*as_it_is.metadata(), folder.file_metadata().expect("metadata"), "{name}");

        let halves = write(&folder, &output.path().join("f16.gguf"), Some("f16"));
        let golden = gguf(name, "model-F16.gguf");
        let halves = tensors(&halves).into_iter().filter(|(info, _)| info.name != "rope_freqs.weight");
        let golden = tensors(&golden).into_iter().filter(|(info, _)| info.name != "rope_freqs.weight");
        for ((found, data), (expected, reference)) in halves.zip(golden) {
            assert_eq!((&found.name, found.tensor_type), (&expected.name, expected.tensor_type), "{name}");
            assert!(data == reference, "{name} {}", found.name);
        }
    }
}

#[test]
fn a_converted_file_says_what_its_matrices_are() {
    let output = tempfile::tempdir().expect("a folder");
    let folder = folder("llama");
    for (name, tensor_type, number) in
        [("f32", TensorType::F32, 0), ("f16", TensorType::F16, 1), ("bf16", TensorType::BF16, 32)]
    {
        let file = write(&folder, &output.path().join(name), Some(name));
        assert_eq!(file.metadata().get_u64("general.file_type").expect("a number"), Some(number));
        let types = ["token_embd.weight", "blk.0.attn_q.weight", "output.weight"]
            .map(|name| file.tensor(name).map(|info| info.tensor_type));
        assert_eq!(types, [Some(tensor_type); 3]);
        assert_eq!(file.tensor("blk.0.attn_norm.weight").map(|info| info.tensor_type), Some(TensorType::F32));
    }
}

#[test]
fn quantizing_a_folder_is_quantizing_its_file() {
    let output = tempfile::tempdir().expect("a folder");
    let pool = ThreadPool::new(2).expect("threads");
    for name in ["qwen2", "gemma3"] {
        let paths = ["folder.gguf", "file.gguf"].map(|file| output.path().join(file));
        let sources: [&dyn Checkpoint; 2] = [&folder(name), &gguf(name, "model-F32.gguf")];
        for (source, path) in sources.into_iter().zip(&paths) {
            quantize(source, path, recipe("Q8_0"), &QuantizeOptions::default(), &pool, &mut |_| {
                ControlFlow::Continue(())
            })
            .expect("written");
        }
        let [from_folder, from_file] = paths.map(|path| Gguf::open(path).expect("a valid file"));
        assert_same_tensors(&from_folder, &from_file);
        assert!(from_folder.metadata().contains("tokenizer.ggml.tokens"));
    }
}

#[test]
fn quantizing_while_loading_is_loading_the_quantized_file() {
    let output = tempfile::tempdir().expect("a folder");
    let pool = ThreadPool::new(2).expect("threads");
    let folder = folder("llama");
    for name in ["q8_0", "q4_k_m", "iq4_nl"] {
        let path = output.path().join(name);
        quantize(&folder, &path, recipe(name), &QuantizeOptions::default(), &pool, &mut |_| {
            ControlFlow::Continue(())
        })
        .expect("written");
        let in_situ = InSitu::new(&folder, recipe(name), &pool).expect("types");
        let file = Gguf::open(&path).expect("a valid file");
        assert_same_tensors(&in_situ, &file);

        let model = Model::load(&in_situ, &mut |_| ()).expect("it loads");
        let bytes = model.weight_bytes();
        let made: u64 = file.tensors().map(gguf_rs_lite::TensorInfo::bytes).sum();
        assert_eq!((bytes.shared, bytes.private), (0, made - divisors_bytes(&file)), "{name}");
    }
}

/// The rotary divisors belong to the configuration, not to the weights.
fn divisors_bytes(file: &Gguf) -> u64 {
    file.tensor("rope_freqs.weight").map_or(0, gguf_rs_lite::TensorInfo::bytes)
}

#[test]
fn work_that_is_stopped_leaves_no_file() {
    let output = tempfile::tempdir().expect("a folder");
    let pool = ThreadPool::new(1).expect("threads");
    let path = output.path().join("out.gguf");
    let stopped = convert(&folder("llama"), &path, None, &pool, &mut |_| ControlFlow::Break(()));
    assert!(matches!(stopped, Err(Error::Cancelled)));
    assert_eq!(output.path().read_dir().expect("the folder").count(), 0);
}

#[test]
fn a_path_is_opened_as_what_it_is() {
    let folder = ruvllm_models::open_checkpoint(tiny("llama").join("hf")).expect("the folder");
    let file = ruvllm_models::open_checkpoint(tiny("llama").join("model-F32.gguf")).expect("the file");
    assert_eq!((folder.gguf_version(), file.gguf_version()), (None, Some(3)));
    assert_eq!(
        folder.file_bytes(),
        tiny("llama").join("hf/model.safetensors").metadata().expect("a file").len()
    );
}
