//! Loading: options, and files that are not models.

use std::fs;
use std::path::{Path, PathBuf};

use ruvllm::{
    Embedder, EmbeddingRequest, Engine, EngineOptions, Error, Machine, Message, ModelSource, Plan, Warning,
};
use ruvllm_testkit::model_data;

use crate::common::{base, complete, family_path, greedy, load, tiny, tiny_options, tiny_path, tiny_source};

fn failure(source: impl Into<ModelSource>, options: &EngineOptions) -> Error {
    Engine::load(&source.into(), options, &mut |_| ()).expect_err("this is no usable model")
}

#[test]
fn an_engine_is_shared_between_threads() {
    fn shared<T: Send + Sync>(_: &T) {}
    shared(tiny());
}

#[test]
fn progress_reaches_every_tensor() {
    let mut calls = 0;
    Engine::load(&ModelSource::Path(tiny_path()), &tiny_options(), &mut |_| calls += 1)
        .expect("the model loads");
    assert!(calls > 10, "{calls} calls");
}

#[test]
fn the_context_is_what_was_asked_for_within_the_model() {
    let model_context = tiny().config().context_length;
    assert_eq!(tiny().context_length(), model_context);
    let with = |context| load(tiny_path(), &tiny_options().with_context(context));
    assert_eq!(with(33).context_length(), 33);
    assert_eq!(with(model_context + 1).context_length(), model_context);
    assert_eq!(tiny().threads(), 2);
}

#[test]
fn plan_of_a_source_is_that_of_the_loaded_engine() {
    let machine = Machine::detect();
    let kv = |policy: &str| Some(policy.parse().expect("a policy"));
    for path in [tiny_path(), tiny_path().with_file_name("hf")] {
        for options in [tiny_options(), tiny_options().with_context(40).with_kv(kv("f16"))] {
            let source = ModelSource::Path(path.clone());
            let plan = Plan::of_source(&source, &options, &machine).expect("a plan");
            assert_eq!(&plan, load(path.clone(), &options).plan(), "{}", path.display());
        }
    }
    let refused = |options: EngineOptions| {
        let planned = Plan::of_source(&tiny_source(|_| ()), &options, &machine).expect_err("no plan");
        assert_eq!(planned.to_string(), failure(tiny_source(|_| ()), &options).to_string());
        assert_eq!(std::mem::discriminant(&planned), std::mem::discriminant(&failure(tiny_path(), &options)));
    };
    refused(tiny_options().with_kv(kv("tiered:warm=nuq3")));
    refused(tiny_options().with_kv_budget(1000));
    refused(tiny_options().with_threads(0));
    refused(tiny_options().with_kv_budget(usize::MAX / 2));
}

#[test]
fn budget_below_a_full_context_is_a_warning_with_the_tokens_that_fit() {
    let source = ModelSource::Path(tiny_path());
    let plan = |kv_budget, context| {
        let options = tiny_options().with_kv_budget(kv_budget).with_context(context);
        Plan::of_source(&source, &options, &Machine::detect()).expect("a plan")
    };
    assert_eq!(plan(None, None).narrow_budget(), None);
    let needed = |plan: &Plan| plan.sequence_bytes + plan.slack_bytes;
    let full = plan(None, None);
    assert_eq!(full.slack_bytes, full.sequence_bytes / 4);
    if needed(&full) > 1 << 20 {
        let Some(Warning::Budget { needed_bytes, fitting_tokens, .. }) =
            plan(Some(1 << 20), None).narrow_budget()
        else {
            panic!("no warning")
        };
        assert_eq!(needed_bytes, needed(&full));
        assert_eq!(plan(Some(1 << 20), Some(fitting_tokens)).narrow_budget(), None);
        assert!(plan(Some(1 << 20), Some(2 * fitting_tokens)).narrow_budget().is_some());
    }
}

#[test]
fn a_folder_is_a_model_too_and_quantized_weights_are_private() {
    let folder = tiny_path().with_file_name("hf");
    let whole = load(folder.clone(), &tiny_options());
    let bytes = whole.model().weight_bytes();
    assert!(bytes.shared > bytes.private, "{bytes:?}: only matrices with another row order are copied");
    assert!(whole.chat_template().is_ok());
    let quantize = ruvllm::Recipe::from_name("q4_k_m");
    let quantized = load(folder, &tiny_options().with_quantize(quantize)).model().weight_bytes();
    assert_eq!(quantized.shared, 0);
    assert!(2 * quantized.private < bytes.shared + bytes.private, "{quantized:?} of {bytes:?}");
}

#[test]
fn static_bytes_are_a_model_too() {
    let bytes: &'static [u8] = std::fs::read(tiny_path()).expect("the model is there").leak();
    let source = ModelSource::Static { name: "tiny".to_owned(), bytes };
    let engine = Engine::load(&source, &tiny_options(), &mut |_| ()).expect("the model loads");
    assert_eq!(engine.config().vocab_size, tiny().config().vocab_size);
    assert!(format!("{source:?}").len() < 100, "the bytes are not printed");
    let cut = ModelSource::Static { name: "cut".to_owned(), bytes: &bytes[..1000] };
    let error = failure(cut, &tiny_options());
    assert!(error.to_string().contains("cut"), "{error}");
}

#[test]
fn every_family_runs_from_text_to_text() {
    for name in ["llama", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3"] {
        let engine = load(family_path(name), &tiny_options());
        let request = greedy("Once upon a time", 8).with_ignore_eos(true);
        let completion = complete(&engine, &request);
        assert_eq!(completion.tokens.len(), 8, "{name}");
        assert!(!completion.text.is_empty(), "{name}");
        let chat = Message::user("What is a window?");
        let prompt = engine.render_chat(&[chat], None).expect(name);
        assert!(prompt.contains("What is a window?"), "{name}: {prompt}");
    }
}

#[test]
fn files_that_are_no_models_are_named() {
    for path in
        ["no/such/file.gguf", env!("CARGO_MANIFEST_DIR"), concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")]
    {
        let error = failure(PathBuf::from(path), &tiny_options());
        assert!(matches!(error, Error::Open { .. }), "{path}: {error:?}");
        assert!(error.to_string().contains(path), "{error}");
    }
}

#[test]
fn a_model_of_another_kind_is_refused() {
    let source = tiny_source(|metadata| _ = metadata.insert("general.architecture", "abacus"));
    let error = failure(source, &tiny_options());
    assert!(matches!(&error, Error::Load { name, .. } if name == "changed"), "{error:?}");
}

#[test]
fn a_tokenizer_with_more_ids_than_the_model_is_refused() {
    let source = tiny_source(|metadata| {
        let mut tokens =
            metadata.get_strings("tokenizer.ggml.tokens").ok().flatten().expect("tokens").to_vec();
        let mut types =
            metadata.get_i32s("tokenizer.ggml.token_type").ok().flatten().expect("types").to_vec();
        tokens.push("surplus".to_owned());
        types.push(1);
        metadata.insert("tokenizer.ggml.tokens", tokens);
        metadata.insert("tokenizer.ggml.token_type", types);
    });
    let rows = tiny().config().vocab_size;
    let error = failure(source, &tiny_options());
    assert!(
        matches!(error, Error::VocabularyMismatch { tokenizer, model } if tokenizer == rows + 1 && model == rows),
        "{error:?}"
    );
}

#[test]
fn options_out_of_range_are_refused() {
    for options in
        [tiny_options().with_threads(0), tiny_options().with_context(0), tiny_options().with_prefill_chunk(0)]
    {
        assert!(matches!(failure(tiny_path(), &options), Error::InvalidOption { value: 0, .. }));
    }
}

#[test]
fn a_tokenizer_file_that_is_none_is_named() {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
    let error = failure(tiny_path(), &tiny_options().with_tokenizer(path.clone()));
    assert!(
        matches!(&error, Error::Tokenizer { name, .. } if *name == path.display().to_string()),
        "{error:?}"
    );
}

#[test]
fn the_default_model_has_a_chat_template() {
    assert!(base().chat_template().is_ok());
    assert!(base().load_time().as_nanos() > 0);
}

/// Copies a model file or folder to a temporary folder.
fn copy(model: &Path, folder: &Path) -> PathBuf {
    let target = folder.join(model.file_name().expect("a name"));
    if model.is_dir() {
        fs::create_dir(&target).expect("created");
        for entry in fs::read_dir(model).expect("a folder") {
            copy(&entry.expect("an entry").path(), &target);
        }
    } else {
        fs::copy(model, &target).expect("copied");
    }
    target
}

#[test]
fn files_that_were_read_may_be_cut_short_while_the_engine_runs() {
    let options = tiny_options().with_mmap(false);
    let request = greedy("Once upon a time", 8);
    for (model, weights) in [(tiny_path(), "."), (tiny_path().with_file_name("hf"), "model.safetensors")] {
        let expected = complete(&load(model.clone(), &tiny_options()), &request);
        let folder = tempfile::tempdir().expect("a folder");
        let path = copy(&model, folder.path());
        let engine = load(path.clone(), &options);
        // With a mapping, the next access would raise SIGBUS.
        fs::write(if path.is_dir() { path.join(weights) } else { path }, "").expect("cut short");
        assert_eq!(complete(&engine, &request).tokens, expected.tokens, "{}", model.display());
        assert!(engine.model().weight_bytes().shared > 0);
    }

    let folder = tempfile::tempdir().expect("a folder");
    let path = copy(&model_data("encoder").join("bert"), folder.path());
    let request = EmbeddingRequest::new(["a text"]);
    let embed = |options: &EngineOptions| {
        let source = ModelSource::Path(path.clone());
        Embedder::load(&source, options, &mut |_| ()).expect("the encoder loads")
    };
    let expected = embed(&tiny_options()).embed(&request).expect("vectors");
    let embedder = embed(&options);
    fs::write(path.join("model.safetensors"), "").expect("cut short");
    assert_eq!(embedder.embed(&request).expect("vectors"), expected);

    let bytes: &'static [u8] = fs::read(tiny_path()).expect("the model is there").leak();
    let source = ModelSource::Static { name: "tiny".to_owned(), bytes };
    assert!(Engine::load(&source, &options, &mut |_| ()).is_ok(), "static bytes are copied");
}

#[test]
fn weights_are_locked_in_their_files_or_quantized() {
    let quantize = ruvllm::Recipe::from_name("q8_0");
    let error = failure(tiny_path(), &tiny_options().with_mlock(true).with_quantize(quantize));
    assert!(matches!(error, Error::MlockQuantized), "{error:?}");
}
