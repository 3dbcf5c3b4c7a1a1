//! Files whose hyperparameters are arbitrary: loading answers with a model or an error, and
//! whatever loads also runs or answers with an error.

use gguf_rs_lite::{Gguf, TensorType, Value};
use proptest::prelude::*;
use ruvllm_models::{KvFormat, LogitsRows, Model, Segment, Workspace};

use crate::fixtures::{self, TINY, become_architecture, rewrite};

/// Keys behind the name of the architecture.
const KEYS: &[&str] = &[
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.scale",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.dimension_count",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_log_multiplier",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_ext_factor",
    "vocab_size",
    "expert_count",
    "expert_used_count",
];

/// Widths that tensors of the tiny models have, and others.
const DIMS: &[u64] = &[0, 1, 2, 8, 32, 64, 96, 128, 160, 176, 256, 320, 576];

/// Values of every kind, near what is valid and far from it. `None` removes the key.
fn value() -> impl Strategy<Value = Option<Value>> {
    let small = prop::sample::select(vec![0u32, 1, 2, 3, 4, 8, 15, 16, 30, 31, 32, 64, 128, 256, 570]);
    prop_oneof![
        Just(None),
        small.prop_map(|value| Some(Value::U32(value))),
        any::<u32>().prop_map(|value| Some(Value::U32(value))),
        any::<u64>().prop_map(|value| Some(Value::U64(value))),
        any::<i32>().prop_map(|value| Some(Value::I32(value))),
        any::<f32>().prop_map(|value| Some(Value::F32(value))),
        (-2f32..100.0).prop_map(|value| Some(Value::F32(value))),
        prop::sample::select(vec!["llama", "yarn", "linear", "none", "", "longrope"])
            .prop_map(|value| Some(Value::String(value.into()))),
        any::<bool>().prop_map(|value| Some(Value::Bool(value))),
        prop::collection::vec(any::<bool>(), 0..8).prop_map(|values| Some(values.into())),
        prop::collection::vec(0u32..3, 0..8).prop_map(|values| Some(values.into())),
    ]
}

fn tiny(name: &str) -> Gguf {
    fixtures::gguf(&format!("tiny/{name}/model-F16.gguf"))
}

/// Loads and, if that works, runs a few tokens.
fn load_and_run(gguf: &Gguf) {
    let Ok(model) = Model::load(gguf, &mut |_| ()) else { return };
    let compute = fixtures::compute();
    let capacity = model.config().context_length.min(16);
    let mut cache = fixtures::new_cache(&model, KvFormat::F16, capacity).expect("within the context");
    let mut workspace = Workspace::new();
    for tokens in [&[1u32, 2, 3][..], &[4]] {
        let Ok(segment) = Segment::new(&compute, tokens, &mut cache, LogitsRows::Last) else { return };
        if let Ok(logits) = model.forward(&compute, &mut workspace, [segment]) {
            assert_eq!(logits.len(), model.config().vocab_size);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_hyperparameters_never_panic(
        name in prop::sample::select(&TINY),
        architecture in prop::option::weighted(
            0.1,
            prop::sample::select(vec!["llama", "qwen2", "qwen3", "phi3", "gemma2", "gemma3", "gpt2"]),
        ),
        changes in prop::collection::vec((prop::sample::select(KEYS), value()), 0..4),
    ) {
        load_and_run(&rewrite(&tiny(name), |metadata, _| {
            let own = metadata.get_str("general.architecture").expect("a name").expect("there").to_owned();
            for (key, value) in changes {
                let key = format!("{own}.{key}");
                match value {
                    Some(value) => drop(metadata.insert(key, value)),
                    None => drop(metadata.remove(&key)),
                }
            }
            if let Some(architecture) = architecture {
                become_architecture(metadata, &own, architecture);
            }
        }));
    }

    #[test]
    fn arbitrary_shapes_and_types_never_panic(
        name in prop::sample::select(&TINY),
        which in any::<prop::sample::Index>(),
        dims in prop::collection::vec(prop::sample::select(DIMS), 0..4),
        tensor_type in prop::sample::select(TensorType::ALL),
    ) {
        load_and_run(&rewrite(&tiny(name), |_, tensors| {
            let which = which.index(tensors.len());
            let tensor = &mut tensors[which];
            if let Ok(info) = gguf_rs_lite::TensorInfo::new("any", dims.clone(), tensor_type) {
                let bytes = usize::try_from(info.bytes()).expect("small");
                *tensor = (tensor.0.clone(), dims, tensor_type, vec![0x3c; bytes]);
            }
        }));
    }
}
