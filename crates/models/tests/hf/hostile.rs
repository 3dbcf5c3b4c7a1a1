//! Random damage to the files of a folder: an error or a model, never a panic, and never much
//! memory.

use std::fs;

use proptest::prelude::*;
use ruvllm_models::{Checkpoint, Model};
use serde_json::{Value, json};

use crate::support::{Copy, TINY};

/// Does with a folder what a program does.
fn use_folder(copy: &Copy) {
    let Ok(folder) = copy.open() else { return };
    for info in folder.tensors() {
        if let Ok(data) = folder.data(info) {
            assert_eq!(data.as_ref().len() as u64, info.bytes(), "{}", info.name);
        }
    }
    let _ = Model::load(&folder, &mut |_| ());
    let _ = folder.file_metadata();
    let _ = folder.tokenizer();
}

/// Values that fields do not expect.
fn odd_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        Just(json!(0)),
        Just(json!(-1)),
        Just(json!(1)),
        Just(json!(2)),
        Just(json!(3)),
        Just(json!(0.5)),
        Just(json!(1e308)),
        Just(json!(u64::MAX)),
        Just(json!(1 << 20)),
        Just(json!(true)),
        Just(json!("yarn")),
        Just(json!("longrope")),
        Just(json!([])),
        Just(json!([1.0, 2.0])),
        Just(json!({})),
        Just(json!({"rope_type": "llama3"})),
        Just(json!(["sliding_attention", "full_attention", "sliding_attention"])),
        Just(
            json!({"rope_type": "yarn", "factor": 1e300, "mscale": 1e-300, "mscale_all_dim": 1e300, "truncate": false})
        ),
        Just(
            json!({"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 4e9, "llama_4_scaling_beta": 1})
        ),
        Just(json!({"full_attention": {"rope_theta": 1e4, "rope_type": "yarn", "factor": 1e-30}})),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48 * ProptestConfig::default().cases / 256))]

    #[test]
    fn configurations_with_odd_values(model in 0..TINY.len(), edits in prop::collection::vec((any::<u16>(), odd_value()), 1..4)) {
        let copy = Copy::of(TINY[model]);
        copy.edit("config.json", |config| {
            let keys: Vec<String> = config.keys().cloned().collect();
            for (at, value) in edits {
                config.insert(keys[at as usize % keys.len()].clone(), value);
            }
        });
        use_folder(&copy);
    }

    #[test]
    fn weight_headers_with_other_bytes(model in 0..TINY.len(), edits in prop::collection::vec((any::<u16>(), any::<u8>()), 1..6)) {
        let copy = Copy::of(TINY[model]);
        let path = copy.path("model.safetensors");
        let mut bytes = fs::read(&path).expect("the weights");
        let header = 8 + u64::from_le_bytes(*bytes.first_chunk().expect("a length")) as usize;
        for (at, byte) in edits {
            bytes[at as usize % header] = if byte < 0x80 { byte } else { b'0' + byte % 10 };
        }
        fs::write(&path, bytes).expect("written");
        use_folder(&copy);
    }

    #[test]
    fn tokenizer_files_with_other_bytes(
        model in prop_oneof![Just("phi3"), Just("gemma3"), Just("qwen2")],
        file in 0..3usize,
        edits in prop::collection::vec((any::<u32>(), any::<u8>()), 1..6),
    ) {
        let copy = Copy::of(model);
        let path = copy.path(["tokenizer.json", "tokenizer.model", "tokenizer_config.json"][file]);
        if let Ok(mut bytes) = fs::read(&path) {
            for (at, byte) in edits {
                let at = at as usize % bytes.len();
                bytes[at] = byte;
            }
            fs::write(&path, bytes).expect("written");
        }
        use_folder(&copy);
    }
}
