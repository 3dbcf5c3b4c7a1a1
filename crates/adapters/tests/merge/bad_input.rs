//! Refused merges: one error each.

use std::ops::ControlFlow;

use ruvllm_adapters::export::{AdapterFormat, FactorType, NewAdapter, NewUpdate};
use ruvllm_adapters::merge::{Dare, Input, Merge, Method, Rank, Ties};
use ruvllm_adapters::{Error, Projection};

use crate::{equal, folder, merge, open, peft, pool, tiny_llama};

fn refused(method: Method, count: usize) -> String {
    let file = open(&peft("r4_all"));
    let inputs = vec![Input { file: &file, weight: 1.0 }; count];
    merge(&inputs, method).expect_err("it is refused").to_string()
}

#[test]
fn parameters_out_of_range_are_named() {
    let ties = |density, lambda| Method::Ties(Ties { density, lambda });
    for density in [0.0, -0.1, 1.01, f64::NAN] {
        let expected = format!("density is {density}; expected: above 0, at most 1");
        assert_eq!(refused(ties(density, 1.0), 2), expected);
    }
    assert_eq!(refused(ties(0.5, f64::INFINITY), 2), "lambda is inf; expected: a finite number");
    for p in [1.0, -0.5, f64::NAN] {
        let expected = format!("p is {p}; expected: at least 0, below 1");
        assert_eq!(refused(Method::DareLinear(Dare { p, seed: 0 }), 2), expected);
        let both = Method::DareTies(Dare { p, seed: 0 }, Ties { density: 1.0, lambda: 1.0 });
        assert_eq!(refused(both, 2), expected);
    }
    assert_eq!(refused(Method::Slerp { t: 1.5 }, 2), "t is 1.5; expected: 0 to 1");
    for count in [0, 1, 3] {
        assert_eq!(
            refused(Method::Slerp { t: 0.5 }, count),
            format!("slerp merges exactly 2 adapters; given: {count}")
        );
    }
    assert_eq!(refused(Method::Linear, 0), "linear merges at least 1 adapter; given: 0");
    let file = open(&peft("r4_all"));
    let weighted = |method, weights: &[f64]| {
        let inputs: Vec<_> = weights.iter().map(|&weight| Input { file: &file, weight }).collect();
        merge(&inputs, method).expect_err("it is refused").to_string()
    };
    assert!(weighted(Method::Linear, &[f64::NAN, 1.0]).starts_with("weight is NaN"));
    assert!(weighted(Method::Average, &[1.0, -1.0]).starts_with("sum of the weights is 0"));
}

#[test]
fn ranks_and_errors_out_of_range_are_named() {
    let file = open(&peft("r4_all"));
    let merge = merge(&equal(&[&file]), Method::Linear).expect("a merge");
    let refused = |rank| {
        let mut go = |_: usize, _: usize| ControlFlow::Continue(());
        merge.adapter(rank, FactorType::F32, &pool(), &mut go).expect_err("it is refused").to_string()
    };
    assert_eq!(refused(Rank::AtMost(0)), "rank is 0; expected: at least 1");
    for error in [0.0, 1.0, -1.0, f64::NAN] {
        assert_eq!(refused(Rank::Error(error)), format!("error is {error}; expected: above 0, below 1"));
    }
    let mut stop =
        |done: usize, _: usize| if done == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    let stopped = merge.adapter(Rank::Exact, FactorType::F32, &pool(), &mut stop);
    assert!(matches!(stopped, Err(Error::Cancelled)));
}

#[test]
fn adapters_of_different_models_are_refused() {
    let folders = tempfile::tempdir().expect("a folder");
    let small = folder(&folders.path().join("small"), [12, 8], &[2], 1);
    let large = folder(&folders.path().join("large"), [12, 10], &[2], 1);
    let error = merge(&equal(&[&small, &large]), Method::Linear).expect_err("other shapes");
    assert!(matches!(error, Error::MergeShapes { .. }), "{error}");
    assert!(error.to_string().contains("maps [12, 10] values in"), "{error}");
    let (llama, phi) = (open(&peft("r4_all/adapter.gguf")), open(&peft("phi3/adapter.gguf")));
    let gguf = |inputs: &[Input<'_>]| Merge::new(inputs, Method::Linear, None, AdapterFormat::Gguf).map(drop);
    let error = gguf(&equal(&[&llama, &phi])).expect_err("other architectures");
    assert!(matches!(error, Error::MergeArchitectures { .. }), "{error}");
    let error = gguf(&equal(&[&llama, &open(&peft("r4_all"))])).expect_err("other row orders");
    assert!(error.to_string().contains("name it"), "{error}");
    let base = tiny_llama();
    let error = Merge::new(&equal(&[&small]), Method::Linear, Some(&base), AdapterFormat::Peft);
    assert!(error.expect_err("another base").to_string().contains("small"));
}

#[test]
fn a_joint_matrix_beside_its_part_is_refused() {
    let folders = tempfile::tempdir().expect("a folder");
    let write = |name: &str, projection| {
        let update = NewUpdate {
            projection,
            layer: 0,
            peft_name: None,
            rank: 1,
            inputs: 2,
            outputs: 4,
            a: vec![1.0; 2],
            b: vec![1.0; 4],
        };
        let path = folders.path().join(name);
        let made =
            NewAdapter::new(AdapterFormat::Peft, None, FactorType::F32, vec![update]).expect("an adapter");
        made.write(&path, false).expect("it is written");
        open(&path)
    };
    let (joint, part) = (write("joint", Projection::QueryKeyValue), write("part", Projection::Key));
    let error = merge(&equal(&[&joint, &part]), Method::Linear).expect_err("both");
    assert!(matches!(error, Error::MergeJoint { .. }), "{error}");
}

#[test]
fn values_that_are_not_finite_are_refused() {
    let folders = tempfile::tempdir().expect("a folder");
    let write = |name: &str, value: f32| {
        let update = NewUpdate {
            projection: Projection::Query,
            layer: 0,
            peft_name: None,
            rank: 1,
            inputs: 2,
            outputs: 2,
            a: vec![1.0, value],
            b: vec![1.0, 1e30],
        };
        let path = folders.path().join(name);
        let made =
            NewAdapter::new(AdapterFormat::Peft, None, FactorType::F32, vec![update]).expect("an adapter");
        made.write(&path, false).expect("it is written");
        open(&path)
    };
    let (nan, large) = (write("nan", f32::NAN), write("large", 1e30));
    let delta = |file, method| {
        let merge = merge(&equal(&[file]), method).expect("a merge");
        merge.delta(0, &pool()).expect_err("it is refused")
    };
    let error = delta(&nan, Method::Linear);
    assert!(matches!(error, Error::InFile { .. }), "{error}");
    let error = delta(&large, Method::Ties(Ties { density: 1.0, lambda: 1.0 }));
    assert!(matches!(error, Error::NotFinite { .. }), "the product is infinite: {error}");
    let inputs = equal(&[&large]);
    let merge = merge(&inputs, Method::Linear).expect("a merge");
    let mut go = |_: usize, _: usize| ControlFlow::Continue(());
    let error = merge.adapter(Rank::Exact, FactorType::F16, &pool(), &mut go).expect_err("beyond F16");
    assert!(matches!(error, Error::NotFinite { .. }), "{error}");
}
