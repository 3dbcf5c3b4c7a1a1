//! Metadata and tensors of folders are those of the converted files.

use gguf_rs_lite::{TensorType, Value};
use ruvllm_kernels::quant::WeightFormat;
use ruvllm_models::{Checkpoint, Compute, KvPolicy, LogitsRows, Model, PagePool, Segment, Workspace};
use ruvllm_text::tokenizer::{EncodeOptions, Tokenizer};

use crate::support::{TINY, folder, gguf, tensors};

/// Keys of the converted files that a folder's metadata do not have, or not with this value.
const OTHERS: [(&str, &str); 3] = [
    ("general.name", "given to the converter by hand"),
    ("general.size_label", "a name for people, which nothing reads"),
    ("tokenizer.ggml.add_sep_token", "for pairs of texts, which no decoder reads"),
];

/// Keys that only a folder's metadata have.
const MORE: [(&str, &str); 3] = [
    // The converter drops it, so that its files behave otherwise past the window.
    ("mistral", "llama.attention.sliding_window"),
    // The converter leaves it to the default.
    ("gemma2", "gemma2.rope.freq_base"),
    // As every other writer of this layout.
    ("mistral", "tokenizer.ggml.padding_token_id"),
];

/// The rotary divisors follow from the configuration by a power, whose last bit differs between
/// libraries.
const COMPUTED: &str = "rope_freqs.weight";

#[test]
fn tensors_are_those_of_the_converted_file_in_its_order() {
    for name in TINY {
        let (found, expected) = (tensors(&folder(name)), tensors(&gguf(name, "model-F32.gguf")));
        assert_eq!(found.len(), expected.len(), "{name}");
        for ((found, data), (expected, reference)) in found.iter().zip(&expected) {
            assert_eq!(found.name, expected.name, "{name}");
            let what = format!("{name} {}", found.name);
            assert_eq!((&found.dims, found.tensor_type), (&expected.dims, expected.tensor_type), "{what}");
            if found.name == COMPUTED {
                let values = |bytes: &[u8]| {
                    let mut values = vec![0.0; bytes.len() / 4];
                    WeightFormat::F32.dequantize(bytes, &mut values);
                    values
                };
                for (found, expected) in values(data).into_iter().zip(values(reference)) {
                    assert!((found - expected).abs() <= 2e-6 * expected, "{what}: {found} {expected}");
                }
            } else {
                assert!(data == reference, "{what}: other bytes");
            }
        }
    }
}

#[test]
fn metadata_are_those_of_the_converted_file() {
    for name in TINY {
        let (found, expected) =
            (folder(name).file_metadata().expect("metadata"), gguf(name, "model-F32.gguf"));
        let expected = expected.metadata();
        for (key, value) in expected.iter().filter(|(key, _)| OTHERS.iter().all(|(other, _)| other != key)) {
            let found = found.get(key);
            assert!(found.is_some(), "{name}: {key} is missing");
            // Single values are compared as they print, so that a difference can be read.
            match value {
                Value::Array(_) => assert!(found == Some(value), "{name}: {key} differs"),
                value => assert_eq!(found, Some(value), "{name}: {key}"),
            }
        }
        for (key, value) in found.iter().filter(|(key, _)| *key != "general.name" && !expected.contains(key))
        {
            assert!(MORE.contains(&(name, key)), "{name}: {key} = {value:?} is not in the converted file");
        }
    }
}

#[test]
fn matrices_are_not_copied_unless_their_rows_move() {
    for name in TINY {
        let folder = folder(name);
        let reorders = ["llama", "llama_yarn", "mistral"].contains(&name);
        for info in folder.tensors().filter(|info| info.dims.len() > 1) {
            let moves = reorders && (info.name.contains("attn_q.") || info.name.contains("attn_k."));
            let is_made = matches!(folder.data(info), Ok(ruvllm_models::TensorBytes::Made(_)));
            assert_eq!(is_made, moves, "{name} {}", info.name);
        }
    }
}

/// Logits of all tokens.
fn logits(checkpoint: &dyn Checkpoint, tokens: &[u32]) -> Vec<u32> {
    let model = Model::load(checkpoint, &mut |_| ()).expect("it loads");
    let compute = Compute::new(1).expect("kernels");
    let pool = PagePool::new(ruvllm_memory::PoolConfig::new(32 << 20)).expect("a pool");
    let policy: KvPolicy = "f32".parse().expect("a policy");
    let store = model.kv_store(&policy, &pool).expect("a store");
    let mut cache = model.new_sequence(&store, tokens.len()).expect("a cache");
    let segment = Segment::new(&compute, tokens, &mut cache, LogitsRows::All).expect("room");
    let mut workspace = Workspace::new();
    let logits = model.forward(&compute, &mut workspace, [segment]).expect("a step");
    logits.iter().map(|logit| logit.to_bits()).collect()
}

#[test]
fn a_folder_computes_what_the_file_computes() {
    let tokens: Vec<u32> = (0..40).map(|i| i * 7 % 500).collect();
    for name in TINY {
        assert!(logits(&folder(name), &tokens) == logits(&gguf(name, "model-F32.gguf"), &tokens), "{name}");
    }
}

#[test]
fn the_window_of_a_folder_counts_where_the_file_has_none() {
    let tokens: Vec<u32> = (0..80).map(|i| i * 7 % 500).collect();
    let (found, other) =
        (logits(&folder("mistral"), &tokens), logits(&gguf("mistral", "model-F32.gguf"), &tokens));
    let row = found.len() / tokens.len();
    assert!(found[..48 * row] == other[..48 * row], "within the window");
    assert!(found[48 * row..49 * row] != other[48 * row..49 * row], "behind it");
}

/// Texts with everything that a tokenizer treats by rules of its own.
const TEXTS: [&str; 6] = [
    "Hello world, it's 12345 o'clock.",
    "  two  spaces\n\n\ttabs and\r\nlines ",
    "fn main() { println!(\"{}\", 1_000); }",
    "naïve café — “quoted” 東京 🚀",
    "<|im_start|>user\nhi<|im_end|> <s>[INST] x [/INST]</s><start_of_turn>model\n<|user|>a<|end|>",
    "",
];

#[test]
fn the_tokenizer_of_a_folder_agrees_with_that_of_the_file_made_of_it() {
    for name in TINY {
        let folder = folder(name);
        let own = folder.tokenizer().expect("a tokenizer");
        let written = Tokenizer::from_gguf(&folder.file_metadata().expect("metadata")).expect("a tokenizer");
        let golden = gguf(name, "model-F32.gguf").tokenizer().expect("a tokenizer");
        for text in TEXTS {
            for add_special in [false, true] {
                let options = EncodeOptions { add_special, parse_special: true };
                let encode = |tokenizer: &Tokenizer| tokenizer.encode(text, options).expect("ids");
                assert_eq!(encode(&own), encode(&golden), "{name} {text:?}");
                assert_eq!(encode(&written), encode(&golden), "{name} {text:?}");
            }
        }
        assert_eq!(own.bos(), golden.bos(), "{name}");
        assert_eq!((own.eos(), written.eos()), (golden.eos(), golden.eos()), "{name}");
        assert!(golden.end_of_generation().iter().all(|&id| own.is_end_of_generation(id)), "{name}");
    }
}

#[test]
fn vectors_are_in_single_precision_whatever_the_folder_has() {
    for name in TINY {
        for info in folder(name).tensors().filter(|info| info.dims.len() == 1) {
            assert_eq!(info.tensor_type, TensorType::F32, "{name} {}", info.name);
        }
    }
}
