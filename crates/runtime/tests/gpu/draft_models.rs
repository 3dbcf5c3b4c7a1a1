//! Draft models on the device of their model (ADR-0156).

use std::ops::ControlFlow;
use std::path::PathBuf;

use ruvllm::{
    AdapterSource, BackendConversation, CancelToken, Completion, Error, GenerateRequest, GpuOptions,
    InferenceBackend, ModelSource, Prompt, SamplingParams, ScaledAdapter, Speculation, TokenId,
};
use ruvllm_testkit::model_data;

use crate::support::{chain, gpu_with, options, tiny, try_load};

/// Models with one vocabulary: a model, the same with other weights of the same values, and
/// another one.
fn large() -> PathBuf {
    model_data("quant").join("llama-Q8_0.gguf")
}

fn alike() -> PathBuf {
    model_data("quant").join("llama-Q4_K_M.gguf")
}

fn other() -> PathBuf {
    tiny("llama_yarn", "model-F16.gguf")
}

fn drafting(draft: PathBuf, options: &GpuOptions) -> GpuOptions {
    GpuOptions { draft: Some(ModelSource::Path(draft)), ..options.clone() }
}

/// A prompt in which no token repeats.
fn prompt(seed: usize, n: usize) -> Vec<TokenId> {
    (0..n).map(|i| ((i * 37 + seed * 101) % 500 + 3) as TokenId).collect()
}

fn request(prompt: Vec<TokenId>, new: usize) -> GenerateRequest {
    GenerateRequest::new(Prompt::Tokens(prompt))
        .with_max_tokens(new)
        .with_ignore_eos(true)
        .with_sampling(SamplingParams::greedy())
}

fn run(backend: &dyn InferenceBackend, request: &GenerateRequest) -> Result<Completion, Error> {
    backend.generate_with(request, &CancelToken::new(), &mut |_| ControlFlow::Continue(()))
}

fn complete(backend: &dyn InferenceBackend, request: &GenerateRequest) -> Completion {
    run(backend, request).unwrap_or_else(|error| panic!("{}", chain(&error)))
}

fn together(backend: &dyn InferenceBackend, requests: &[GenerateRequest]) -> Vec<Completion> {
    let found = backend.generate_many(requests, &CancelToken::new(), &mut |_, _| ControlFlow::Continue(()));
    found.expect("threads").into_iter().map(|found| found.expect("text")).collect()
}

/// Drafted and accepted tokens.
fn counts(completions: &[Completion]) -> [usize; 2] {
    let sum = |of: fn(&Completion) -> usize| completions.iter().map(of).sum();
    [sum(|c| c.drafted_tokens), sum(|c| c.accepted_tokens)]
}

/// Requests with samplers of all kinds, behind prompts shorter and longer than a draft model
/// begins with.
fn requests(speculation: Speculation) -> Vec<GenerateRequest> {
    let sampling = |seed: usize| match seed % 3 {
        0 => SamplingParams::greedy(),
        1 => SamplingParams::default().with_temperature(0.4),
        _ => SamplingParams::default().with_temperature(0.4).with_repeat_penalty(1.05),
    };
    let request = |seed: usize| {
        let sampling = sampling(seed).with_seed(Some(seed as u64));
        request(prompt(seed, 4 + 17 * seed), 20 + seed).with_sampling(sampling).with_speculation(speculation)
    };
    (0..5).map(request).collect()
}

#[test]
fn draft_models_change_no_token() {
    let options = GpuOptions { sequences: 5, context: Some(192), ..options() };
    let Some(plain) = gpu_with(large(), &options) else { return };
    let expected: Vec<_> =
        requests(Speculation::Off).iter().map(|request| complete(&plain, request).tokens).collect();
    drop(plain);
    let check = |found: &[Completion], speculation| {
        let tokens: Vec<_> = found.iter().map(|found| found.tokens.clone()).collect();
        assert_eq!(tokens, expected, "{speculation}");
        counts(found)
    };
    for draft in [large(), other()] {
        let backend = gpu_with(large(), &drafting(draft.clone(), &options)).expect("an adapter");
        let fixed = requests(Speculation::Fixed(5));
        let [drafted, accepted] = check(&together(&backend, &fixed), Speculation::Fixed(5));
        assert!(drafted > 60, "{drafted} drafts");
        check(&together(&backend, &requests(Speculation::Auto)), Speculation::Auto);
        if draft == large() {
            assert!(accepted > 40, "{accepted} of {drafted} drafts accepted");
            let alone: Vec<_> = fixed.iter().map(|request| complete(&backend, request)).collect();
            let [drafted, accepted] = check(&alone, Speculation::Fixed(5));
            assert!(accepted > 40, "{accepted} of {drafted} drafts accepted alone");
        }
        let room = backend.draft_model().map(InferenceBackend::kv_room);
        assert_eq!(room, Some(5 * 224), "all places are free again");
    }
}

#[test]
fn a_model_foretells_itself_and_another_one_does_not() {
    let options = GpuOptions { context: Some(128), ..options() };
    let request = request(prompt(1, 12), 40).with_speculation(Speculation::Fixed(4));
    let count = |draft: Option<PathBuf>| {
        let options = match draft {
            Some(draft) => drafting(draft, &options),
            None => options.clone(),
        };
        let completion = complete(&gpu_with(large(), &options)?, &request);
        let counts = counts(std::slice::from_ref(&completion));
        Some((completion.tokens, counts))
    };
    let Some((expected, none)) = count(None) else { return };
    let [same, alike, other] =
        [large(), alike(), other()].map(|draft| count(Some(draft)).expect("an adapter"));
    for (tokens, _) in [&same, &alike, &other] {
        assert_eq!(*tokens, expected);
    }
    println!("look-up alone {none:?}, the same {:?}, alike {:?}, other {:?}", same.1, alike.1, other.1);
    let share = |[drafted, accepted]: [usize; 2]| accepted as f64 / drafted as f64;
    // Drafts of look-up go first, and are wrong.
    let [drafted, accepted] = [same.1[0] - none[0], same.1[1] - none[1]];
    assert!(accepted * 10 >= drafted * 9 && accepted >= 28, "{:?} {none:?}", same.1);
    assert!(share(alike.1) > share(other.1) + 0.2, "{:?} {:?}", alike.1, other.1);
    assert!(share(other.1) < 0.5 && other.1[0] > none[0], "{:?} {none:?}", other.1);
}

#[test]
fn sequences_beyond_the_places_of_a_draft_model_have_no_drafts_of_it() {
    let options = GpuOptions { kv_tokens: Some(1024), context: Some(64), ..options() };
    let Some(backend) = gpu_with(large(), &drafting(large(), &options)) else { return };
    // Places for one sequence.
    assert_eq!(backend.draft_model().map(InferenceBackend::kv_room), Some(96));
    let of = |speculation| {
        (0..4).map(|seed| request(prompt(seed, 9), 24).with_speculation(speculation)).collect::<Vec<_>>()
    };
    let plain = together(&backend, &of(Speculation::Off));
    let found = together(&backend, &of(Speculation::Fixed(3)));
    for (found, plain) in found.iter().zip(&plain) {
        assert_eq!(found.tokens, plain.tokens);
    }
    let [drafted, accepted] = counts(&found);
    assert!(drafted > 0 && accepted * 2 > drafted, "{accepted} of {drafted} drafts accepted");
}

#[test]
fn requests_of_a_lost_device_fail_with_that_error() {
    let options = GpuOptions { context: Some(256), speculation: Speculation::Fixed(3), ..options() };
    let Some(backend) = gpu_with(large(), &drafting(large(), &options)) else { return };
    let mut pieces = 0;
    let result = backend.generate_with(&request(prompt(0, 5), 200), &CancelToken::new(), &mut |_| {
        pieces += 1;
        if pieces == 3 {
            backend.destroy();
        }
        ControlFlow::Continue(())
    });
    assert!(matches!(result, Err(Error::BackendLost { .. })), "{result:?}");
    assert!(backend.is_lost() && backend.draft_model().is_some_and(InferenceBackend::is_lost));
}

#[test]
fn drafts_of_adapted_and_constrained_requests_change_no_token() {
    let options = GpuOptions { context: Some(128), kv_tokens: Some(1024), ..options() };
    let path = tiny("llama", "model-F16.gguf");
    let Some(backend) = gpu_with(path.clone(), &drafting(path, &options)) else { return };
    let source = AdapterSource { path: model_data("lora").join("r4_all"), scale: 4.0 };
    let adapter = backend.backend_adapters().expect("a GPU has adapters").load(&[source]).expect("it fits");
    let mut requests = vec![
        request(prompt(3, 10), 30),
        request(prompt(3, 10), 30).with_adapters(vec![ScaledAdapter::new(adapter, 1.0)]),
    ];
    #[cfg(feature = "structured-output")]
    for pattern in ["[abc]{28}", "(a long text that is forced, (or|and) more ){3,4}"] {
        let constraint = ruvllm::Constraint::regex(pattern).expect("a pattern");
        let sampling = SamplingParams::default().with_temperature(0.8).with_seed(Some(7));
        requests.push(request(prompt(4, 12), 30).with_constraint(constraint).with_sampling(sampling));
    }
    let mut drafted = Vec::new();
    for request in &requests {
        let plain = complete(&backend, &request.clone().with_speculation(Speculation::Off));
        let found = complete(&backend, &request.clone().with_speculation(Speculation::Fixed(4)));
        assert_eq!(found.tokens, plain.tokens);
        drafted.push(found.drafted_tokens);
    }
    assert!(drafted[..drafted.len().min(3)].iter().all(|&drafted| drafted > 0), "{drafted:?}");
    let tokens = |request: &GenerateRequest| complete(&backend, request).tokens;
    assert_ne!(tokens(&requests[0]), tokens(&requests[1]), "the adapter matters");
}

#[test]
fn conversations_go_on_behind_drafts() {
    let options = GpuOptions { context: Some(256), ..options() };
    let Some(backend) = gpu_with(large(), &drafting(large(), &options)) else { return };
    let run = |speculation| {
        let mut conversation = BackendConversation::new(&backend);
        let mut tokens = prompt(2, 20);
        let turn = |turn: usize| {
            let request = request(tokens.clone(), 14 + turn).with_speculation(speculation);
            let go_on = &mut |_: &str| ControlFlow::Continue(());
            let found = conversation.generate(&request, &CancelToken::new(), go_on).expect("text");
            tokens.extend(&found.tokens);
            tokens.extend([9, 11, 9]);
            (found.tokens, found.cached_tokens)
        };
        (0..3).map(turn).collect::<Vec<_>>()
    };
    assert_eq!(run(Speculation::Fixed(6)), run(Speculation::Off));
}

#[test]
fn draft_models_take_memory_within_the_budget() {
    let options = GpuOptions { context: Some(128), speculation: Speculation::Fixed(4), ..options() };
    let request = request(prompt(1, 60), 30);
    let Some(alone) = gpu_with(large(), &options) else { return };
    let (expected, without) = (complete(&alone, &request).tokens, alone.device_bytes());
    let (weights, kv) = (alone.weight_bytes(), alone.kv_bytes());
    drop(alone);
    let both = gpu_with(large(), &drafting(other(), &options)).expect("an adapter");
    let memory = both.device_memory().expect("a device");
    assert!(memory.weights > weights && memory.kv > kv, "{memory:?}, {weights} and {kv} of the model");
    assert_eq!((both.weight_bytes(), both.kv_bytes()), (weights, kv), "those of the model alone");
    assert_eq!(complete(&both, &request).tokens, expected);
    let most = both.device_bytes();
    assert!(most > without, "{most} {without}");
    drop(both);
    let tight = GpuOptions { budget: Some(most), ..options.clone() };
    let backend = gpu_with(large(), &drafting(other(), &tight)).expect("an adapter");
    let found = complete(&backend, &request);
    assert!(found.tokens == expected && found.drafted_tokens > 0, "{found:?}");
    assert!(backend.device_bytes() <= most, "{} of {most}", backend.device_bytes());
    drop(backend);
    let none = GpuOptions { budget: Some(weights / 4), ..options };
    let error =
        try_load(large().into(), &drafting(large(), &none)).expect("an adapter").expect_err("no room");
    let text = chain(&error);
    assert!(text.contains("load the draft model") && text.contains("GPU memory budget is full"), "{text}");
}

#[test]
fn unusable_draft_models_are_refused_by_name() {
    let load = |path: PathBuf, draft: PathBuf, options: &GpuOptions| {
        Some(try_load(path.into(), &drafting(draft, options))?.expect_err("refused"))
    };
    let Some(error) = load(tiny("llama", "model-F16.gguf"), other(), &options()) else { return };
    assert!(matches!(error, Error::DraftVocabulary { .. }), "{error:?}");
    assert!(error.to_string().contains("it has 512 tokens, the model has 570"), "{error}");
    let error = load(large(), "no-such.gguf".into(), &options()).expect("an adapter");
    assert!(error.to_string().contains("cannot open no-such.gguf"), "{error}");
}
