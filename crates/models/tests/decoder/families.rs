//! Switches of the families as read from files, and their effects.

use gguf_rs_lite::{Gguf, Metadata, Value};
use ruvllm_kernels::attention::KvScratch;
use ruvllm_kernels::rope::{RopeLayout, RopeScaling};
use ruvllm_kv_cache::KvRopes;
use ruvllm_models::{
    Activation, Error, KvFormat, LogitsRows, Model, ModelConfig, Projections, Segment, Sequence, Window,
    Workspace,
};
use ruvllm_text::TokenId;

use crate::fixtures::{self, Expected, TINY, all_logits, become_architecture, bits, rewrite};

fn tiny(name: &str) -> Gguf {
    fixtures::gguf(&format!("tiny/{name}/model-F16.gguf"))
}

fn config(name: &str) -> ModelConfig {
    ModelConfig::from_checkpoint(&tiny(name)).expect("valid")
}

/// The configuration of a file with other metadata.
fn changed(name: &str, change: impl FnOnce(&mut Metadata)) -> Result<ModelConfig, Error> {
    ModelConfig::from_checkpoint(&rewrite(&tiny(name), |metadata, _| change(metadata)))
}

fn windowed_layers(config: &ModelConfig) -> Vec<Option<usize>> {
    (0..config.n_layers).map(|layer| config.decoder.window.of_layer(layer)).collect()
}

#[test]
fn the_usual_form_is_that_of_llama_with_halves_rotated() {
    let qwen2 = config("qwen2").decoder;
    assert_eq!(qwen2.rope_layout, RopeLayout::Halves);
    assert_eq!((qwen2.activation, qwen2.projections), (Activation::SwiGlu, Projections::Separate));
    assert_eq!((qwen2.window, qwen2.embedding_scale), (Window::Full, 1.0));
    assert_eq!((qwen2.attention_soft_cap, qwen2.logits_soft_cap), (None, None));
    assert_eq!((qwen2.head_norms, qwen2.post_norms), (false, false));
    let qwen3 = config("qwen3");
    assert_eq!((qwen3.decoder.head_norms, qwen3.decoder.post_norms), (true, false));
    assert_eq!((qwen3.query_dim(), qwen3.model_dim), (128, 96));
    assert_eq!(config("phi3").decoder.projections, Projections::Joint);
}

#[test]
fn gemma_has_caps_windows_and_scales() {
    let gemma2 = config("gemma2");
    let decoder = &gemma2.decoder;
    assert_eq!((decoder.activation, decoder.embedding_scale), (Activation::GeGlu, 8.0));
    assert_eq!((decoder.attention_soft_cap, decoder.logits_soft_cap), (Some(5.0), Some(9.0)));
    assert_eq!((decoder.head_norms, decoder.post_norms), (false, true));
    assert_eq!(windowed_layers(&gemma2), [Some(40), None, Some(40), None]);
    assert_eq!((gemma2.longest_window(), gemma2.local_rope), (None, None));

    let gemma3 = config("gemma3");
    let decoder = &gemma3.decoder;
    assert_eq!((decoder.attention_soft_cap, decoder.logits_soft_cap), (None, None));
    assert_eq!((decoder.head_norms, decoder.post_norms), (true, true));
    let window = Some(32);
    assert_eq!(windowed_layers(&gemma3), [window, window, window, window, window, None, window]);
    assert_eq!(gemma3.rope.base, 1e6);
    assert!(matches!(gemma3.rope.scaling, RopeScaling::Linear { .. }));
    let local = gemma3.local_rope.expect("another base");
    assert_eq!(local.layers, [true, true, true, true, true, false, true]);
    let rope = local.rope.expect("rotated");
    assert_eq!((rope.base, rope.rotary_dim, rope.scaling), (1e4, 32, RopeScaling::None));
}

#[test]
fn what_gemma_files_leave_out_has_its_usual_value() {
    let bare = changed("gemma2", |metadata| {
        for key in ["attn_logit_softcapping", "final_logit_softcapping", "attention.sliding_window"] {
            metadata.remove(&format!("gemma2.{key}")).expect("the fixture has it");
        }
    });
    let bare = bare.expect("valid");
    assert_eq!((bare.decoder.attention_soft_cap, bare.decoder.logits_soft_cap), (Some(50.0), Some(30.0)));
    assert_eq!(windowed_layers(&bare), [Some(4096), None, Some(4096), None]);

    let local = changed("gemma3", |metadata| drop(metadata.remove("gemma3.rope.freq_base_swa")));
    let local = local.expect("valid").local_rope.expect("windowed layers");
    assert_eq!(local.rope.expect("the usual base").base, 1e4);
    let no_window = changed("gemma3", |metadata| drop(metadata.remove("gemma3.attention.sliding_window")));
    let no_window = no_window.expect("valid");
    assert_eq!((no_window.decoder.window, no_window.local_rope), (Window::Full, None));
    let no_caps = changed("gemma2", |metadata| drop(metadata.insert("gemma2.attn_logit_softcapping", 0f32)));
    assert_eq!(no_caps.expect("valid").decoder.attention_soft_cap, None);
}

#[test]
fn the_largest_gemma_scales_by_its_width_per_head_and_a_key_has_the_last_word() {
    let scale = |name: &str, changes: &[(&str, Value)]| {
        let config = changed(name, |metadata| {
            for (key, value) in changes {
                metadata.insert(format!("{name}.{key}"), value.clone());
            }
        });
        config.expect("valid").decoder.attention_scale
    };
    for (name, layers) in [("gemma2", 46u32), ("gemma3", 62)] {
        assert_eq!(scale(name, &[]), (1.0 / 32f64.sqrt()) as f32, "by head_dim");
        assert_eq!(scale(name, &[("block_count", layers.into())]), 0.25, "by model_dim / heads = 16");
        assert_eq!(scale(name, &[("attention.scale", 0.5f32.into())]), 0.5);
    }
}

#[test]
fn windows_follow_a_pattern_of_layers_or_a_period() {
    let windows = |pattern: Value| {
        changed("qwen2", |metadata| {
            metadata.insert("qwen2.attention.sliding_window", 7u32);
            metadata.insert("qwen2.attention.sliding_window_pattern", pattern);
        })
    };
    let layers = |pattern: Value| windowed_layers(&windows(pattern).expect("valid"));
    let window = Some(7);
    assert_eq!(layers(vec![false, true, true].into()), [None, window, window]);
    assert_eq!(layers(vec![1u32, 0, 5].into()), [window, None, window]);
    assert_eq!(layers(2u32.into()), [window, None, window]);
    assert_eq!(layers(0u32.into()), [window, window, window]);
    assert_eq!(windows(0u32.into()).expect("valid").longest_window(), window);
    assert_eq!(windows(1u32.into()).expect("valid").decoder.window, Window::Full);
    assert_eq!(windows(vec![true; 3].into()).expect("valid").decoder.window, Window::Sliding(7));
    assert_eq!(
        windows(vec![true; 2].into()).expect_err("too short").to_string(),
        "metadata key `qwen2.attention.sliding_window_pattern` is an array of 2, expected an array of 3"
    );
}

#[test]
fn every_tensor_of_a_family_is_needed() {
    for name in TINY {
        let gguf = tiny(name);
        let names: Vec<String> = gguf.tensors().map(|info| info.name.clone()).collect();
        for missing in names {
            let rest = rewrite(&gguf, |_, tensors| tensors.retain(|tensor| tensor.0 != missing));
            let loaded = Model::load(&rest, &mut |_| ());
            // Models without biases, divisors or an output matrix are models of the same family.
            let optional =
                missing.ends_with(".bias") || ["output.weight", "rope_freqs.weight"].contains(&&*missing);
            match loaded {
                Ok(_) => assert!(optional, "{name}: loads without {missing}"),
                Err(Error::MissingTensor { name: found }) => assert_eq!(found, missing, "{name}"),
                Err(error) => panic!("{name} without {missing}: {error}"),
            }
        }
    }
}

#[test]
fn queries_grow_where_a_file_says_so() {
    let model = |scale: Option<f32>, original: Option<u32>| {
        let gguf = rewrite(&tiny("llama"), |metadata, _| {
            become_architecture(metadata, "llama", "mistral3");
            if let Some(scale) = scale {
                metadata.insert("mistral3.attention.temperature_scale", scale);
            }
            if let Some(original) = original {
                metadata.insert("mistral3.rope.scaling.original_context_length", original);
            }
        });
        Model::load(&gguf, &mut |_| ())
    };
    let compute = fixtures::compute();
    let tokens = &Expected::read("tiny/llama").prompt("medium")[..20];
    let run = |model: &Model, chunk| bits(&all_logits(model, &compute, KvFormat::F32, tokens, chunk));
    let usual = run(&Model::load(&tiny("llama"), &mut |_| ()).expect("it loads"), 20);
    for without in [model(None, None), model(Some(0.0), None), model(Some(0.5), Some(20))] {
        assert!(run(&without.expect("it loads"), 20) == usual);
    }
    let grown = model(Some(0.5), Some(8)).expect("it loads");
    let (found, row) = (run(&grown, 20), usual.len() / 20);
    assert!(found[..8 * row] == usual[..8 * row] && found[8 * row..] != usual[8 * row..]);
    assert!(run(&grown, 3) == found);
    let temperature = grown.config().decoder.attention_temperature.expect("a temperature");
    assert_eq!(
        [0, 7, 8, 17].map(|position| temperature.factor(position)),
        [1.0, 1.0, 1.0 + 0.5 * 2.0_f32.ln(), 1.0 + 0.5 * 3.0_f32.ln(),]
    );
    let error = model(Some(0.5), None).expect_err("no length");
    assert!(error.to_string().contains("mistral3.rope.scaling.original_context_length"), "{error}");
}

#[test]
fn tensors_of_other_families_are_refused() {
    for (name, other) in [("qwen3", "qwen2"), ("gemma2", "qwen2"), ("gemma3", "gemma2"), ("gemma3", "qwen3")]
    {
        let gguf = rewrite(&tiny(name), |metadata, _| become_architecture(metadata, name, other));
        let error = Model::load(&gguf, &mut |_| ()).expect_err("another family");
        assert!(
            matches!(&error, Error::UnexpectedTensor { architecture, .. } if architecture == other),
            "{name} as {other}: {error}"
        );
    }
}

#[test]
fn joint_projections_are_their_parts() {
    let gguf = tiny("phi3");
    let dims = config("phi3");
    let parts = rewrite(&gguf, |metadata, tensors| {
        become_architecture(metadata, "phi3", "qwen2");
        for (name, dims_of, tensor_type, data) in std::mem::take(tensors) {
            let rows = match name.as_str() {
                joint if joint.ends_with("attn_qkv.weight") => vec![
                    ("attn_qkv", "attn_q", dims.query_dim()),
                    ("attn_qkv", "attn_k", dims.kv_dim()),
                    ("attn_qkv", "attn_v", dims.kv_dim()),
                ],
                joint if joint.ends_with("ffn_up.weight") => {
                    vec![("ffn_up", "ffn_gate", dims.ffn_dim), ("ffn_up", "ffn_up", dims.ffn_dim)]
                }
                _ => {
                    tensors.push((name, dims_of, tensor_type, data));
                    continue;
                }
            };
            let mut rest = &data[..];
            for (joint, part, rows) in rows {
                let (taken, left) = rest.split_at(rows * dims.model_dim * size_of::<u16>());
                let dims_of = vec![dims.model_dim as u64, rows as u64];
                tensors.push((name.replace(joint, part), dims_of, tensor_type, taken.to_vec()));
                rest = left;
            }
            assert!(rest.is_empty(), "{name} has more rows");
        }
    });
    let tokens = Expected::read("tiny/phi3").prompt("medium");
    let compute = fixtures::compute();
    let run = |gguf: &Gguf| {
        let model = Model::load(gguf, &mut |_| ()).expect("it loads");
        bits(&all_logits(&model, &compute, KvFormat::F32, &tokens, tokens.len()))
    };
    assert!(run(&gguf) == run(&parts));
}

#[test]
fn the_capacity_of_a_sequence_chooses_the_factors_of_longrope() {
    let model = fixtures::model("tiny/phi3/model-F16.gguf");
    assert_eq!(model.config().long_rope_above(), Some(256));
    let compute = fixtures::compute();
    let tokens: Vec<TokenId> = (10..50).collect();
    let logits = |capacity| {
        let mut cache = fixtures::new_cache(&model, KvFormat::F32, capacity).expect("a cache");
        let mut workspace = Workspace::new();
        let segment = Segment::new(&compute, &tokens, &mut cache, LogitsRows::Last).expect("room");
        bits(model.forward(&compute, &mut workspace, [segment]).expect("a step"))
    };
    let (short, long) = (logits(40), logits(1024));
    assert!(logits(256) == short);
    assert!(logits(257) == long);
    assert!(short != long);
}

#[test]
fn sequences_of_both_kinds_share_a_batch() {
    let model = fixtures::model("tiny/phi3/model-F16.gguf");
    let compute = fixtures::compute();
    let tokens: Vec<TokenId> = (10..50).collect();
    let run = |capacities: &[usize]| {
        let mut caches: Vec<_> = capacities
            .iter()
            .map(|&capacity| fixtures::new_cache(&model, KvFormat::F32, capacity).expect("a cache"))
            .collect();
        let segments: Vec<Segment<'_>> = caches
            .iter_mut()
            .map(|cache| Segment::new(&compute, &tokens, cache, LogitsRows::Last).expect("room"))
            .collect();
        bits(model.forward(&compute, &mut Workspace::new(), segments).expect("a step"))
    };
    assert!(run(&[40, 1024]) == [run(&[40]), run(&[1024])].concat());
}

#[test]
fn longrope_needs_both_tensors_and_nothing_beside_them() {
    let without = |missing: &str| {
        let gguf = rewrite(&tiny("phi3"), |_, tensors| tensors.retain(|tensor| tensor.0 != missing));
        ModelConfig::from_checkpoint(&gguf).expect_err("refused").to_string()
    };
    for name in ["rope_factors_short.weight", "rope_factors_long.weight"] {
        assert_eq!(without(name), format!("tensor `{name}` is missing"));
    }
    let with = |key: &str, value: Value| {
        let key = format!("phi3.rope.scaling.{key}");
        changed("phi3", |metadata| drop(metadata.insert(key, value))).map_err(|error| error.to_string())
    };
    assert!(with("type", "longrope".into()).is_ok());
    assert_eq!(
        with("type", "yarn".into()).expect_err("refused"),
        "metadata key `phi3.rope.scaling.type` is `yarn`, expected `longrope` beside the tensor \
         `rope_factors_short.weight` or `rope_factors_long.weight`"
    );
    assert_eq!(
        with("factor", 4f32.into()).expect_err("refused"),
        "metadata key `phi3.rope.scaling.factor` is 4, expected 1 where divisors scale the frequencies"
    );
    let named = changed("qwen2", |metadata| drop(metadata.insert("qwen2.rope.scaling.type", "longrope")));
    assert_eq!(named.expect_err("refused").to_string(), "tensor `rope_factors_short.weight` is missing");
    // A model that was trained for its whole context has no use for the long factors.
    let whole = with("original_context_length", 1024u32.into()).expect("valid");
    assert_eq!(whole.long_rope_above(), None);
}

/// The keys of a sequence in one layer, `[tokens, n_kv_heads * head_dim]`, turned back in float64
/// as `ropes` says.
fn keys_turned_back(ropes: &KvRopes, config: &ModelConfig, cache: &Sequence, layer: usize) -> Vec<Vec<f64>> {
    let rope = match (&ropes.local, &ropes.long) {
        (Some((local, layers)), _) if layers[layer] => local,
        (_, Some((above, long))) if cache.capacity() > *above => long,
        _ => &ropes.usual,
    };
    let (inverse, magnitude) = (&rope.frequencies.inverse, rope.frequencies.magnitude);
    let mut views = Vec::new();
    let reader = cache.read();
    reader.view(layer, &mut views);
    let mut keys = vec![Vec::new(); cache.len()];
    for (block, view) in views.iter().enumerate() {
        for head in 0..config.n_kv_heads {
            let mut rows = vec![0.0; 32 * config.head_dim];
            let (kernels, mut scratch) = (fixtures::compute().kernels, KvScratch::new());
            kernels.read_kv(view.keys, head, 0..32, &mut rows, &mut scratch);
            for (at, row) in rows.chunks(config.head_dim).enumerate() {
                let position = 32 * block + at;
                let mut key: Vec<f64> = row.iter().map(|&x| x.into()).collect();
                for (pair, frequency) in inverse.iter().enumerate() {
                    let (i, j) = match rope.layout {
                        RopeLayout::Halves => (pair, pair + inverse.len()),
                        RopeLayout::Interleaved => (2 * pair, 2 * pair + 1),
                    };
                    let (sin, cos) = (position as f64 * frequency).sin_cos();
                    let [a, b] = [key[i], key[j]].map(|x| x / magnitude);
                    (key[i], key[j]) = (a * cos + b * sin, b * cos - a * sin);
                }
                keys[position].extend(key);
            }
        }
    }
    keys
}

/// A text of one token looks the same from each of its positions, so before they are turned its
/// keys are equal in every layer: what is wider than rounding was turned back in another way than
/// it was turned.
#[test]
fn keys_are_turned_as_caches_are_told() {
    let widest = |name: &str, capacity: usize, ropes: &dyn Fn(KvRopes) -> KvRopes| {
        let model = fixtures::model(&format!("tiny/{name}/model-F16.gguf"));
        let ropes = ropes(model.kv_ropes());
        let capacity = capacity.min(model.config().context_length);
        let mut cache = fixtures::new_cache(&model, KvFormat::F32, capacity).expect("a cache");
        let compute = fixtures::compute();
        let segment = Segment::new(&compute, &[77; 96], &mut cache, LogitsRows::None).expect("room");
        model.forward(&compute, &mut Workspace::new(), [segment]).expect("a step");
        let of_layer = |layer| {
            let keys = keys_turned_back(&ropes, model.config(), &cache, layer);
            let distance =
                |key: &Vec<f64>| key.iter().zip(&keys[0]).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            let largest = keys[0].iter().fold(0.0, |most: f64, x| most.max(x.abs()));
            keys.iter().map(distance).fold(0.0, f64::max) / largest
        };
        (0..model.config().n_layers).map(of_layer).collect::<Vec<f64>>()
    };
    for name in TINY {
        // The original context of `phi3` has 256 tokens.
        for capacity in [256, 257] {
            let widest = widest(name, capacity, &|ropes| ropes);
            assert!(widest.iter().all(|&width| width < 1e-4), "{name}, {capacity} tokens: {widest:?}");
        }
    }
    let not_local = widest("gemma3", 256, &|ropes| ropes.usual.into());
    assert!(not_local[0] > 0.1 && not_local[5] < 1e-4, "only layer 5 is not local: {not_local:?}");
    let not_long = widest("phi3", 257, &|ropes| ropes.usual.into());
    assert!(not_long[0] > 0.01, "{not_long:?}");
}
