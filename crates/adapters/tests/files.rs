//! Adapter files: what is read from them, and what is refused with which words.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use gguf_rs_lite::{Metadata, TensorInfo, TensorType, Writer};
use ruvllm_adapters::{Adapter, BaseModel, Error, LoraFile, Part, Projection, Site};
use ruvllm_kernels::low_rank::{FactorFormat, LowRank, LowRankScratch, LowRankTerm};
use ruvllm_kernels::quant::SharedBytes;
use ruvllm_kernels::{Kernels, ThreadPool};
use ruvllm_memory::{PagePool, PoolConfig, Request};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use tempfile::TempDir;

type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

fn f32s(shape: [usize; 2]) -> (Dtype, Vec<usize>, Vec<u8>) {
    let values = (0..shape[0] * shape[1]).map(|i| (i as f32 + 1.0) / 8.0);
    (Dtype::F32, shape.to_vec(), values.flat_map(f32::to_le_bytes).collect())
}

fn config() -> Value {
    json!({"peft_type": "LORA", "r": 2, "lora_alpha": 8, "rank_pattern": {}, "use_dora": false, "modules_to_save": null})
}

/// The factors of the queries of layer 1 of [`base`].
fn tensors() -> Tensors {
    let name = |which: &str| format!("base_model.model.model.layers.1.self_attn.q_proj.lora_{which}.weight");
    BTreeMap::from([(name("A"), f32s([2, 6])), (name("B"), f32s([8, 2]))])
}

fn folder(config: &Value, tensors: &Tensors) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("adapter_config.json"), config.to_string()).unwrap();
    let views = tensors.iter().map(|(name, (dtype, shape, data))| {
        (name.clone(), TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    fs::write(folder.path().join("adapter_model.safetensors"), safetensors::serialize(views, None).unwrap())
        .unwrap();
    folder
}

fn base() -> BaseModel {
    BaseModel {
        architecture: "llama".to_owned(),
        n_layers: 2,
        model_dim: 6,
        query_dim: 8,
        kv_dim: 4,
        head_dim: 4,
        ffn_dim: 10,
        vocab_size: 12,
        interleaved_heads: false,
        joint_attention: false,
        joint_feed_forward: false,
    }
}

fn pool() -> PagePool {
    PagePool::new(PoolConfig { page_bytes: 512 << 10, ..PoolConfig::new(8 << 20) }).unwrap()
}

fn adapter(base: &BaseModel, file: &LoraFile, scale: f32) -> Result<Adapter, Error> {
    Adapter::new(
        &Arc::new(base.clone()),
        &[Part { file, scale }],
        FactorFormat::F32,
        &pool(),
        &Request::default(),
    )
}

/// An error and its causes.
fn words(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

fn refusal(config: &Value, tensors: &Tensors) -> String {
    let folder = folder(config, tensors);
    words(&LoraFile::open(folder.path()).expect_err("it is refused"))
}

#[test]
fn a_peft_folder_is_read_and_applied() {
    let folder = folder(&config(), &tensors());
    for path in [folder.path().to_owned(), folder.path().join("adapter_model.safetensors")] {
        let file = LoraFile::open(&path).unwrap();
        let [update] = file.updates() else { panic!("one matrix") };
        assert_eq!((update.projection, update.layer, update.rank), (Projection::Query, 1, 2));
        assert_eq!((update.inputs, update.outputs, update.scale), (6, 8, 4.0));
    }
    let file = LoraFile::open(folder.path()).unwrap();
    let adapter = adapter(&base(), &file, 0.5).unwrap();
    assert!(adapter.at(0, Site::AttentionInput).is_none() && adapter.at(1, Site::Logits).is_none());
    assert!(adapter.at(2, Site::AttentionInput).is_none(), "there is no such layer");
    let low_rank = adapter.at(1, Site::AttentionInput).unwrap();
    let shape = low_rank.shape();
    assert_eq!((shape.rank(), shape.outputs(0), shape.outputs(1)), (2, Some(8), None));
    assert_eq!((adapter.bytes(), shape.inputs()), (64 + 4 * 16, 6));
    // Row i of A is (6i + 1, .., 6i + 6) / 8, row i of B (2i + 1, 2i + 2) / 8; alpha by rank is 4,
    // and the part counts half.
    let u = [0.125, 0.875].map(|first: f32| first - 2.0 * (first + 0.125));
    let expected: Vec<f32> =
        (0..8).map(|i| 1.0 + 2.0 * ((2 * i + 1) as f32 * u[0] + (2 * i + 2) as f32 * u[1]) / 8.0).collect();
    assert_eq!(applied(low_rank, &[1.0, -2.0, 0.0, 0.0, 0.0, 0.0]), expected);
}

/// `1 + B A x` for the queries.
fn applied(update: LowRank<'_>, x: &[f32]) -> Vec<f32> {
    let mut out = vec![1.0; 8];
    let term = LowRankTerm { rows: 0..1, scale: 1.0, gates: &[], update };
    let kernels = Kernels::detect().unwrap();
    let outs = &mut [&mut out[..]];
    kernels.add_low_rank(&ThreadPool::single(), x, &[term], outs, &mut LowRankScratch::default());
    out
}

#[test]
fn rows_of_heads_are_interleaved_where_the_model_has_them_so() {
    let folder = folder(&config(), &tensors());
    let file = LoraFile::open(folder.path()).unwrap();
    let interleaved = BaseModel { interleaved_heads: true, ..base() };
    let [plain, turned] = [base(), interleaved].map(|base| {
        let adapter = adapter(&base, &file, 1.0).unwrap();
        applied(adapter.at(1, Site::AttentionInput).unwrap(), &[1.0, -2.0, 0.5, 0.0, 0.0, 0.0])
    });
    assert_eq!([0, 2, 1, 3, 4, 6, 5, 7].map(|row| plain[row])[..], turned[..]);
}

#[test]
fn scales_follow_alpha_rank_and_patterns() {
    let scale = |change: &[(&str, Value)]| {
        let mut config = config();
        for (name, value) in change {
            config[*name] = value.clone();
        }
        LoraFile::open(folder(&config, &tensors()).path()).unwrap().updates()[0].scale
    };
    assert_eq!(scale(&[]), 4.0);
    assert_eq!(scale(&[("use_rslora", json!(true))]), (8.0 / 2f64.sqrt()) as f32);
    assert_eq!(scale(&[("alpha_pattern", json!({"q_proj": 3}))]), 1.5);
    assert_eq!(
        scale(&[("alpha_pattern", json!({"k_proj": 3, "_proj": 5, "layers.0.self_attn.q_proj": 7}))]),
        4.0
    );
    assert_eq!(scale(&[("alpha_pattern", json!({"layers.\\d+.self_attn.[qk]_proj": 3, "q_proj": 5}))]), 1.5);
    assert_eq!(scale(&[("r", json!(64)), ("rank_pattern", json!({"^model.*q_proj": 2}))]), 4.0);
    assert_eq!(scale(&[("fan_in_fan_out", json!(true)), ("init_lora_weights", json!("gaussian"))]), 4.0);
}

#[test]
fn more_than_lora_is_refused_by_name() {
    let with = |name: &str, value: Value| {
        let mut config = config();
        config[name] = value;
        refusal(&config, &tensors())
    };
    for (name, value, expected) in [
        ("use_dora", json!(true), "use_dora"),
        ("use_qalora", json!(true), "use_qalora"),
        ("modules_to_save", json!(["lm_head"]), "has whole modules (modules_to_save)"),
        ("trainable_token_indices", json!([7]), "trains single tokens (trainable_token_indices)"),
        ("layer_replication", json!([[0, 2]]), "repeats layers"),
        ("alora_invocation_tokens", json!([1, 2]), "behind certain tokens"),
        ("init_lora_weights", json!("pissa_niter_16"), "pissa_niter_16"),
        ("peft_type", json!("LOHA"), "peft_type is LOHA"),
        ("peft_type", Value::Null, "peft_type is missing"),
        ("r", Value::Null, "has no r"),
        ("lora_alpha", Value::Null, "has no lora_alpha"),
        ("r", json!("two"), "adapter_config.json cannot be read"),
        ("alpha_pattern", json!({"(": 1}), "pattern \"(\""),
        ("alpha_pattern", json!({"q": "x"}), "pattern \"q\""),
        ("r", json!(3), "rank 2, adapter_config.json says 3"),
        ("lora_alpha", json!(1e300), "not finite"),
    ] {
        let said = with(name, value);
        assert!(said.starts_with("cannot use the adapter ") && said.contains(expected), "{name}: {said}");
    }
}

#[test]
fn tensors_that_are_no_factors_are_refused() {
    let with = |name: &str, tensor: (Dtype, Vec<usize>, Vec<u8>)| {
        let mut tensors = tensors();
        tensors.insert(name.to_owned(), tensor);
        refusal(&config(), &tensors)
    };
    let q = "base_model.model.model.layers.1.self_attn.q_proj";
    for (name, expected) in [
        (format!("{q}.lora_magnitude_vector"), "DoRA"),
        (format!("{q}.lora_B.bias"), "biases"),
        ("base_model.model.model.embed_tokens.lora_embedding_A".to_owned(), "embedding of tokens"),
        ("base_model.model.lm_head.weight".to_owned(), "whole module (modules_to_save)"),
        ("base_model.model.lm_head.scale".to_owned(), "is not a factor"),
        (format!("{q}.lora_C.weight"), "is not a factor"),
        (format!("{q}.lora_A.weight").replace("q_proj", "k_proj"), "one of its two factors"),
        ("base_model.model.model.norm.lora_A.weight".to_owned(), "one of its two factors"),
    ] {
        let said = with(&name, f32s([2, 6]));
        assert!(said.contains(expected), "{name}: {said}");
    }
    let a = format!("{q}.lora_A.weight");
    assert!(with(&a, (Dtype::F64, vec![1, 1], vec![0; 8])).contains("type F64"));
    assert!(with(&a, (Dtype::F32, vec![2], vec![0; 8])).contains("is not a matrix"));
    assert!(with(&a, f32s([3, 6])).contains("rank 3"));
    assert!(with(&format!("{q}.lora_B.weight"), f32s([8, 3])).contains("do not fit each other"));
    assert!(refusal(&config(), &Tensors::new()).contains("changes nothing"));
    // Models without logits have names without `model`.
    let shorter = |(name, tensor): (String, _)| (name.replace("model.model.layers", "model.layers"), tensor);
    let headless = tensors().into_iter().map(shorter).collect();
    assert_eq!(LoraFile::open(folder(&config(), &headless).path()).unwrap().updates()[0].layer, 1);
    let vision =
        |part: &str| format!("base_model.model.model.vision_tower.layers.1.self_attn.q_proj.{part}.weight");
    let seen = BTreeMap::from([(vision("lora_A"), f32s([2, 6])), (vision("lora_B"), f32s([8, 2]))]);
    assert!(refusal(&config(), &seen).contains("cannot be changed"));
    // A copy of weights and bias, which PEFT adds for the logits, is none of the adapter's
    // business.
    let mut tensors = tensors();
    for (name, tensor) in [("lora_A", f32s([2, 6])), ("lora_B", f32s([12, 2])), ("base_layer", f32s([12, 6]))]
    {
        tensors.insert(format!("base_model.model.lm_head.{name}.weight"), tensor);
    }
    tensors
        .insert("base_model.model.lm_head.base_layer.bias".to_owned(), (Dtype::F32, vec![12], vec![0; 48]));
    let file = LoraFile::open(folder(&config(), &tensors).path()).unwrap();
    assert_eq!(file.updates().len(), 2);
    assert!(adapter(&base(), &file, 1.0).unwrap().at(0, Site::Logits).is_some());
}

/// DoRA, saved modules, trained embeddings and tokens (ADR-0060).
#[test]
fn adapters_to_be_merged_first_are_refused_with_the_way_out() {
    let way_out =
        "; merge it with PEFT (merge_and_unload) and use the merged model, or a LoRA extracted from both";
    for (name, value) in [
        ("use_dora", json!(true)),
        ("modules_to_save", json!(["embed_tokens", "lm_head"])),
        ("trainable_token_indices", json!({"embed_tokens": [3]})),
    ] {
        let mut config = config();
        config[name] = value;
        let said = refusal(&config, &tensors());
        assert!(said.contains(&format!("({name})")) && said.contains(way_out), "{said}");
    }
    for name in [
        "model.layers.1.self_attn.q_proj.lora_magnitude_vector.weight",
        "model.embed_tokens.lora_embedding_A",
        "model.embed_tokens.token_adapter.trainable_tokens_delta",
        "model.embed_tokens.weight",
        "lm_head.weight",
        "model.norm.weight",
    ] {
        let mut tensors = tensors();
        tensors.insert(format!("base_model.model.{name}"), f32s([2, 6]));
        let said = refusal(&config(), &tensors);
        assert!(said.contains(name) && said.contains(way_out), "{said}");
    }
    // Not set: `null`, `false` and empty lists.
    for name in ["modules_to_save", "trainable_token_indices"] {
        for value in [Value::Null, json!([]), json!({})] {
            let mut config = config();
            config[name] = value;
            assert!(LoraFile::open(folder(&config, &tensors()).path()).is_ok());
        }
    }
}

#[test]
fn other_models_and_numbers_are_refused() {
    let file = LoraFile::open(folder(&config(), &tensors()).path()).unwrap();
    let refused = |base: BaseModel| words(&adapter(&base, &file, 1.0).expect_err("it does not fit"));
    assert!(refused(BaseModel { n_layers: 1, ..base() }).contains("in layer 1, the model has 1"));
    assert!(
        refused(BaseModel { model_dim: 7, ..base() })
            .contains("maps [6, 8] values, the model's query projection [7, 8]")
    );
    assert!(refused(BaseModel { query_dim: 4, ..base() }).contains("another model"));
    let said = words(&adapter(&base(), &file, f32::NAN).unwrap_err());
    assert!(said.starts_with("cannot use the adapter ") && said.contains("not finite"), "{said}");
    assert!(words(&adapter(&base(), &file, f32::MAX).unwrap_err()).contains("not finite"));
    let mut broken = tensors();
    broken.values_mut().next().unwrap().2[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let file = LoraFile::open(folder(&config(), &broken).path()).unwrap();
    assert!(words(&adapter(&base(), &file, 1.0).unwrap_err()).contains("not finite"));
}

#[test]
fn files_that_are_none_are_refused() {
    let folder = folder(&config(), &tensors());
    let refused = |path: &Path| words(&LoraFile::open(path).expect_err("it is refused"));
    assert!(refused(&folder.path().join("absent")).starts_with("cannot read "));
    let text = folder.path().join("notes.txt");
    fs::write(&text, "hello").unwrap();
    assert!(refused(&text).contains("is no adapter"));
    fs::write(&text, "").unwrap();
    assert!(refused(&text).contains("is no adapter"));
    let weights = folder.path().join("adapter_model.safetensors");
    let whole = fs::read(&weights).unwrap();
    for len in [0, 7, 8, 100, whole.len() - 1] {
        fs::write(&weights, &whole[..len]).unwrap();
        let said = refused(folder.path());
        assert!(said.starts_with("cannot "), "{len}: {said}");
    }
    fs::rename(&weights, folder.path().join("adapter_model.bin")).unwrap();
    assert!(refused(folder.path()).contains("safe_serialization"));
    fs::remove_file(folder.path().join("adapter_config.json")).unwrap();
    assert!(refused(folder.path()).contains("adapter_config.json"));
}

/// A GGUF adapter of the queries of layer 1.
fn gguf(change: impl FnOnce(&mut Metadata, &mut Vec<(String, [u64; 2])>)) -> TempDir {
    let mut metadata = Metadata::new();
    metadata.insert("general.type", "adapter");
    metadata.insert("general.architecture", "llama");
    metadata.insert("adapter.type", "lora");
    metadata.insert("adapter.lora.alpha", 8f32);
    let mut tensors = vec![
        ("blk.1.attn_q.weight.lora_a".to_owned(), [6, 2]),
        ("blk.1.attn_q.weight.lora_b".to_owned(), [2, 8]),
    ];
    change(&mut metadata, &mut tensors);
    let infos =
        tensors.iter().map(|(name, dims)| TensorInfo::new(name.clone(), *dims, TensorType::F32).unwrap());
    let mut writer = Writer::new(Vec::new(), &metadata, infos).unwrap();
    for (name, dims) in &tensors {
        writer.write_tensor(name, &f32s([dims[1] as usize, dims[0] as usize]).2).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.gguf"), writer.finish().unwrap()).unwrap();
    folder
}

#[test]
fn gguf_adapters_are_read_and_refused() {
    let open = |folder: TempDir| LoraFile::open(&folder.path().join("a.gguf"));
    let refused = |folder| words(&open(folder).expect_err("it is refused"));
    let file = open(gguf(|_, _| ())).unwrap();
    let peft = LoraFile::open(folder(&config(), &tensors()).path()).unwrap();
    let digest = |file| *adapter(&base(), file, 1.0).unwrap().digest();
    assert_eq!(digest(&file), digest(&peft), "the same change is the same, whatever its file");
    let without_alpha = open(gguf(|metadata, _| drop(metadata.remove("adapter.lora.alpha")))).unwrap();
    assert_eq!(without_alpha.updates()[0].scale, 1.0);
    assert_ne!(digest(&without_alpha), digest(&file));
    let interleaved = BaseModel { interleaved_heads: true, ..base() };
    assert_eq!(
        *adapter(&interleaved, &file, 1.0).unwrap().digest(),
        digest(&file),
        "its rows are in the model's order"
    );

    let qwen = open(gguf(|metadata, _| drop(metadata.insert("general.architecture", "qwen2")))).unwrap();
    assert!(words(&adapter(&base(), &qwen, 1.0).unwrap_err()).contains("for the architecture qwen2"));
    assert!(refused(gguf(|metadata, _| drop(metadata.remove("general.type")))).contains("it is a model"));
    assert!(
        refused(gguf(|metadata, _| drop(metadata.remove("adapter.type"))))
            .contains("adapter.type is missing")
    );
    assert!(
        refused(gguf(|metadata, _| drop(metadata.insert("adapter.lora.alpha", "8"))))
            .contains("adapter.lora.alpha")
    );
    assert!(refused(gguf(|_, tensors| drop(tensors.pop()))).contains("one of its two factors"));
    assert!(
        refused(gguf(|_, tensors| tensors.push(("blk.0.attn_norm.weight".to_owned(), [6, 1]))))
            .contains("factor")
    );
    assert!(
        refused(gguf(|_, tensors| {
            tensors[0].0 = "token_embd.weight.lora_a".to_owned();
            tensors[1].0 = "token_embd.weight.lora_b".to_owned();
        }))
        .contains("cannot be changed")
    );
    assert!(refused(gguf(|_, tensors| tensors.clear())).contains("changes nothing"));
}

#[test]
fn its_memory_is_the_pools_and_comes_back() {
    let file = LoraFile::open(folder(&config(), &tensors()).path()).unwrap();
    let pool = pool();
    let request = Request::default();
    let part = Part { file: &file, scale: 1.0 };
    let base = Arc::new(base());
    let new = || Adapter::new(&base, &[part], FactorFormat::F32, &pool, &request);
    let held: Vec<Adapter> = std::iter::from_fn(|| new().ok()).take(1000).collect();
    assert_eq!(held.len(), pool.capacity_pages(), "a page each, until there are no more");
    let full = new().unwrap_err();
    assert!(words(&full).contains("no memory for an adapter of 128 bytes"), "{}", words(&full));
    drop(held);
    assert_eq!(pool.stats().used_pages, 0);
}

#[test]
fn factors_keep_their_layout_in_every_format() {
    let file = LoraFile::open(folder(&config(), &tensors()).path()).unwrap();
    let (base, pool, request) = (Arc::new(base()), pool(), Request::default());
    let parts = [Part { file: &file, scale: 1.0 }];
    let exact = Adapter::new(&base, &parts, FactorFormat::F32, &pool, &request).unwrap();
    let values = |adapter: &Adapter| {
        let site = adapter.at(1, Site::AttentionInput).unwrap();
        [site.a().values().into_owned(), site.b(0).values().into_owned()].concat()
    };
    for (format, error) in [(FactorFormat::F32, 0.0), (FactorFormat::F16, 0.0), (FactorFormat::I8, 0.04)] {
        let loaded = Adapter::new(&base, &parts, format, &pool, &request).unwrap();
        assert_eq!((loaded.layout().format(), loaded.bytes()), (format, loaded.factors().len()));
        let close = |(x, y): (&f32, &f32)| (x - y).abs() <= error;
        assert!(values(&loaded).iter().zip(&values(&exact)).all(close), "{format:?}");
        let converted = exact.to_format(format, &pool, &request).unwrap();
        assert_eq!((converted.digests(), converted.factors()), (loaded.digests(), loaded.factors()));
        assert_eq!(loaded.digest() == exact.digest(), format == FactorFormat::F32);

        let shared = |shift: usize, len: usize| {
            let mut bytes = vec![0; len + 128];
            let start = bytes.as_ptr().align_offset(64) + shift;
            bytes[start..start + len].copy_from_slice(&loaded.factors()[..len]);
            SharedBytes::new(bytes).slice(start..start + len)
        };
        let from =
            |bytes| Adapter::from_bytes(base.clone(), loaded.layout().clone(), bytes, *loaded.digests());
        let again = from(shared(0, loaded.bytes())).unwrap();
        assert_eq!((values(&again), again.kv_digest()), (values(&loaded), loaded.kv_digest()));
        for bytes in [shared(0, loaded.bytes() - 1), shared(4, loaded.bytes())] {
            assert!(matches!(from(bytes), Err(Error::Layout { .. })));
        }
        let foreign = Arc::new(BaseModel { query_dim: 4, ..(*base).clone() });
        let bytes = shared(0, loaded.bytes());
        let refused = Adapter::from_bytes(foreign, loaded.layout().clone(), bytes, *loaded.digests());
        assert!(matches!(refused, Err(Error::Layout { .. })));
    }
    let large = Part { file: &file, scale: 1e4 };
    let refused = Adapter::new(&base, &[large], FactorFormat::F16, &pool, &request).unwrap_err();
    assert!(words(&refused).contains("not finite"), "beyond F16");
}
