//! Generated models open, have the declared types and shapes, and do not depend on the number of
//! threads.

use std::path::{Path, PathBuf};

use gguf_rs_lite::{Gguf, TensorType};
use ruvllm_kernels::quant::WeightFormat;
use ruvllm_models::{Model, ParameterCounts, open_checkpoint};
use ruvllm_tools::gen_model::{Options, Shape, TypeMix, gen_model};

fn generate(dir: &Path, types: &str, seed: u64, threads: usize) -> Vec<u8> {
    std::fs::read(generate_file(dir, Shape::LlamaTiny, types, seed, threads)).expect("the model")
}

fn generate_file(dir: &Path, shape: Shape, types: &str, seed: u64, threads: usize) -> PathBuf {
    let path = dir.join("model.gguf");
    let types = types.parse().expect("a type");
    let options = Options { shape, types, seed, layers: None, threads: Some(threads) };
    gen_model(&options, &path).expect("a model");
    path
}

/// The type of a tensor of a generated model.
fn type_of(model: &Gguf, name: &str) -> TensorType {
    model.tensor(name).unwrap_or_else(|| panic!("{name} exists")).tensor_type
}

#[test]
fn every_type_makes_a_model_that_opens() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    for (types, expected) in [
        ("f32", TensorType::F32),
        ("f16", TensorType::F16),
        ("bf16", TensorType::BF16),
        ("q8_0", TensorType::Q8_0),
        ("q4_0", TensorType::Q4_0),
        ("q4_1", TensorType::Q4_1),
        ("q5_0", TensorType::Q5_0),
        ("q5_1", TensorType::Q5_1),
        ("q3_k", TensorType::Q3_K),
        ("q4_k", TensorType::Q4_K),
        ("q5_k", TensorType::Q5_K),
        ("q6_k", TensorType::Q6_K),
        ("iq4_nl", TensorType::IQ4_NL),
        ("iq4_xs", TensorType::IQ4_XS),
        ("q2_k", TensorType::Q3_K),
    ] {
        let model = Gguf::from_owner(generate(dir.path(), types, 0, 2)).expect("a GGUF file");
        assert_eq!(type_of(&model, "blk.0.ffn_down.weight"), expected);
        assert_eq!(type_of(&model, "blk.0.ffn_norm.weight"), TensorType::F32);
        assert_eq!(model.tensors().count(), 3 + 2 * 9);
        let down = model.tensor("blk.0.ffn_down.weight").expect("a tensor");
        assert_eq!(down.dims, [512, 256]);
    }
}

#[test]
fn mixes_follow_the_usual_rule() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    for (types, base) in [("q4_k_m", TensorType::Q4_K), ("q5_k_m", TensorType::Q5_K)] {
        let model = Gguf::from_owner(generate(dir.path(), types, 0, 2)).expect("a GGUF file");
        assert_eq!(type_of(&model, "output.weight"), TensorType::Q6_K);
        assert_eq!(type_of(&model, "token_embd.weight"), base);
        assert_eq!(type_of(&model, "blk.0.attn_v.weight"), base);
        assert_eq!(type_of(&model, "blk.1.attn_v.weight"), TensorType::Q6_K);
        assert_eq!(type_of(&model, "blk.1.attn_q.weight"), base);
    }
    for (types, value) in
        [("q3_k_m", TensorType::Q5_K), ("q2_k", TensorType::Q3_K), ("iq4_xs", TensorType::IQ4_XS)]
    {
        let model = Gguf::from_owner(generate(dir.path(), types, 0, 2)).expect("a GGUF file");
        assert_eq!(type_of(&model, "output.weight"), TensorType::Q6_K);
        assert_eq!(type_of(&model, "blk.1.attn_v.weight"), value);
    }
}

#[test]
fn types_that_are_no_mix_are_for_every_matrix() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let model = Gguf::from_owner(generate(dir.path(), "q4_0", 0, 2)).expect("a GGUF file");
    assert_eq!(type_of(&model, "output.weight"), TensorType::Q4_0);
    assert!("q9_k".parse::<TypeMix>().is_err_and(|error| error.contains("q4_k_m")));
}

#[test]
fn the_file_depends_on_the_seed_only() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let one = generate(dir.path(), "q4_k_m", 1, 1);
    assert!(one == generate(dir.path(), "q4_k_m", 1, 3), "thread counts give the same bytes");
    assert!(one != generate(dir.path(), "q4_k_m", 2, 3), "seeds give different bytes");
}

#[test]
fn weights_have_the_stated_deviation() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    for (types, format) in [("f32", WeightFormat::F32), ("q4_k", WeightFormat::Q4K)] {
        let model = Gguf::from_owner(generate(dir.path(), types, 0, 2)).expect("a GGUF file");
        let data = model.data("blk.0.ffn_up.weight").expect("data");
        let mut values = vec![0.0; 256 * 512];
        format.dequantize(data.as_ref(), &mut values);
        let square = values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / values.len() as f64;
        // 131072 draws: the deviation's standard error is 0.2 %; four bits add a few percent.
        assert!((square.sqrt() / 0.02 - 1.0).abs() < 0.05, "{types}: {}", square.sqrt());
    }
}

#[test]
fn metadata_describe_a_llama_with_a_vocabulary() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let model = Gguf::from_owner(generate(dir.path(), "q8_0", 0, 2)).expect("a GGUF file");
    let metadata = model.metadata();
    assert_eq!(metadata.get_str("general.architecture").expect("a string"), Some("llama"));
    assert_eq!(metadata.get_u64("llama.embedding_length").expect("a number"), Some(256));
    let tokens = metadata.get_strings("tokenizer.ggml.tokens").expect("strings").expect("present");
    assert_eq!(tokens.len(), 512);
    assert_eq!(tokens[..3], ["<unk>", "<s>", "</s>"]);
}

#[test]
fn files_of_every_family_load() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    for (shape, types, is_mixture) in [
        (Shape::LlamaTiny, "q4_k_m", false),
        (Shape::Qwen3MoeTiny, "iq4_nl", true),
        (Shape::GptOssTiny, "mxfp4_moe", true),
        (Shape::Qwen35Tiny, "q4_0", false),
    ] {
        let path = generate_file(dir.path(), shape, types, 0, 2);
        let checkpoint = open_checkpoint(&path).expect("a model");
        Model::load(checkpoint.as_ref(), &mut |_| {}).expect("the tensors of the family");
        let counts = ParameterCounts::of(checkpoint.as_ref());
        assert_eq!(counts.active < counts.total, is_mixture, "{shape:?}: {counts:?}");
    }
}
