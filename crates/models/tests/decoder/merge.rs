//! Adapters folded into weights, and extracted from models: against PEFT's results.

use std::ops::ControlFlow;
use std::path::Path;

use ruvllm_adapters::LoraFile;
use ruvllm_adapters::export::{AdapterFormat, FactorType};
use ruvllm_adapters::merge::{Dare, Input, Method, Rank};
use ruvllm_kernels::ThreadPool;
use ruvllm_models::merge::{Folded, Types, extract, write_folder};
use ruvllm_models::quantize::{QuantizeOptions, Recipe, convert, quantize};
use ruvllm_models::{Checkpoint, Error, HfFolder, KvFormat, Model, TensorBytes, open_checkpoint};
use safetensors::SafeTensors;
use serde_json::Value;

use crate::fixtures::{self, bits, ids, max_abs_error, path, text};

/// As that of adapters beside the weights.
const TOLERANCE: f64 = 5e-4;

fn file(relative: &str) -> LoraFile {
    LoraFile::open(&path(&format!("lora/{relative}"))).expect("the adapter opens")
}

fn one(file: &LoraFile) -> [Input<'_>; 1] {
    [Input { file, weight: 1.0 }]
}

fn pool() -> ThreadPool {
    ThreadPool::new(2).expect("threads")
}

fn logits(checkpoint: &dyn Checkpoint, tokens: &[u32]) -> Vec<f32> {
    let model = Model::load(checkpoint, &mut |_| ()).expect("it loads");
    fixtures::all_logits(&model, &fixtures::compute(), KvFormat::F32, tokens, 64)
}

/// Tokens, and PEFT's logits with `r4_all` at some of their positions.
fn golden() -> Vec<(Vec<u32>, Vec<u32>, Vec<f64>)> {
    let json: Value = serde_json::from_slice(&std::fs::read(path("lora/expected.json")).unwrap()).unwrap();
    let all = json["adapters"].as_array().unwrap();
    let adapter = all.iter().find(|adapter| adapter["name"] == "r4_all").unwrap();
    let bytes = std::fs::read(path("lora/r4_all/expected.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let prompts = adapter["prompts"].as_array().unwrap();
    prompts
        .iter()
        .map(|prompt| {
            let data = tensors.tensor(&format!("{}.logits_f64", text(&prompt["name"]))).unwrap();
            let expected = data.data().as_chunks().0.iter().map(|&bytes| f64::from_le_bytes(bytes)).collect();
            (ids(&prompt["ids"]), ids(&prompt["positions"]), expected)
        })
        .collect()
}

#[track_caller]
fn assert_golden(checkpoint: &dyn Checkpoint, tolerance: f64) {
    for (tokens, positions, expected) in golden() {
        let found = logits(checkpoint, &tokens);
        let width = expected.len() / positions.len();
        let rows: Vec<f32> =
            positions.iter().flat_map(|&row| &found[row as usize * width..][..width]).copied().collect();
        let error = max_abs_error(&rows, &expected);
        assert!(error <= tolerance, "off by {error:e}");
    }
}

#[test]
fn folded_weights_have_the_logits_of_peft() {
    let pool = pool();
    for source in ["tiny/llama/model-F32.gguf", "tiny/llama/hf"] {
        let base = open_checkpoint(path(source)).expect("the model opens");
        for form in ["r4_all", "r4_all/adapter.gguf"] {
            let file = file(form);
            let folded =
                Folded::new(&*base, &one(&file), Method::Linear, Types::Base, &pool).expect("it folds");
            assert_eq!(folded.changed(), 21);
            assert_golden(&folded, TOLERANCE);
        }
    }
}

#[test]
fn folded_matrices_are_those_of_peft() {
    let (pool, output) = (pool(), tempfile::tempdir().unwrap());
    for name in ["r1_qv", "r4_all", "r16_all_rs"] {
        let (file, out) = (file(name), output.path().join(name));
        let base = HfFolder::open(path("tiny/llama/hf")).unwrap();
        let mut go = |_: ruvllm_models::quantize::QuantizeProgress<'_>| ControlFlow::Continue(());
        write_folder(&base, &one(&file), Method::Linear, &out, None, &pool, &mut go).expect("it is written");
        let (expected, found) = (
            std::fs::read(path(&format!("lora/{name}/expected.safetensors"))).unwrap(),
            std::fs::read(out.join("model.safetensors")).unwrap(),
        );
        let (expected, found) =
            (SafeTensors::deserialize(&expected).unwrap(), SafeTensors::deserialize(&found).unwrap());
        let mut compared = 0;
        for (tensor, expected) in expected.iter() {
            let Some(tensor) = tensor.strip_prefix("merged.") else { continue };
            compared += 1;
            let floats = |bytes: &[u8]| -> Vec<f32> {
                bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
            };
            let expected: Vec<f64> = floats(expected.data()).into_iter().map(f64::from).collect();
            let error = max_abs_error(&floats(found.tensor(tensor).unwrap().data()), &expected);
            assert!(error <= 1e-6, "{name} {tensor}: off by {error:e}");
        }
        assert_eq!(compared, if name == "r1_qv" { 2 } else { 7 });
        // The folder is a model: other files were copied, nothing else is there.
        let (before, after) = (base, HfFolder::open(&out).unwrap());
        assert_eq!(before.file_metadata().unwrap().len(), after.file_metadata().unwrap().len());
        let again = write_folder(&before, &one(&file), Method::Linear, &out, None, &pool, &mut go);
        assert!(matches!(again, Err(Error::Adapter(ruvllm_adapters::Error::Exists { .. }))));
    }
    assert_eq!(std::fs::read_dir(output.path()).unwrap().count(), 3, "nothing temporary is left");
}

#[test]
fn folded_models_are_written_in_every_form() {
    let (pool, output) = (pool(), tempfile::tempdir().unwrap());
    let (file, base) = (file("r4_all"), open_checkpoint(path("tiny/llama/hf")).unwrap());
    let mut go = |_: ruvllm_models::quantize::QuantizeProgress<'_>| ControlFlow::Continue(());
    let inputs = one(&file);
    let (same, retyped) = (
        Folded::new(&*base, &inputs, Method::Linear, Types::Base, &pool).unwrap(),
        Folded::new(&*base, &inputs, Method::Linear, Types::F32, &pool).unwrap(),
    );
    let out = |name: &str| output.path().join(name);
    convert(&same, &out("same.gguf"), None, &pool, &mut go).unwrap();
    assert_golden(&*open_checkpoint(out("same.gguf")).unwrap(), TOLERANCE);
    // Rounding of the weights moves logits, whose adapter moves them by 6 to 16.
    let recipe = |name: &str| Recipe::from_name(name).unwrap();
    for (name, tolerance) in [("F16", 0.05), ("Q8_0", 1.0)] {
        quantize(&retyped, &out(name), recipe(name), &QuantizeOptions::default(), &pool, &mut go).unwrap();
        assert_golden(&*open_checkpoint(out(name)).unwrap(), tolerance);
    }
    let folder = HfFolder::open(path("tiny/llama/hf")).unwrap();
    write_folder(&folder, &inputs, Method::Linear, &out("bf16"), Some(FactorType::BF16), &pool, &mut go)
        .unwrap();
    // Both forms round alike.
    convert(&retyped, &out("bf16.gguf"), Some(recipe("BF16")), &pool, &mut go).unwrap();
    let tokens: Vec<u32> = (3..40).collect();
    let [of_folder, of_file] =
        ["bf16", "bf16.gguf"].map(|name| logits(&*open_checkpoint(out(name)).unwrap(), &tokens));
    assert_eq!(bits(&of_folder), bits(&of_file));
    // A quantized base keeps its types.
    let quantized = fixtures::gguf("quant/llama-Q8_0.gguf");
    let wide = adapter_of(&quantized, output.path());
    let folded = Folded::new(&quantized, &one(&wide), Method::Linear, Types::Base, &pool).unwrap();
    for (before, after) in quantized.tensors().zip(Checkpoint::tensors(&folded)) {
        assert_eq!((&before.name, before.tensor_type), (&after.name, after.tensor_type));
        let (before, after) = (Checkpoint::data(&quantized, before).unwrap(), folded.data(after).unwrap());
        assert_eq!(before.as_ref().len(), after.as_ref().len());
        assert_eq!(matches!(after, TensorBytes::Made(_)), before.as_ref() != after.as_ref());
    }
}

/// An adapter with random factors for the values of layer 0 of a model.
fn adapter_of(model: &dyn Checkpoint, folder: &Path) -> LoraFile {
    let base = ruvllm_models::ModelConfig::from_checkpoint(model).unwrap().adapter_base();
    let mut random = ruvllm_testkit::Random::new(5);
    let mut values = |len: usize| (0..len).map(|_| random.normal() * 0.1).collect::<Vec<f32>>();
    let update = ruvllm_adapters::export::NewUpdate {
        projection: ruvllm_adapters::Projection::Value,
        layer: 0,
        peft_name: None,
        rank: 2,
        inputs: base.model_dim,
        outputs: base.kv_dim,
        a: values(2 * base.model_dim),
        b: values(2 * base.kv_dim),
    };
    let made =
        ruvllm_adapters::export::NewAdapter::new(AdapterFormat::Peft, None, FactorType::F32, vec![update]);
    made.unwrap().write(&folder.join("adapter"), false).unwrap();
    LoraFile::open(&folder.join("adapter")).unwrap()
}

/// An adapter that was folded in is found again, in both formats and row orders.
#[test]
fn an_extracted_adapter_restores_the_tuned_model() {
    let (pool, output) = (pool(), tempfile::tempdir().unwrap());
    let (file, base) = (file("r4_all"), open_checkpoint(path("tiny/llama/model-F32.gguf")).unwrap());
    let tuned = Folded::new(&*base, &one(&file), Method::Linear, Types::Base, &pool).unwrap();
    for (format, name) in [(AdapterFormat::Peft, "peft"), (AdapterFormat::Gguf, "extracted.gguf")] {
        let mut go = |_: usize, _: usize| ControlFlow::Continue(());
        let made =
            extract(&*base, &tuned, Rank::AtMost(4), (format, FactorType::F32), &pool, &mut go).unwrap();
        assert_eq!(made.left_out, [""; 0]);
        assert_eq!(made.compressed.adapter.updates().len(), 21);
        // Weights are f32: their rounding is part of the difference.
        assert!(made.compressed.relative_error() < 1e-5, "{}", made.compressed.relative_error());
        let path = output.path().join(name);
        made.compressed.adapter.write(&path, false).unwrap();
        let read = LoraFile::open(&path).unwrap();
        let restored = Folded::new(&*base, &one(&read), Method::Linear, Types::Base, &pool).unwrap();
        assert_golden(&restored, TOLERANCE);
    }
}

#[test]
fn joint_matrices_are_extracted_and_folded() {
    let (pool, output) = (pool(), tempfile::tempdir().unwrap());
    let base = open_checkpoint(path("tiny/phi3/model-F32.gguf")).unwrap();
    for form in ["phi3", "phi3/adapter.gguf"] {
        let file = file(form);
        let tuned = Folded::new(&*base, &one(&file), Method::Linear, Types::Base, &pool).unwrap();
        for (format, name) in [(AdapterFormat::Peft, "peft"), (AdapterFormat::Gguf, "extracted.gguf")] {
            let mut go = |_: usize, _: usize| ControlFlow::Continue(());
            let made = extract(&*base, &tuned, Rank::Error(1e-3), (format, FactorType::F32), &pool, &mut go);
            let path = output.path().join(name);
            made.unwrap().compressed.adapter.write(&path, path.exists()).unwrap();
            let read = LoraFile::open(&path).unwrap();
            let again = Folded::new(&*base, &one(&read), Method::Linear, Types::Base, &pool).unwrap();
            let tokens: Vec<u32> = (3..40).collect();
            let (expected, found) = (logits(&tuned, &tokens), logits(&again, &tokens));
            let expected: Vec<f64> = expected.into_iter().map(f64::from).collect();
            let error = max_abs_error(&found, &expected);
            assert!(error < 0.02, "{form} {name}: off by {error:e}");
            assert_ne!(bits(&logits(&*base, &tokens)), bits(&found));
        }
    }
}

#[test]
fn impossible_folds_and_extractions_are_refused() {
    let pool = pool();
    let (llama, phi) = (
        open_checkpoint(path("tiny/llama/model-F32.gguf")).unwrap(),
        open_checkpoint(path("tiny/phi3/model-F32.gguf")).unwrap(),
    );
    let file = file("r4_all");
    let refused = Folded::new(&*phi, &one(&file), Method::Linear, Types::Base, &pool).err().unwrap();
    assert!(matches!(refused, Error::Adapter(_)), "{refused}");
    let dare = Method::DareLinear(Dare { p: 1.0, seed: 0 });
    let refused = Folded::new(&*llama, &one(&file), dare, Types::Base, &pool).err().unwrap();
    assert!(refused.to_string().contains("p is 1"), "{refused}");
    let mut go = |_: usize, _: usize| ControlFlow::Continue(());
    let mut refusal = |base: &dyn Checkpoint, tuned: &dyn Checkpoint, rank| {
        extract(base, tuned, rank, (AdapterFormat::Peft, FactorType::F32), &pool, &mut go)
            .unwrap_err()
            .to_string()
    };
    assert!(refusal(&*llama, &*phi, Rank::AtMost(4)).contains("architecture phi3"));
    assert!(refusal(&*llama, &*llama, Rank::AtMost(4)).contains("changes nothing"));
    let tuned = Folded::new(&*llama, &one(&file), Method::Linear, Types::Base, &pool).unwrap();
    assert!(refusal(&*llama, &tuned, Rank::AtMost(0)).contains("rank is 0"));
    let narrow = fixtures::rewrite(&fixtures::gguf("tiny/llama/model-F32.gguf"), |_, tensors| {
        let at = tensors.iter().position(|(name, ..)| name == "blk.2.attn_norm.weight").unwrap();
        tensors.remove(at);
    });
    assert!(refusal(&*llama, &narrow, Rank::AtMost(4)).contains("blk.2.attn_norm.weight"));
    let other_norm = fixtures::rewrite(&fixtures::gguf("tiny/llama/model-F32.gguf"), |_, tensors| {
        let norm = tensors.iter_mut().find(|(name, ..)| name == "blk.2.attn_norm.weight").unwrap();
        norm.3[0] ^= 1;
    });
    let folded = Folded::new(&other_norm, &one(&file), Method::Linear, Types::Base, &pool).unwrap();
    let made =
        extract(&*llama, &folded, Rank::AtMost(1), (AdapterFormat::Peft, FactorType::F32), &pool, &mut go)
            .unwrap();
    assert_eq!(made.left_out, ["blk.2.attn_norm.weight"]);
}
