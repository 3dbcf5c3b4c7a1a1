//! Quantizing takes less memory than twice the largest tensor, to a file as well as beside what it
//! makes while loading.
//!
//! Alone in its binary, because it counts the allocations of the whole process. Mapped files are
//! not among them.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use ruvllm_kernels::ThreadPool;
use ruvllm_models::quantize::{InSitu, QuantizeOptions, Recipe, convert, quantize};
use ruvllm_models::{Checkpoint, HfFolder, Model};
use ruvllm_testkit::allocator::{Counting, peak_bytes};
use ruvllm_testkit::{Random, model_data};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::json;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const WIDTH: usize = 2048;
const INNER: usize = 1024;
const ROWS: usize = 600;

/// Bytes of a query matrix, the largest tensor; its rows are in another order in a GGUF file, so it
/// is also copied.
const LARGEST: usize = WIDTH * WIDTH * 2;

/// A Llama of one wide layer in BF16.
fn write_folder(folder: &Path) {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": WIDTH, "intermediate_size": INNER,
        "num_hidden_layers": 1, "num_attention_heads": 16, "num_key_value_heads": 16, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 512, "vocab_size": ROWS, "tie_word_embeddings": true,
    });
    fs::write(folder.join("config.json"), config.to_string()).expect("written");
    let tokenizer = model_data("tiny/llama/hf/tokenizer.json");
    fs::copy(tokenizer, folder.join("tokenizer.json")).expect("copied");
    let shapes: [(&str, Vec<usize>); 12] = [
        ("model.embed_tokens.weight", vec![ROWS, WIDTH]),
        ("model.norm.weight", vec![WIDTH]),
        ("model.layers.0.input_layernorm.weight", vec![WIDTH]),
        ("model.layers.0.post_attention_layernorm.weight", vec![WIDTH]),
        ("model.layers.0.self_attn.q_proj.weight", vec![WIDTH, WIDTH]),
        ("model.layers.0.self_attn.k_proj.weight", vec![WIDTH, WIDTH]),
        ("model.layers.0.self_attn.v_proj.weight", vec![WIDTH, WIDTH]),
        ("model.layers.0.self_attn.o_proj.weight", vec![WIDTH, WIDTH]),
        ("model.layers.0.mlp.gate_proj.weight", vec![INNER, WIDTH]),
        ("model.layers.0.mlp.up_proj.weight", vec![INNER, WIDTH]),
        ("model.layers.0.mlp.down_proj.weight", vec![WIDTH, INNER]),
        ("model.layers.0.self_attn.q_proj.bias", vec![WIDTH]),
    ];
    let mut random = Random::new(1);
    // Both signs, magnitudes from 1/128 to 1/64.
    let mut value = || 0x3C00 | (random.next_u64() as u16 & 0x807F);
    let data: Vec<Vec<u8>> = shapes
        .iter()
        .map(|(_, shape)| (0..shape.iter().product()).flat_map(|_| u16::to_le_bytes(value())).collect())
        .collect();
    let views = shapes.iter().zip(&data).map(|((name, shape), data)| {
        (*name, TensorView::new(Dtype::BF16, shape.clone(), data).expect("a tensor"))
    });
    safetensors::serialize_to_file(views, None, &folder.join("model.safetensors")).expect("written");
}

#[test]
fn the_peak_stays_below_twice_the_largest_tensor() {
    let folder = tempfile::tempdir().expect("a folder");
    write_folder(folder.path());
    let pool = ThreadPool::new(2).expect("threads");
    let output = |name: &str| folder.path().join(name);

    for name in ["Q4_K_M", "Q8_0", "F32"] {
        let recipe = Recipe::from_name(name).expect("a recipe");
        let (result, bytes) = peak_bytes(|| {
            let source = HfFolder::open(folder.path())?;
            quantize(&source, &output(name), recipe, &QuantizeOptions::default(), &pool, &mut |_| {
                ControlFlow::Continue(())
            })
        });
        result.expect("written");
        println!(
            "folder to {name}: {bytes} bytes, {:.2} of the largest tensor",
            bytes as f64 / LARGEST as f64
        );
        assert!(bytes < 2 * LARGEST, "{name}: {bytes}");
    }
    let (result, bytes) = peak_bytes(|| {
        convert(&HfFolder::open(folder.path())?, &output("auto"), None, &pool, &mut |_| {
            ControlFlow::Continue(())
        })
    });
    result.expect("written");
    println!("folder to a file as it is: {bytes} bytes");
    assert!(bytes < 2 * LARGEST, "{bytes}");

    // A file in two steps needs no copy of a matrix at all.
    let recipe = Recipe::from_name("Q4_K_M").expect("a recipe");
    let (result, bytes) = peak_bytes(|| {
        let source = gguf_rs_lite::Gguf::open(output("auto"))?;
        quantize(&source, &output("again"), recipe, &QuantizeOptions::default(), &pool, &mut |_| {
            ControlFlow::Continue(())
        })
    });
    result.expect("written");
    println!("file to Q4_K_M: {bytes} bytes");
    assert!(bytes < LARGEST, "{bytes}");
    assert_eq!(fs::read(output("again")).expect("a file"), fs::read(output("Q4_K_M")).expect("a file"));

    let source = HfFolder::open(folder.path()).expect("the folder");
    let (model, bytes) = peak_bytes(|| Model::load(&InSitu::new(&source, recipe, &pool)?, &mut |_| ()));
    let weights = model.expect("it loads").weight_bytes().private as usize;
    println!("loading in Q4_K_M: {weights} bytes of weights, {} beside", bytes - weights);
    assert!(bytes < weights + 2 * LARGEST, "{bytes} for {weights}");
    assert!(source.file_bytes() as usize > 3 * weights);
}
