//! Merges against results in float64.

use ruvllm_adapters::merge::arithmetic;
use ruvllm_adapters::merge::{Dare, Input, Method, Ties};
use safetensors::SafeTensors;
use serde_json::Value;

use crate::{index, merge, open, peft, pool};

const TOLERANCE: f64 = 1e-6;
const SLERP_TOLERANCE: f64 = 1e-5;

const MODULES: [(&str, ruvllm_adapters::Projection); 2] =
    [("q_proj", ruvllm_adapters::Projection::Query), ("v_proj", ruvllm_adapters::Projection::Value)];

fn data(name: &str) -> Vec<u8> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/merge/");
    std::fs::read(format!("{path}{name}")).expect("the test data")
}

fn cases() -> Value {
    serde_json::from_slice(&data("merge.json")).expect("valid JSON")
}

fn floats(bytes: &[u8]) -> Vec<f64> {
    bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes).into()).collect()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|value| value.as_f64().expect("a number")).collect()
}

/// Method of a case without masks.
fn method(case: &Value) -> Option<Method> {
    let parameter = |name: &str| case["params"][name].as_f64().expect("a number");
    match case["method"].as_str() {
        Some("linear") => Some(Method::Linear),
        Some("slerp") => Some(Method::Slerp { t: parameter("t") }),
        Some("ties") => {
            Some(Method::Ties(Ties { density: parameter("density"), lambda: parameter("lambda") }))
        }
        _ => None,
    }
}

fn assert_close(found: &[f32], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let error = found.iter().zip(expected).map(|(&x, y)| (f64::from(x) - y).abs()).fold(0.0, f64::max);
    assert!(error <= tolerance, "{what}: off by {error:e}");
}

#[test]
fn merges_of_adapters_are_the_references() {
    let (small, large) = (open(&peft("r4_all")), open(&peft("r16_all_rs")));
    let (cases, bytes) = (cases(), data("merge.safetensors"));
    let tensors = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let mut compared = 0;
    for case in cases["cases"].as_array().expect("cases") {
        let given = &case["params"]["weights"];
        let weights = if given.is_null() { vec![1.0, 1.0] } else { numbers(given) };
        let files = [&small, &large];
        let inputs: Vec<_> =
            files.iter().zip(&weights).map(|(file, &weight)| Input { file, weight }).collect();
        for (name, projection) in MODULES {
            let what = format!("case {} {name}", case["index"]);
            let expected = format!("out.{}.model.layers.0.self_attn.{name}", case["index"]);
            let Ok(expected) = tensors.tensor(&expected) else { continue };
            compared += 1;
            let found = match method(case) {
                Some(method) => {
                    let merge = merge(&inputs, method).expect("a merge");
                    merge.delta(index(&merge, (projection, 0)), &pool()).expect("a delta")
                }
                None => masked(case, &inputs, &tensors, (name, projection)),
            };
            let tolerance = if case["method"] == "slerp" { SLERP_TOLERANCE } else { TOLERANCE };
            assert_close(&found, &floats(expected.data()), tolerance, &what);
        }
    }
    assert_eq!(compared, 18, "14 cases of the values, 4 of the queries");
}

/// DARE with the masks of a case.
fn masked(
    case: &Value,
    inputs: &[Input<'_>],
    tensors: &SafeTensors<'_>,
    (name, projection): (&str, ruvllm_adapters::Projection),
) -> Vec<f32> {
    let p = case["params"]["p"].as_f64().expect("a number");
    let masks = case["params"]["masks"].as_str().expect("a name");
    let dropped: Vec<Vec<f32>> = inputs
        .iter()
        .zip(["r4_all", "r16_all_rs"])
        .map(|(&input, adapter)| {
            let one = merge(&[Input { weight: 1.0, ..input }], Method::Linear).expect("a merge");
            let mut delta = one.delta(index(&one, (projection, 0)), &pool()).expect("a delta");
            let mask = tensors.tensor(&format!("{masks}.{adapter}.model.layers.0.self_attn.{name}"));
            let mask = mask.expect("the mask").data();
            arithmetic::drop_and_rescale(&mut delta, 0, p, |index| mask[index] == 1);
            delta
        })
        .collect();
    let deltas: Vec<&[f32]> = dropped.iter().map(Vec::as_slice).collect();
    let weights: Vec<f64> = inputs.iter().map(|input| input.weight).collect();
    let mut out = vec![0.0; deltas[0].len()];
    match case["method"].as_str() {
        Some("dare_linear") => arithmetic::linear(&deltas, &weights, &mut out),
        Some("dare_ties") => {
            let parameter = |name: &str| case["params"][name].as_f64().expect("a number");
            arithmetic::ties(&deltas, &weights, parameter("density"), parameter("lambda"), &mut out);
        }
        other => panic!("{other:?}"),
    }
    out
}

#[test]
fn corner_cases_are_the_references() {
    let json = cases();
    let all = json["corner_cases"].as_array().expect("cases");
    assert_eq!(all.len(), 5);
    for case in all {
        let vector = |name: &str| numbers(&case[name]).iter().map(|&x| x as f32).collect::<Vec<f32>>();
        let (a, b) = (vector("a"), vector("b"));
        let mut out = vec![0.0; a.len()];
        arithmetic::slerp(&a, &b, 0.25, &mut out);
        let what = case["name"].as_str().expect("a name");
        assert_close(&out, &numbers(&case["slerp_t0.25"]), SLERP_TOLERANCE, what);
        for (density, name) in [(1.0, "ties_density1_lambda1"), (0.5, "ties_density0.5_lambda1")] {
            arithmetic::ties(&[&a, &b], &[1.0, 1.0], density, 1.0, &mut out);
            assert_close(&out, &numbers(&case[name]), TOLERANCE, &format!("{what} {name}"));
        }
        arithmetic::linear(&[&a, &b], &[0.7, 0.3], &mut out);
        assert_close(&out, &numbers(&case["linear_0.7_0.3"]), TOLERANCE, what);
    }
}

#[test]
fn seeded_dare_drops_the_stated_fraction_and_does_not_depend_on_threads() {
    let (small, large) = (open(&peft("r4_all")), open(&peft("r16_all_rs")));
    let inputs = crate::equal(&[&small, &large]);
    let (dare, ties) = (Dare { p: 0.75, seed: 7 }, Ties { density: 0.5, lambda: 1.0 });
    for method in [Method::DareLinear(dare), Method::DareTies(dare, ties)] {
        let merge = merge(&inputs, method).expect("a merge");
        let one = merge.delta(0, &ruvllm_kernels::ThreadPool::single()).expect("a delta");
        assert_eq!(one, merge.delta(0, &pool()).expect("a delta"));
        let zeros = one.iter().filter(|&&value| value == 0.0).count() as f64 / one.len() as f64;
        // Of what is left, trimming to a half removes nothing.
        let expected = 0.75 * 0.75;
        assert!((zeros - expected).abs() < 0.03, "{method:?}: {zeros}");
    }
}
