//! Logits, likelihoods and greedy continuations of the tiny models against float64 transformers.

use gguf_rs_lite::Gguf;
use ruvllm_kernels::quant::WeightFormat;
use ruvllm_models::{KvFormat, LogitsRows, Model, Segment, Workspace};
use ruvllm_text::TokenId;
use serde_json::Value;

use crate::fixtures::{self, Expected, TINY, all_logits, bits, greedy, ids, max_abs_error, new_cache, text};

/// Largest error of a logit or of a token's likelihood in nats: float32 transformers' own is up to
/// 9.4e-5.
const TOLERANCE: f64 = 5e-4;

/// Largest change of a logit when keys and values are rounded to 16 bits: measured up to 1.6e-2, of
/// logits up to 10.
const TOLERANCE_F16_KV: f64 = 3e-2;

/// Negative log likelihoods of `tokens[1..]` under rows of logits.
fn likelihoods(logits: &[f32], vocab_size: usize, tokens: &[TokenId]) -> Vec<f32> {
    let rows = logits.chunks_exact(vocab_size);
    rows.zip(&tokens[1..])
        .map(|(row, &next)| {
            let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f64 = row.iter().map(|&logit| f64::from(logit - max).exp()).sum();
            (sum.ln() + f64::from(max) - f64::from(row[next as usize])) as f32
        })
        .collect()
}

/// Runs `check` for each GGUF file and prompt of a tiny model: (file, variant, prompt, variant's
/// data).
fn for_each_prompt(expected: &Expected, mut check: impl FnMut(&str, &str, &Value, &Value)) {
    for (file, variant) in expected.json["gguf_variant"].as_object().expect("variants") {
        for prompt in expected.prompts() {
            check(file, text(variant), prompt, &prompt["variants"][text(variant)]);
        }
    }
}

#[test]
fn logits_and_likelihoods_match_the_reference() {
    let compute = fixtures::compute();
    for name in TINY {
        let expected = Expected::read(&format!("tiny/{name}"));
        for_each_prompt(&expected, |file, variant, prompt, reference| {
            let model = fixtures::model(&format!("tiny/{name}/{file}"));
            let vocab_size = model.config().vocab_size;
            let tokens = ids(&prompt["ids"]);
            let logits = all_logits(&model, &compute, KvFormat::F32, &tokens, tokens.len());

            let mut chosen = Vec::new();
            for position in ids(&prompt["positions"]) {
                chosen.extend_from_slice(&logits[position as usize * vocab_size..][..vocab_size]);
            }
            let error = max_abs_error(&chosen, expected.tensor(text(&reference["logits_f64_tensor"])));
            let what = format!("{name} {file} {variant} {}", prompt["name"]);
            println!("{what}: logits {error:.2e}");
            assert!(error <= TOLERANCE, "{what}: logits differ by {error}");

            let nll = likelihoods(&logits, vocab_size, &tokens);
            let error = max_abs_error(&nll, expected.tensor(text(&reference["nll_tensor"])));
            println!("{what}: nll {error:.2e}");
            assert!(error <= TOLERANCE, "{what}: likelihoods differ by {error}");
        });
    }
}

/// The matrix that makes logits, in f32.
fn output_matrix(gguf: &Gguf) -> Vec<f32> {
    let tied = || gguf.tensor("token_embd.weight").expect("an embedding");
    let info = gguf.tensor("output.weight").unwrap_or_else(tied);
    let mut values = vec![0.0; info.elements() as usize];
    WeightFormat::F32.dequantize(gguf.data(info).expect("its data").as_bytes(), &mut values);
    values
}

/// There are no references of hidden states; but what an exact product makes of them is known.
#[test]
fn logits_of_hidden_states_match_the_reference() {
    let compute = fixtures::compute();
    for name in TINY {
        let (expected, file) =
            (Expected::read(&format!("tiny/{name}")), format!("tiny/{name}/model-F32.gguf"));
        let variant = text(&expected.json["gguf_variant"]["model-F32.gguf"]);
        let (model, output) = (fixtures::model(&file), output_matrix(&fixtures::gguf(&file)));
        let (dim, cap) = (model.config().model_dim, model.config().decoder.logits_soft_cap.map(f64::from));
        for prompt in expected.prompts() {
            let (tokens, positions) = (ids(&prompt["ids"]), ids(&prompt["positions"]));
            let rows: Vec<usize> = positions.iter().map(|&position| position as usize).collect();
            let mut cache = new_cache(&model, KvFormat::F32, tokens.len()).expect("a cache");
            let segment = Segment::new(&compute, &tokens, &mut cache, LogitsRows::At(&rows)).expect("room");
            let mut workspace = Workspace::new();
            let states = model.hidden_states(&compute, &mut workspace, [segment]).expect("a step");
            assert_eq!(states.len(), rows.len() * dim, "{name}");
            let logit = |state: &[f32], row: &[f32]| {
                let sum: f64 = state.iter().zip(row).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
                cap.map_or(sum, |cap| cap * (sum / cap).tanh()) as f32
            };
            let logits: Vec<f32> = states
                .chunks_exact(dim)
                .flat_map(|state| output.chunks_exact(dim).map(move |row| logit(state, row)))
                .collect();
            let reference = &prompt["variants"][variant];
            let error = max_abs_error(&logits, expected.tensor(text(&reference["logits_f64_tensor"])));
            let what = format!("{name} {}", prompt["name"]);
            println!("{what}: logits of hidden states {error:.2e}");
            assert!(error <= TOLERANCE, "{what}: logits differ by {error}");
        }
    }
}

/// States of a prompt in passes of `chunk` tokens.
fn hidden_states(model: &Model, tokens: &[TokenId], chunk: usize, wanted: LogitsRows<'_>) -> Vec<u32> {
    let compute = fixtures::compute();
    let mut cache = new_cache(model, KvFormat::F16, tokens.len()).expect("a cache");
    let mut workspace = Workspace::new();
    let mut all = Vec::new();
    for tokens in tokens.chunks(chunk) {
        let segment = Segment::new(&compute, tokens, &mut cache, wanted).expect("room");
        all.extend(bits(model.hidden_states(&compute, &mut workspace, [segment]).expect("a step")));
    }
    all
}

#[test]
fn hidden_states_depend_on_neither_passes_nor_what_else_is_wanted() {
    for name in ["qwen2", "gemma3"] {
        let model = fixtures::model(&format!("tiny/{name}/model-F16.gguf"));
        let tokens = &Expected::read(&format!("tiny/{name}")).prompt("long")[..70];
        let whole = hidden_states(&model, tokens, tokens.len(), LogitsRows::All);
        assert!(hidden_states(&model, tokens, 9, LogitsRows::All) == whole, "{name}");
        let last = hidden_states(&model, tokens, tokens.len(), LogitsRows::Last);
        assert!(whole.ends_with(&last) && last.len() == model.config().model_dim, "{name}");
        assert!(hidden_states(&model, tokens, 9, LogitsRows::None).is_empty(), "{name}");
    }
}

#[test]
fn greedy_continuations_match_the_reference() {
    let compute = fixtures::compute();
    for name in TINY {
        let expected = Expected::read(&format!("tiny/{name}"));
        for_each_prompt(&expected, |file, variant, prompt, reference| {
            let model = fixtures::model(&format!("tiny/{name}/{file}"));
            let tokens = ids(&prompt["ids"]);
            for kv in [KvFormat::F32, KvFormat::F16] {
                let found = greedy(&model, &compute, kv, &tokens, 32);
                let what = format!("{name} {file} {variant} {} {kv:?}", prompt["name"]);
                assert_eq!(found, ids(&reference["greedy"]), "{what}");
            }
        });
    }
}

/// The GGUF of mistral does not name its window; with the key added it must give what the windowed
/// variant of the reference gives, also far beyond the window.
#[test]
fn a_window_key_gives_windowed_attention() {
    let compute = fixtures::compute();
    let expected = Expected::read("tiny/mistral");
    let window = expected.json["sliding_window"].as_u64().expect("a window");
    let gguf = fixtures::rewrite(&fixtures::gguf("tiny/mistral/model-F32.gguf"), |metadata, _| {
        metadata.insert("llama.attention.sliding_window", window as u32);
    });
    let model = Model::load(&gguf, &mut |_| ()).expect("it loads");
    for prompt in expected.prompts() {
        let reference = &prompt["variants"]["f32"];
        let tokens = ids(&prompt["ids"]);
        for chunk in [tokens.len(), 5] {
            let logits = all_logits(&model, &compute, KvFormat::F32, &tokens, chunk);
            let nll = likelihoods(&logits, model.config().vocab_size, &tokens);
            let error = max_abs_error(&nll, expected.tensor(text(&reference["nll_tensor"])));
            println!("windowed {}: nll {error:.2e}", prompt["name"]);
            assert!(error <= TOLERANCE, "{}: likelihoods differ by {error}", prompt["name"]);
        }
        let found = greedy(&model, &compute, KvFormat::F32, &tokens, 32);
        assert_eq!(found, ids(&reference["greedy"]), "{}", prompt["name"]);
    }
}

#[test]
fn half_precision_caches_stay_within_their_tolerance() {
    let compute = fixtures::compute();
    for name in TINY {
        let expected = Expected::read(&format!("tiny/{name}"));
        let model = fixtures::model(&format!("tiny/{name}/model-F32.gguf"));
        for prompt in expected.prompts() {
            let tokens = ids(&prompt["ids"]);
            let exact = all_logits(&model, &compute, KvFormat::F32, &tokens, tokens.len());
            let exact: Vec<f64> = exact.into_iter().map(f64::from).collect();
            let rounded = all_logits(&model, &compute, KvFormat::F16, &tokens, tokens.len());
            let error = max_abs_error(&rounded, &exact);
            println!("{name} {}: f16 cache {error:.2e}", prompt["name"]);
            assert!(error <= TOLERANCE_F16_KV, "{name} {}: differ by {error}", prompt["name"]);
        }
    }
}
