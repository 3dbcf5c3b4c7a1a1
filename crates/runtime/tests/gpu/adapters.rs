//! LoRA adapters: PEFT's results, rows with different adapters in one pass, prefixes, slots,
//! registered names, refusals.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ruvllm::crates::adapters::{AdapterStore, LoraFile, Part};
use ruvllm::{
    Adapter, AdapterRefusal, AdapterSource, BackendConversation, BackendQueue, CancelToken, Completion,
    Decoded, Error, FactorFormat, GenerateRequest, GpuBackend, GpuOptions, InferenceBackend, NextToken,
    Precision, Prompt, RequestHandle, SamplingParams, ScaledAdapter, Tenant, TokenId, Wanted,
};
use ruvllm_adapters::Projection;
use ruvllm_testkit::model_data;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use crate::adapter_sites::{of_modules, of_site, of_values, sites};
use crate::support::{chain, cpu, error, gpu_with, ids, options, read_json, tiny, tolerance};

/// PEFT adapters of the tiny Llama.
const ADAPTERS: [&str; 3] = ["r1_qv", "r4_all", "r16_all_rs"];

fn lora(name: &str) -> PathBuf {
    model_data("lora").join(name)
}

fn load(path: PathBuf, options: &GpuOptions) -> Option<GpuBackend> {
    gpu_with(path, &GpuOptions { kv_tokens: Some(2048), ..options.clone() })
}

fn llama(options: &GpuOptions) -> Option<GpuBackend> {
    load(tiny("llama", "model-F16.gguf"), options)
}

fn adapter(backend: &GpuBackend, name: &str) -> Arc<Adapter> {
    let source = AdapterSource { path: lora(name), scale: 1.0 };
    backend.backend_adapters().expect("the GPU has adapters").load(&[source]).expect("it fits the model")
}

fn scaled(adapter: &Arc<Adapter>, scale: f32) -> ScaledAdapter {
    ScaledAdapter::new(Arc::clone(adapter), scale)
}

fn tokens(seed: usize, n: usize) -> Vec<TokenId> {
    (0..n).map(|i| ((i * 37 + seed * 101) % 500 + 3) as TokenId).collect()
}

fn request(prompt: Vec<TokenId>, n: usize, adapters: &[ScaledAdapter]) -> GenerateRequest {
    GenerateRequest::new(Prompt::Tokens(prompt))
        .with_max_tokens(n)
        .with_sampling(SamplingParams::default().with_temperature(0.0))
        .with_ignore_eos(true)
        .with_adapters(adapters.to_vec())
}

fn run(backend: &dyn InferenceBackend, request: &GenerateRequest) -> Result<Completion, Error> {
    backend.generate_with(request, &CancelToken::new(), &mut |_| ControlFlow::Continue(()))
}

fn text(backend: &dyn InferenceBackend, request: &GenerateRequest) -> Vec<TokenId> {
    run(backend, request).unwrap_or_else(|error| panic!("{}", chain(&error))).tokens
}

fn refusal(result: Result<Completion, Error>) -> AdapterRefusal {
    match result {
        Err(Error::AdapterBackend(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

/// Numbers of an `expected.safetensors`.
fn expected(path: &Path) -> BTreeMap<String, Vec<f64>> {
    let bytes = std::fs::read(path).expect("the tensors");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let values = |dtype, data: &[u8]| -> Vec<f64> {
        match dtype {
            Dtype::F64 => data.as_chunks().0.iter().map(|&bytes| f64::from_le_bytes(bytes)).collect(),
            Dtype::F32 => data.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes).into()).collect(),
            _ => data.as_chunks().0.iter().map(|&bytes| f64::from(i32::from_le_bytes(bytes))).collect(),
        }
    };
    file.iter().map(|(name, view)| (name.to_owned(), values(view.dtype(), view.data()))).collect()
}

/// Prompts of an adapter of the tiny Llama.
fn prompts(name: &str) -> Vec<Value> {
    let json = read_json(model_data("lora").join("expected.json"));
    let all = json["adapters"].as_array().expect("adapters");
    let found = all.iter().find(|adapter| adapter["name"] == name).expect("the adapter");
    found["prompts"].as_array().expect("prompts").clone()
}

#[test]
fn adapted_logits_and_greedy_tokens_are_those_of_peft() {
    // Rounding of the factors to F16 alone gives up to 1.7e-3 on the CPU.
    let formats = [(FactorFormat::F32, tolerance()), (FactorFormat::F16, 2.0 * tolerance())];
    for (adapter_format, tolerance) in formats {
        let options = GpuOptions { adapter_format, ..options() };
        let Some(mut backend) = load(tiny("llama", "model-F32.gguf"), &options) else { return };
        for name in ADAPTERS {
            let scaled = scaled(&adapter(&backend, name), 1.0);
            backend.set_adapters(&[scaled]).expect("default adapters");
            let expected = expected(&lora(name).join("expected.safetensors"));
            for prompt in prompts(name) {
                let (tokens, key) = (ids(&prompt["ids"]), prompt["name"].as_str().expect("a name"));
                let positions: Vec<usize> = ids(&prompt["positions"]).iter().map(|&p| p as usize).collect();
                let found = backend.logits(&tokens, &positions).expect("logits");
                let error = error(&found, &expected[&format!("{key}.logits_f64")]);
                println!("{name} {adapter_format:?} {key}: {error:.1e} of the largest logit");
                assert!(error <= tolerance, "{name} {adapter_format:?} {key}: {error}");
                let greedy = ids(&prompt["greedy"]);
                let found = text(&backend, &request(tokens, greedy.len(), &[]));
                assert_eq!(found, greedy, "{name} {adapter_format:?} {key}");
            }
        }
    }
}

/// Ranks and scales by pattern, logits, layers without.
#[test]
fn adapters_of_other_families_are_those_of_peft() {
    for family in ["gemma2", "qwen3"] {
        let options = GpuOptions { adapter_format: FactorFormat::F32, ..options() };
        let Some(mut backend) = load(tiny(family, "model-F32.gguf"), &options) else { return };
        let expected = expected(&lora(family).join("expected.safetensors"));
        let integers = |name: &str| -> Vec<usize> { expected[name].iter().map(|&x| x as usize).collect() };
        let tokens: Vec<TokenId> = integers("tokens").iter().map(|&token| token as TokenId).collect();
        let without = backend.logits(&tokens, &integers("positions")).expect("logits");
        let scaled = scaled(&adapter(&backend, family), 1.0);
        backend.set_adapters(&[scaled]).expect("default adapters");
        let found = backend.logits(&tokens, &integers("positions")).expect("logits");
        let [error, change] = [&found, &without].map(|found| error(found, &expected["logits"]));
        println!("{family}: {error:.1e} of the largest logit, {change:.1e} without the adapter");
        // The weights in F32 are rounded to F16 too.
        assert!(error <= 2.0 * tolerance() && change > 0.1, "{family}: {error}, {change} without");
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Logits of the prompt and of decode steps of sequences, of all in one batch.
fn together(backend: &GpuBackend, lists: &[(usize, Vec<ScaledAdapter>)]) -> Vec<Vec<Vec<u32>>> {
    const STEPS: usize = 3;
    let mut batch = backend.batch();
    let mut seen: Vec<Vec<Vec<u32>>> = Vec::new();
    let mut numbers = Vec::new();
    for (seed, adapters) in lists {
        let prompt = tokens(*seed, 20 + 7 * seed);
        let (number, _) = batch.begin_adapted(prompt.len() + STEPS, adapters, None).expect("a sequence");
        let session = batch.sequence(number).expect("it began");
        let go_on = &mut || ControlFlow::Continue(());
        let logits = session.prefill(&prompt, 16, go_on).expect("logits").expect("not cancelled");
        seen.push(vec![bits(logits)]);
        numbers.push(number);
    }
    let vocab = backend.config().vocab_size;
    for step in 0..STEPS {
        let next = |(&sequence, (seed, _)): (&usize, &(usize, Vec<ScaledAdapter>))| {
            let token = ((seed * 67 + step * 13) % 500 + 3) as TokenId;
            NextToken { sequence, token, wanted: Wanted::Logits }
        };
        let next: Vec<_> = numbers.iter().zip(lists).map(next).collect();
        let mut on_decoded = |rows: &[usize], decoded: Decoded<'_>| {
            let Decoded::Logits(logits) = decoded else { panic!("logits are wanted") };
            for (&row, logits) in rows.iter().zip(logits.chunks_exact(vocab)) {
                seen[row].push(bits(logits));
            }
        };
        batch.decode(&next, &mut on_decoded).expect("results");
    }
    seen
}

/// Modules of every layer.
const MODULES: [Projection; 7] = [
    Projection::Query,
    Projection::Key,
    Projection::Value,
    Projection::AttentionOutput,
    Projection::Gate,
    Projection::Up,
    Projection::Down,
];

/// Rows without an adapter, with one, with others, and with several, of F16 and quantized models;
/// also where the final state is changed before it is quantized.
#[test]
fn rows_of_a_pass_have_the_bits_that_they_have_alone() {
    let quantized = model_data("quant").join("llama-Q4_K_M.gguf");
    for path in [tiny("llama", "model-F16.gguf"), quantized] {
        let name = path.display().to_string();
        let Some(backend) = load(path, &options()) else { return };
        let base = backend.backend_adapters().expect("adapters").registry().residency().base();
        let small = of_modules(base, &[Projection::Query, Projection::Value], 1, 1);
        let [all, large] = [4, 16].map(|rank| of_modules(base, &MODULES, rank, rank));
        let last = of_site(base, 0, sites(base).last().expect("the final state"));
        let lists = [
            (0, vec![]),
            (1, vec![scaled(&all, 1.0)]),
            (2, vec![scaled(&small, 0.5)]),
            (3, vec![scaled(&all, 0.7), scaled(&large, -0.25), scaled(&small, 2.0)]),
            (4, vec![]),
            (5, vec![scaled(&large, 1.0), last.clone()]),
            (6, vec![last]),
            (1, vec![]),
            (1, vec![scaled(&all, 0.0), scaled(&large, 1.0)]),
        ];
        let plain = together(&backend, &lists[..1]);
        let found = together(&backend, &lists);
        assert!(found[0] == plain[0], "{name}: before any adapter is on the device");
        for (index, list) in lists.iter().enumerate() {
            let alone = together(&backend, std::slice::from_ref(list));
            assert!(found[index] == alone[0], "{name}: sequence {index} differs from itself alone");
        }
        for others in [[1, 7], [1, 8], [7, 8]] {
            assert!(found[others[0]][0] != found[others[1]][0], "{name}: the adapters change logits");
        }
    }
}

#[test]
fn every_site_has_the_logits_of_the_cpu() {
    let path = || tiny("llama", "model-F16.gguf");
    let Some(mut backend) = load(path(), &GpuOptions { adapter_format: FactorFormat::F32, ..options() })
    else {
        return;
    };
    let mut engine = cpu(path(), None);
    let base = Arc::clone(engine.adapter_base());
    let (prompt, positions) = (tokens(3, 30), [0, 11, 29]);
    let without = engine.logits(&prompt, &positions).expect("logits");
    for site in sites(&base) {
        for layer in if site.is_in_layers { vec![0, base.n_layers - 1] } else { vec![0] } {
            let of = of_site(&base, layer, &site);
            engine.set_adapters(std::slice::from_ref(&of)).expect("default adapters");
            backend.set_adapters(&[of]).expect("default adapters");
            let expected = engine.logits(&prompt, &positions).expect("logits");
            let found = backend.logits(&prompt, &positions).expect("logits");
            let expected: Vec<f64> = expected.into_iter().map(f64::from).collect();
            let [error, change] = [&found, &without].map(|found| error(found, &expected));
            println!("{:?} of layer {layer}: {error:.1e}, {change:.1e} without", site.site);
            let name = format!("{:?} of layer {layer}", site.site);
            assert!(error <= tolerance() && change > 4.0 * tolerance(), "{name}: {error}, {change} without");
        }
    }
}

#[test]
fn requests_at_once_have_the_texts_that_they_have_alone_and_on_the_cpu() {
    let Some(backend) = llama(&options()) else { return };
    let engine = cpu(tiny("llama", "model-F16.gguf"), None);
    let loaded = ADAPTERS.map(|name| adapter(&backend, name));
    let on_cpu = ADAPTERS.map(|name| {
        engine.load_adapter(&[AdapterSource { path: lora(name), scale: 1.0 }]).expect("it fits the model")
    });
    let lists: [&[(usize, f32)]; 6] =
        [&[], &[(0, 1.0)], &[(1, 1.0)], &[(2, 1.0)], &[(1, 0.5), (2, -0.5)], &[]];
    let requests = |adapters: &[Arc<Adapter>; 3]| -> Vec<GenerateRequest> {
        let request = |(seed, list): (usize, &&[(usize, f32)])| {
            let list: Vec<_> = list.iter().map(|&(index, scale)| scaled(&adapters[index], scale)).collect();
            request(tokens(seed, 40 + seed), 8, &list)
        };
        lists.iter().enumerate().map(request).collect()
    };
    let requests_on_gpu = requests(&loaded);
    let none = &mut |_: usize, _: &str| ControlFlow::Continue(());
    let all = backend.generate_many(&requests_on_gpu, &CancelToken::new(), none).expect("threads");
    let mut equal = 0;
    for (index, (found, on_cpu)) in all.into_iter().zip(requests(&on_cpu)).enumerate() {
        let found = found.unwrap_or_else(|error| panic!("{}", chain(&error))).tokens;
        assert_eq!(found, text(&backend, &requests_on_gpu[index]), "request {index} alone");
        // A near tie may fall either way.
        equal += usize::from(found == text(&engine, &on_cpu));
    }
    println!("{equal} of {} texts are those of the CPU", lists.len());
    assert!(equal + 1 >= lists.len(), "{equal} of {} texts are those of the CPU", lists.len());
}

#[test]
fn prefixes_are_those_of_their_adapters() {
    let Some(backend) = llama(&options()) else { return };
    let [small, all, _] = ADAPTERS.map(|name| adapter(&backend, name));
    let base = backend.backend_adapters().expect("adapters").registry().residency().base();
    let last = of_site(base, 0, sites(base).last().expect("the final state"));
    let prompt = tokens(1, 100);
    let known = |adapters: &[ScaledAdapter]| {
        let request = request(prompt.clone(), 4, adapters);
        let expected = run(&backend, &request.clone().with_cache_prefix(false)).expect("text");
        let found = run(&backend, &request).expect("text");
        assert_eq!(found.tokens, expected.tokens);
        found.cached_tokens
    };
    assert_eq!([known(&[]), known(&[])], [0, 96]);
    for adapters in [
        vec![scaled(&small, 1.0)],
        vec![scaled(&small, 0.5)],
        vec![scaled(&all, 1.0)],
        vec![scaled(&small, 1.0), scaled(&all, 1.0)],
    ] {
        assert_eq!([known(&adapters), known(&adapters)], [0, 96]);
    }
    // It changes no keys and values.
    assert_eq!(known(&[last]), 96);
    assert_eq!(known(&[]), 96);
}

#[test]
fn a_slot_is_given_to_whoever_needs_it_next() {
    let options = GpuOptions { adapter_slots: 1, ..options() };
    let Some(mut backend) = llama(&options) else { return };
    let [small, all, large] = ADAPTERS.map(|name| adapter(&backend, name));
    let Some(whole) = llama(&GpuOptions { adapter_slots: 8, ..options }) else { return };
    let requests: Vec<_> = [&small, &large, &all, &small, &large]
        .into_iter()
        .enumerate()
        .map(|(seed, adapter)| request(tokens(seed, 30), 6, &[scaled(adapter, 1.0)]))
        .collect();
    let expected: Vec<_> = requests.iter().map(|request| text(&whole, request)).collect();
    assert_eq!(requests.iter().map(|request| text(&backend, request)).collect::<Vec<_>>(), expected);
    assert!(backend.adapter_bytes() > 0 && whole.adapter_bytes() > 2 * backend.adapter_bytes());
    // Requests for other adapters wait until the slot is free; those for the same share it.
    let none = &mut |_: usize, _: &str| ControlFlow::Continue(());
    let all_at_once = backend.generate_many(&requests, &CancelToken::new(), none).expect("threads");
    let found: Vec<_> = all_at_once.into_iter().map(|found| found.expect("text").tokens).collect();
    assert_eq!(found, expected);
    // A list that needs two slots can never run, and says so.
    let two = request(tokens(0, 10), 2, &[scaled(&small, 1.0), scaled(&all, 1.0)]);
    assert_eq!(refusal(run(&backend, &two)), AdapterRefusal::Slots { slots: 1 });
    // Nor does another adapter while a sequence holds the slot.
    backend.set_adapters(&[scaled(&small, 1.0)]).expect("default adapters");
    let session = backend.session(16).expect("a sequence");
    assert_eq!(refusal(run(&backend, &requests[1])), AdapterRefusal::Slots { slots: 1 });
    assert_eq!(text(&backend, &requests[0]), expected[0], "the same adapter shares the slot");
    drop(session);
    assert_eq!(text(&backend, &requests[1]), expected[1]);
}

#[test]
fn conversations_change_their_adapters() {
    let Some(backend) = llama(&options()) else { return };
    let [small, all, _] = ADAPTERS.map(|name| adapter(&backend, name));
    let (first, second) = (tokens(1, 40), tokens(1, 60));
    let mut conversation = BackendConversation::new(&backend);
    let mut say = |prompt: &[TokenId], adapters: &[ScaledAdapter]| {
        let request = request(prompt.to_vec(), 4, adapters).with_cache_prefix(false);
        let expected = text(&backend, &request);
        let cancel = CancelToken::new();
        let found = conversation.generate(&request, &cancel, &mut |_| ControlFlow::Continue(()));
        let found = found.expect("text");
        assert_eq!(found.tokens, expected);
        found.cached_tokens
    };
    assert_eq!(say(&first, &[scaled(&small, 1.0)]), 0);
    assert_eq!(say(&second, &[scaled(&small, 1.0)]), 40);
    assert_eq!(say(&second, &[scaled(&small, 0.5)]), 0);
    assert_eq!(say(&second, &[scaled(&all, 1.0)]), 0);
    assert_eq!(say(&second, &[]), 0);
    assert_eq!(say(&second, &[]), 59);
}

#[test]
fn registered_adapters_serve_requests_by_name() {
    let Some(backend) = llama(&options()) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let store = AdapterStore::new(folder.path());
    let adapters = backend.backend_adapters().expect("adapters");
    let base = adapters.registry().residency().base();
    let add = |name: &str| {
        let file = LoraFile::open(&lora(name)).expect("a PEFT folder");
        let stored = store.add(name, base, &[Part { file: &file, scale: 1.0 }], "", false);
        stored.expect("a compact file").file.path().to_owned()
    };
    let [small, _, large] = ADAPTERS.map(add);
    let tenant = backend.tenant("team").expect("a tenant");
    adapters.registry().register(&tenant, "voice", &small, Precision::F16).expect("a version");
    adapters.registry().register(&Tenant::root(), "all", &large, Precision::I8).expect("a version");
    let expected =
        |name: &str| text(&backend, &request(tokens(1, 30), 6, &[scaled(&adapter(&backend, name), 1.0)]));
    let (expected_small, expected_large) = (expected("r1_qv"), expected("r16_all_rs"));

    let queue = BackendQueue::start(Arc::new(backend)).expect("a thread");
    let registry = queue.backend().backend_adapters().expect("adapters").registry();
    let named =
        |name: &str| request(tokens(1, 30), 6, &[]).with_tenant(tenant.clone()).with_named_adapter(name, 1.0);
    let handles: Vec<_> = ["voice", "all", "voice"].map(|name| queue.submit(&named(name))).into();
    let found: Vec<_> =
        handles.into_iter().map(|h| RequestHandle::wait(h.expect("submitted")).expect("text")).collect();
    assert_eq!(found[0].tokens, expected_small);
    assert_eq!(found[2].tokens, expected_small);
    let served: Vec<_> =
        found.iter().flat_map(|found| &found.adapters).map(|s| (&*s.name, s.format)).collect();
    assert_eq!(
        served,
        [("voice", FactorFormat::F16), ("all", FactorFormat::I8), ("voice", FactorFormat::F16)]
    );

    // The next request gets the new version; names of others do not exist.
    registry.replace(&tenant, "voice", &large, Precision::F16).expect("a version");
    let found = queue.submit(&named("voice")).expect("submitted").wait().expect("text");
    assert_eq!(found.tokens, expected_large);
    let foreign = request(tokens(1, 30), 6, &[]).with_named_adapter("voice", 1.0);
    assert!(matches!(queue.submit(&foreign), Err(Error::Adapter { .. })));
    registry.unload(&tenant, "voice").expect("it is there");
    assert!(matches!(queue.submit(&named("voice")), Err(Error::Adapter { .. })));
    // A file that is damaged behind its header fails the requests that need it.
    registry.register(&tenant, "voice", &small, Precision::F16).expect("a version");
    let mut bytes = std::fs::read(&small).expect("the file");
    // Factors in F16 are before those in 8 bits.
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x55;
    std::fs::write(&small, bytes).expect("a damaged file");
    let failed = queue.submit(&named("voice")).expect("submitted").wait();
    assert!(matches!(failed, Err(Error::Adapter { .. })), "{failed:?}");
}

#[test]
fn adapters_that_the_device_cannot_compute_are_refused() {
    let Some(backend) = llama(&options()) else { return };
    let small = adapter(&backend, "r1_qv");
    let many = request(tokens(0, 10), 2, &vec![scaled(&small, 0.1); 9]);
    let refused = refusal(run(&backend, &many));
    assert_eq!(refused, AdapterRefusal::List { backend: "gpu".to_owned(), found: 9, most: 8 });
    let eight = request(tokens(0, 10), 2, &vec![scaled(&small, 0.125); 8]);
    assert_eq!(text(&backend, &eight).len(), 2);
    let nan = request(tokens(0, 10), 2, &[scaled(&small, f32::NAN)]);
    assert!(matches!(run(&backend, &nan), Err(Error::AdapterScale { .. })));
    // Of another model, and values beyond F16.
    let qwen = load(tiny("qwen3", "model-F16.gguf"), &options()).expect("an adapter was found before");
    let other = request(tokens(0, 10), 2, &[scaled(&small, 1.0)]);
    assert!(matches!(run(&qwen, &other), Err(Error::Adapter { .. })));
    let base = backend.backend_adapters().expect("adapters").registry().residency().base();
    let site = &sites(base)[0];
    let large = of_values(base, 0, site, 1e5);
    assert!(matches!(run(&backend, &request(tokens(0, 10), 2, &[large])), Err(Error::Adapter { .. })));
    let i8 = GpuOptions { adapter_format: FactorFormat::I8, ..options() };
    let refused = GpuBackend::load(&tiny("llama", "model-F16.gguf").into(), &i8);
    assert!(matches!(refused, Err(Error::InvalidOption { name: "adapter_format", .. })));
}
