//! Embeddings of a tiny encoder and of tiny decoders.

use std::path::PathBuf;

use ruvllm::{
    Embedder, Embedding, EmbeddingRequest, Engine, EngineOptions, Error, ModelSource, Pooling, Recipe,
};
use ruvllm_models::{Checkpoint, Compute, Encoder, EncoderWorkspace, HfFolder};
use ruvllm_testkit::model_data;
use serde_json::Value;

use crate::common::{base, family_path, load, tiny, tiny_options, tiny_path};

fn data(file: &str) -> PathBuf {
    model_data("encoder").join(file)
}

fn encoder(options: &EngineOptions) -> Embedder {
    Embedder::load(&ModelSource::Path(data("bert")), options, &mut |_| ()).expect("the encoder loads")
}

/// Texts of the models' reference data with hidden states, `[tokens, dim]`; the model crate
/// compares these with an independent implementation.
fn reference() -> (Vec<String>, Vec<Vec<Vec<f64>>>) {
    let json: Value =
        serde_json::from_slice(&std::fs::read(data("expected.json")).expect("texts")).expect("JSON");
    let text = |case: &Value| case["text"].as_str().expect("a text").to_owned();
    let texts: Vec<String> = json["cases"].as_array().expect("cases").iter().map(text).collect();
    let folder = HfFolder::open(data("bert")).expect("the folder opens");
    let (tokenizer, encoder) =
        (folder.tokenizer().expect("a tokenizer"), Encoder::load(&folder, &mut |_| ()).expect("it loads"));
    let (compute, mut workspace) = (Compute::new(1).expect("kernels"), EncoderWorkspace::new());
    let mut states = |text: &String| {
        let (ids, _) = tokenizer.encode_at_most(text, 24).expect("ids");
        let states = encoder.forward(&compute, &mut workspace, &[&ids]).expect("states");
        states.chunks_exact(32).map(|state| state.iter().map(|&value| f64::from(value)).collect()).collect()
    };
    let states = texts.iter().map(&mut states).collect();
    (texts, states)
}

fn pooled(states: &[Vec<f64>], pooling: Pooling, normalize: bool) -> Vec<f64> {
    let mut vector = match pooling {
        Pooling::Cls => states[0].clone(),
        Pooling::Last => states[states.len() - 1].clone(),
        _ => (0..states[0].len())
            .map(|i| states.iter().map(|state| state[i]).sum::<f64>() / states.len() as f64)
            .collect(),
    };
    if normalize {
        let length = vector.iter().map(|value| value * value).sum::<f64>().sqrt();
        vector.iter_mut().for_each(|value| *value /= length);
    }
    vector
}

fn vectors(embeddings: &[Embedding]) -> Vec<Vec<u32>> {
    embeddings.iter().map(|text| text.vector.iter().map(|value| value.to_bits()).collect()).collect()
}

#[test]
fn vectors_are_pooled_from_the_states_of_the_encoder() {
    let embedder = encoder(&tiny_options());
    let (texts, states) = reference();
    for pooling in Pooling::ALL {
        for normalize in [true, false] {
            let request =
                EmbeddingRequest::new(texts.clone()).with_pooling(pooling).with_normalize(normalize);
            let found = embedder.embed(&request).expect("vectors");
            assert_eq!((found.dim, found.pooling, found.normalized), (32, pooling, normalize));
            for ((text, found), states) in texts.iter().zip(&found.embeddings).zip(&states) {
                assert_eq!(found.tokens, states.len(), "{text:?}");
                assert_eq!(found.truncated, text.len() > 50, "{text:?}");
                for (found, expected) in found.vector.iter().zip(pooled(states, pooling, normalize)) {
                    assert!((f64::from(*found) - expected).abs() < 1e-6, "{pooling} {text:?}");
                }
            }
        }
    }
    assert!(embedder.engine().is_none());
}

#[test]
fn the_files_of_the_model_decide_what_a_request_leaves_open() {
    let embedder = encoder(&tiny_options());
    let long = "the cat sat on the mat ".repeat(20);
    let found = embedder.embed(&EmbeddingRequest::new([long.as_str()])).expect("vectors");
    assert_eq!((found.pooling, found.normalized), (Pooling::Mean, true));
    assert_eq!((found.embeddings[0].tokens, found.embeddings[0].truncated), (24, true));
    // The model has 32 positions; larger requests are limited.
    for (max_tokens, tokens) in [(5, 5), (30, 30), (1000, 32)] {
        let request = EmbeddingRequest::new([long.as_str()]).with_max_tokens(max_tokens);
        assert_eq!(embedder.embed(&request).expect("vectors").embeddings[0].tokens, tokens);
    }
    assert!(embedder.embed(&EmbeddingRequest::default()).expect("no vectors").embeddings.is_empty());
}

#[test]
fn other_texts_and_threads_change_no_bit_of_a_vector() {
    let (texts, _) = reference();
    let many: Vec<&str> = texts.iter().map(String::as_str).cycle().take(200).collect();
    let threads = |threads| tiny_options().with_threads(threads);
    let one = encoder(&threads(1));
    let all = vectors(&one.embed(&EmbeddingRequest::new(many.clone())).expect("vectors").embeddings);
    assert!(
        all == vectors(
            &encoder(&threads(3)).embed(&EmbeddingRequest::new(many)).expect("vectors").embeddings
        )
    );
    for (text, vector) in texts.iter().zip(&all) {
        let alone = one.embed(&EmbeddingRequest::new([text.as_str()])).expect("a vector");
        assert!(vectors(&alone.embeddings)[0] == *vector, "{text:?}");
    }
}

#[test]
fn token_ids_give_the_vectors_of_their_texts() {
    let texts = ["The cat sat on the mat.", "A dog."];
    let encoder = encoder(&tiny_options());
    let decoder = Embedder::load(&tiny_path().into(), &tiny_options(), &mut |_| ()).expect("it loads");
    for embedder in [encoder, decoder] {
        let ids = |text: &&str| embedder.tokenizer().encode_at_most(text, 24).expect("ids").0;
        let ids: Vec<_> = texts.iter().map(ids).collect();
        let of_texts = embedder.embed(&EmbeddingRequest::new(texts)).expect("vectors").embeddings;
        let of_ids = embedder.embed(&EmbeddingRequest::of_tokens(ids.clone())).expect("vectors").embeddings;
        assert_eq!(vectors(&of_texts), vectors(&of_ids));
        let short = EmbeddingRequest::of_tokens(ids).with_max_tokens(3);
        let short = embedder.embed(&short).expect("vectors").embeddings;
        assert!(short.iter().all(|text| text.tokens == 3 && text.truncated));
        let unknown = EmbeddingRequest::of_tokens([vec![0, 1 << 30]]);
        let error = embedder.embed(&unknown).expect_err("no such token");
        assert!(matches!(error, Error::TokenOutOfRange { token: 0x4000_0000, position: 1, .. }), "{error}");
        let empty = embedder.embed(&EmbeddingRequest::of_tokens([vec![]])).expect_err("no tokens");
        assert!(matches!(empty, Error::EmptyText { index: 0 }), "{empty}");
    }
}

#[test]
fn quantized_encoders_point_the_same_way() {
    let q8 = tiny_options().with_quantize(Recipe::from_name("q8_0"));
    let (texts, _) = reference();
    let request = EmbeddingRequest::new(texts);
    let (whole, small) = (encoder(&tiny_options()).embed(&request), encoder(&q8).embed(&request));
    let (whole, small) = (whole.expect("vectors").embeddings, small.expect("vectors").embeddings);
    for (whole, small) in whole.iter().zip(&small) {
        let cosine: f32 = whole.vector.iter().zip(&small.vector).map(|(a, b)| a * b).sum();
        assert!((0.99..0.999_999_9).contains(&cosine), "{cosine}");
    }
}

#[test]
fn a_decoder_gives_states_behind_its_final_norm() {
    for name in ["llama", "qwen2", "gemma2", "gemma3"] {
        let engine = load(family_path(name), &tiny_options());
        let text = "Once upon a time there was a turtle.";
        let embed = |pooling| {
            let request = EmbeddingRequest::new([text]).with_pooling(pooling).with_normalize(false);
            engine.embed(&request).expect("a vector").embeddings.remove(0)
        };
        let last = embed(Pooling::Last);
        assert_eq!(last.vector.len(), engine.config().model_dim);
        // Means of growing prefixes determine each state.
        let tokens = engine.encode_prompt(&text.into()).expect("tokens");
        assert_eq!(last.tokens, tokens.len(), "{name}");
        let mean = |max_tokens| {
            let request = EmbeddingRequest::new([text])
                .with_pooling(Pooling::Mean)
                .with_normalize(false)
                .with_max_tokens(max_tokens);
            engine.embed(&request).expect("a vector").embeddings.remove(0).vector
        };
        let (n, all, before) = (tokens.len() as f32, mean(tokens.len()), mean(tokens.len() - 1));
        for ((all, before), last) in all.iter().zip(&before).zip(&last.vector) {
            let found = n * all - (n - 1.0) * before;
            assert!((found - last).abs() <= 1e-4 * (1.0 + n * all.abs()), "{name}: {found} {last}");
        }
    }
}

#[test]
fn passes_and_company_change_no_bit_of_a_decoders_vector() {
    let short = tiny_options().with_prefill_chunk(7);
    let (whole, pieces) = (tiny(), load(tiny_path(), &short));
    let long = "A turtle looks back at the sea, and goes on. ".repeat(6);
    let texts = ["Once", long.as_str(), "upon a time", "there was", &long[9..]];
    for pooling in [Pooling::Mean, Pooling::Last] {
        let embed = |engine: &Engine, texts: &[&str]| {
            let request = EmbeddingRequest::new(texts.iter().copied()).with_pooling(pooling);
            vectors(&engine.embed(&request).expect("vectors").embeddings)
        };
        let all = embed(whole, &texts);
        assert!(embed(&pieces, &texts) == all, "{pooling}");
        for (text, vector) in texts.iter().zip(&all) {
            assert!(embed(whole, &[text])[0] == *vector, "{pooling} {text:?}");
        }
    }
}

#[test]
fn an_embedder_takes_decoders_too() {
    let options = tiny_options();
    let embedder = Embedder::load(&ModelSource::Path(tiny_path()), &options, &mut |_| ()).expect("it loads");
    let found = embedder.embed(&EmbeddingRequest::new(["Once upon a time"])).expect("a vector");
    assert_eq!((found.pooling, found.normalized), (Pooling::Mean, true));
    let length: f64 = found.embeddings[0].vector.iter().map(|&value| f64::from(value).powi(2)).sum();
    assert!((length - 1.0).abs() < 1e-6 && embedder.engine().is_some());
}

#[test]
fn last_states_of_a_decoder_are_the_vectors_of_transformers() {
    let bytes = std::fs::read(model_data("embed/qwen3.json")).expect("the file");
    let cases: Value = serde_json::from_slice(&bytes).expect("JSON");
    let cases = cases.as_array().expect("cases");
    let source = ModelSource::Path(model_data("embed/qwen3"));
    let embedder = Embedder::load(&source, &tiny_options(), &mut |_| ()).expect("it loads");
    let texts = cases.iter().map(|case| case["text"].as_str().expect("a text"));
    let found = embedder.embed(&EmbeddingRequest::new(texts)).expect("vectors");
    assert_eq!((found.pooling, found.normalized), (Pooling::Last, true));
    for (found, case) in found.embeddings.iter().zip(cases) {
        assert_eq!(found.tokens, case["ids"].as_array().expect("ids").len());
        let expected = case["vector"].as_array().expect("a vector");
        assert_eq!(found.vector.len(), expected.len());
        for (found, expected) in found.vector.iter().zip(expected) {
            let error = (f64::from(*found) - expected.as_f64().expect("a number")).abs();
            assert!(error < 1e-5, "{error}: {}", case["text"]);
        }
    }
}

#[test]
fn vectors_of_rotary_encoders_are_those_of_transformers() {
    for (name, pooling) in [("modernbert", Pooling::Cls), ("gemma", Pooling::Mean), ("nomic", Pooling::Mean)]
    {
        let folder = model_data(format!("embed/{name}"));
        let bytes = std::fs::read(folder.join("expected.json")).expect("the file");
        let cases: Value = serde_json::from_slice(&bytes).expect("JSON");
        let cases = cases.as_array().expect("cases");
        let texts: Vec<&str> = cases.iter().map(|case| case["text"].as_str().expect("a text")).collect();
        let embed = |source: PathBuf, threads: usize| {
            let options = tiny_options().with_threads(threads);
            let embedder =
                Embedder::load(&ModelSource::Path(source), &options, &mut |_| ()).expect("it loads");
            embedder.embed(&EmbeddingRequest::new(texts.clone())).expect("vectors")
        };
        let found = embed(folder.clone(), 1);
        assert_eq!((found.pooling, found.normalized), (pooling, true), "{name}");
        for (found, case) in found.embeddings.iter().zip(cases) {
            assert_eq!(found.tokens, case["ids"].as_array().expect("ids").len());
            let expected = case["vector"].as_array().expect("a vector");
            assert_eq!(found.vector.len(), expected.len());
            for (found, expected) in found.vector.iter().zip(expected) {
                let error = (f64::from(*found) - expected.as_f64().expect("a number")).abs();
                assert!(error < 2e-6, "{name} {error}: {}", case["text"]);
            }
        }
        // A file has the same values, and no key that says that vectors are one long.
        let of_file = embed(folder.join("converted.gguf"), 3);
        assert!(of_file.normalized && vectors(&of_file.embeddings) == vectors(&found.embeddings), "{name}");
    }
}

#[test]
fn what_cannot_be_embedded_is_refused() {
    // This model adds no special tokens.
    let error = base().embed(&EmbeddingRequest::new(["a", ""])).expect_err("no tokens");
    assert!(matches!(error, Error::EmptyText { index: 1 }), "{error:?}");
    // The tiny Llama adds BOS.
    assert_eq!(tiny().embed(&EmbeddingRequest::new([""])).expect("a vector").embeddings[0].tokens, 1);

    let cls = EmbeddingRequest::new(["a"]).with_pooling(Pooling::Cls);
    assert!(matches!(tiny().embed(&cls), Err(Error::PoolingOfDecoder { .. })));
    let none = EmbeddingRequest::new(["a"]).with_max_tokens(2);
    let error = encoder(&tiny_options()).embed(&none).expect_err("no room");
    assert!(matches!(error, Error::InvalidOption { name: "max_tokens", value: 2, .. }), "{error:?}");

    let error =
        Engine::load(&ModelSource::Path(data("bert")), &tiny_options(), &mut |_| ()).expect_err("refused");
    assert!(
        matches!(&error, Error::Load { source, .. } if source.to_string().contains("is an encoder")),
        "{error:?}"
    );
}
