//! The default model against reference results that were computed independently of this project.
//!
//! The reference used the F16 weights in float32 arithmetic; the shipped weights are `Q8_0`, so numbers differ by the
//! quantization and continuations may part where the two best tokens are nearly equal.

use crate::program::{argument, data, expected, ids, run};

/// The most that `Q8_0` weights and 8-bit activations may change the mean negative log-likelihood, in nats.
const NLL_TOLERANCE: f64 = 3e-3;

#[test]
fn perplexity_equals_the_reference() {
    let file = data("validation-prefix.txt");
    let arguments =
        ["eval", "perplexity", "--context", "512", "--limit", "131072", "--json", "--file", argument(&file)];
    let measured = run(&arguments).json();
    let reference = expected()["perplexity"]["validation"]["512"].clone();
    assert_eq!(measured["tokens"], reference["scored"]);
    let difference = measured["nll"].as_f64().unwrap() - reference["nll"].as_f64().unwrap();
    assert!(difference.abs() < NLL_TOLERANCE, "nll is off by {difference}");
}

#[test]
fn greedy_continuations_equal_the_reference() {
    for prompt in expected()["prompts"].as_array().unwrap() {
        let text = prompt["prompt"].as_str().unwrap();
        let reference = ids(&prompt["greedy_ids"]);
        let arguments = ["generate", "--temperature", "0", "--kv", "f32", "-n", "64", "--json", text];
        let generated = ids(&run(&arguments).json()["tokens"]);
        assert_eq!(generated, reference, "{}", prompt["name"]);
    }
}
