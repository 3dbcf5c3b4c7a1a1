//! A tiny Llama in seven quantization mixes against exact arithmetic on its dequantized weights.

use ruvllm_models::KvFormat;

use crate::fixtures::{self, Expected, all_logits, greedy, ids, max_abs_error, text};

const FILES: [&str; 7] = [
    "llama-Q8_0.gguf",
    "llama-Q4_0.gguf",
    "llama-Q4_K_M.gguf",
    "llama-Q5_K_M.gguf",
    "llama-IQ4_XS.gguf",
    "llama-Q3_K_M.gguf",
    "llama-Q2_K.gguf",
];

/// Error of one logit from rounding activations to 8 bits; another engine shows 0.14 to 0.32.
const MAX_ABS: f64 = 0.35;
/// Its root mean square over the vocabulary; another engine shows 0.035 to 0.059.
const RMS: f64 = 0.08;
/// Squared error relative to the squared logits.
const NMSE: f64 = 5e-4;

#[test]
fn logits_are_within_the_rounding_of_activations() {
    let compute = fixtures::compute();
    let expected = Expected::read("quant");
    for file in FILES {
        let model = fixtures::model(&format!("quant/{file}"));
        let mix = file.trim_start_matches("llama-").trim_end_matches(".gguf");
        for prompt in expected.prompts() {
            let tokens = ids(&prompt["ids"]);
            let logits = all_logits(&model, &compute, KvFormat::F32, &tokens, tokens.len());
            let last = &logits[logits.len() - model.config().vocab_size..];
            let reference = expected.tensor(&format!("{mix}.{}.last_logits_f64", text(&prompt["name"])));

            let max_abs = max_abs_error(last, reference);
            let squared: f64 = last.iter().zip(reference).map(|(&x, &y)| (f64::from(x) - y).powi(2)).sum();
            let power: f64 = reference.iter().map(|y| y.powi(2)).sum();
            let (rms, nmse) = ((squared / last.len() as f64).sqrt(), squared / power);
            println!("{file} {}: max {max_abs:.3} rms {rms:.4} nmse {nmse:.2e}", prompt["name"]);
            assert!(max_abs <= MAX_ABS, "{file} {}: a logit is off by {max_abs}", prompt["name"]);
            assert!(rms <= RMS, "{file} {}: rms error {rms}", prompt["name"]);
            assert!(nmse <= NMSE, "{file} {}: normalized squared error {nmse}", prompt["name"]);
        }
    }
}

/// Tokens bind where the reference's smallest margin exceeds 0.1: closer calls are decided by the
/// 8-bit rounding of activations, which moves these logits by up to 0.16.
#[test]
fn greedy_continuations_match_where_the_margin_binds() {
    let compute = fixtures::compute();
    let expected = Expected::read("quant");
    let mut n_binding = 0;
    for file in FILES {
        let model = fixtures::model(&format!("quant/{file}"));
        let entries = expected.json["files"].as_array().expect("files");
        let entry = entries.iter().find(|entry| entry["file"] == file).expect("the file");
        for reference in entry["prompts"].as_array().expect("prompts") {
            let margin = reference["greedy_min_margin"].as_f64().expect("a margin");
            let wanted = ids(&reference["greedy"]);
            let prompt = expected.prompt(text(&reference["name"]));
            let found = greedy(&model, &compute, KvFormat::F32, &prompt, wanted.len());
            let equal = found.iter().zip(&wanted).take_while(|(found, wanted)| found == wanted).count();
            println!(
                "{file} {}: {equal} of {} tokens equal, margin {margin:.4}",
                reference["name"],
                wanted.len()
            );
            if margin > 0.1 {
                n_binding += 1;
                assert_eq!(found, wanted, "{file} {}", reference["name"]);
            }
        }
    }
    assert!(n_binding >= 3, "only {n_binding} continuations were binding");
}
