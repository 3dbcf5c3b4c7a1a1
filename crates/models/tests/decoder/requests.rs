//! Requests that make no sense: each gives one clear error and changes no cache.

use ruvllm_models::{Compute, Error, KvFormat, LogitsRows, Model, Segment, Sequence, Workspace};
use ruvllm_text::TokenId;

use crate::fixtures;

fn error(model: &Model, tokens: &[TokenId], logits: LogitsRows<'_>) -> Error {
    let compute = fixtures::compute();
    let mut good = fixtures::new_cache(model, KvFormat::F32, 32).expect("a cache");
    let mut cache = fixtures::new_cache(model, KvFormat::F32, 32).expect("a cache");
    let first = Segment::new(&compute, &[1, 2], &mut good, LogitsRows::Last).expect("room");
    let error = Segment::new(&compute, tokens, &mut cache, logits)
        .and_then(|second| model.forward(&compute, &mut Workspace::new(), [first, second]).map(|_| ()))
        .expect_err("refused");
    for sequence in [good, cache] {
        assert_eq!((sequence.len(), sequence.bytes()), (0, 0), "all steps are committed or none");
    }
    error
}

#[test]
fn each_gives_one_clear_error() {
    let model = fixtures::model("tiny/llama/model-F32.gguf");
    let cases: [(&[TokenId], LogitsRows<'_>, &str); 7] = [
        (&[], LogitsRows::Last, "segment 1 has no tokens"),
        (&[1, 570], LogitsRows::Last, "token 1 of segment 1 is id 570, the vocabulary has 570 ids"),
        (&[u32::MAX], LogitsRows::None, "token 0 of segment 1 is id 4294967295, the vocabulary has 570 ids"),
        (
            &[1, 2],
            LogitsRows::At(&[0, 2]),
            "segment 1 asks for logits of row 2, expected strictly ascending rows below 2",
        ),
        (
            &[1, 2],
            LogitsRows::At(&[1, 1]),
            "segment 1 asks for logits of row 1, expected strictly ascending rows below 2",
        ),
        (
            &[1, 2],
            LogitsRows::Tail(3),
            "segment 1 asks for logits of row 3, expected strictly ascending rows below 2",
        ),
        (&[1; 33], LogitsRows::None, "the cache holds 0 of 32 tokens, 33 more do not fit"),
    ];
    for (tokens, logits, message) in cases {
        assert_eq!(error(&model, tokens, logits).to_string(), message);
    }
}

#[test]
fn models_are_shared_and_sequences_move_between_threads() {
    fn shared<T: Send + Sync>() {}
    fn movable<T: Send>() {}
    shared::<Model>();
    shared::<Compute>();
    movable::<Sequence>();
    movable::<Workspace>();
}

#[test]
fn an_empty_batch_is_an_error() {
    let model = fixtures::model("tiny/llama/model-F32.gguf");
    let compute = fixtures::compute();
    let mut workspace = Workspace::new();
    let result = model.forward(&compute, &mut workspace, []);
    assert!(matches!(result, Err(Error::EmptyBatch)));
}

#[test]
fn a_cache_of_another_model_is_refused() {
    let model = fixtures::model("tiny/llama/model-F32.gguf");
    let other = fixtures::model("tiny/mistral/model-F32.gguf");
    let compute = fixtures::compute();
    let mut cache = fixtures::new_cache(&other, KvFormat::F32, 32).expect("a cache");
    let segment = Segment::new(&compute, &[1], &mut cache, LogitsRows::Last).expect("room");
    let mut workspace = Workspace::new();
    let result = model.forward(&compute, &mut workspace, [segment]);
    let message = result.expect_err("refused").to_string();
    assert_eq!(
        message,
        "the cache of segment 0 is for 2 layers x 2 heads x 32, the model needs 3 layers x 2 heads x 16"
    );
}
