//! Files whose hyperparameters are arbitrary: loading answers with a model or an error, and whatever
//! loads also runs or answers with an error.

use gguf_rs_lite::{Gguf, TensorType, Value};
use proptest::prelude::*;
use ruvllm_models::{KvFormat, LogitsRows, Model, Segment, Workspace};

use crate::fixtures::{self, rewrite};

const KEYS: &[&str] = &[
    "general.architecture",
    "llama.block_count",
    "llama.context_length",
    "llama.embedding_length",
    "llama.feed_forward_length",
    "llama.attention.head_count",
    "llama.attention.head_count_kv",
    "llama.attention.key_length",
    "llama.attention.value_length",
    "llama.attention.layer_norm_rms_epsilon",
    "llama.attention.sliding_window",
    "llama.attention.scale",
    "llama.rope.freq_base",
    "llama.rope.dimension_count",
    "llama.rope.scale_linear",
    "llama.rope.scaling.type",
    "llama.rope.scaling.factor",
    "llama.rope.scaling.original_context_length",
    "llama.rope.scaling.attn_factor",
    "llama.rope.scaling.yarn_attn_factor",
    "llama.rope.scaling.yarn_beta_fast",
    "llama.rope.scaling.yarn_beta_slow",
    "llama.rope.scaling.yarn_ext_factor",
    "llama.vocab_size",
    "llama.expert_count",
];

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
    ]
}

/// Loads and, if that works, runs a few tokens.
fn load_and_run(gguf: &Gguf) {
    let Ok(model) = Model::load(gguf, &mut |_| ()) else { return };
    let compute = fixtures::compute();
    let capacity = model.config().context_length.min(16);
    let mut cache = fixtures::new_cache(&model, KvFormat::F16, capacity).expect("within the context");
    let mut workspace = Workspace::new();
    for tokens in [&[1u32, 2, 3][..], &[4]] {
        let mut segment = Segment { tokens, cache: &mut cache, logits: LogitsRows::Last };
        if let Ok(logits) = model.forward(&compute, &mut workspace, std::slice::from_mut(&mut segment)) {
            assert_eq!(logits.len(), model.config().vocab_size);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_hyperparameters_never_panic(
        yarn in any::<bool>(),
        changes in prop::collection::vec((prop::sample::select(KEYS), value()), 1..4),
    ) {
        let source = if yarn { "tiny/llama_yarn/model-F16.gguf" } else { "tiny/llama/model-F16.gguf" };
        load_and_run(&rewrite(&fixtures::gguf(source), |metadata, _| {
            for (key, value) in changes {
                match value {
                    Some(value) => drop(metadata.insert(key, value)),
                    None => drop(metadata.remove(key)),
                }
            }
        }));
    }

    #[test]
    fn arbitrary_shapes_and_types_never_panic(
        which in any::<prop::sample::Index>(),
        dims in prop::collection::vec(prop::sample::select(vec![0u64, 1, 2, 32, 64, 176, 256, 570]), 0..4),
        tensor_type in prop::sample::select(TensorType::ALL),
    ) {
        load_and_run(&rewrite(&fixtures::gguf("tiny/llama/model-F16.gguf"), |_, tensors| {
            let which = which.index(tensors.len());
            let tensor = &mut tensors[which];
            if let Ok(info) = gguf_rs_lite::TensorInfo::new("any", dims.clone(), tensor_type) {
                let bytes = usize::try_from(info.bytes()).expect("small");
                *tensor = (tensor.0.clone(), dims, tensor_type, vec![0x3c; bytes]);
            }
        }));
    }
}
