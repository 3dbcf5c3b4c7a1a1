//! Adapters that requests name: versions, formats, loads beside running requests, shortage.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use ruvllm::crates::adapters::{
    AdapterStore, Edit, Error as AdapterError, Limits, LoraFile, MicroConfig, Part, Preset,
};
use ruvllm::crates::memory::Request as Pages;
use ruvllm::{
    AdapterChoice, Completion, Engine, EngineOptions, Error, FactorFormat, GenerateRequest, MicroLora,
    Precision, PrefixCaching, Prompt, Quota, RequestHandle, ServedAdapter, Tenant, Tier,
};
use ruvllm_testkit::{Random, model_data};

use crate::common::{complete, greedy, load, tiny_options, tiny_path};

/// Different adapters: test data at a scale.
const SOURCES: [(&str, f32); 6] = [
    ("r1_qv", 1.0),
    ("r4_all", 1.0),
    ("r16_all_rs", 1.0),
    ("r1_qv", -2.0),
    ("r4_all", 0.6),
    ("r16_all_rs", 0.3),
];

/// Compact files for the tiny model, each version under a path of its own.
struct Files {
    folder: tempfile::TempDir,
    engine: Engine,
}

impl Files {
    /// Files, and an engine that computes references with them.
    fn new() -> Self {
        let options = tiny_options().with_prefixes(PrefixCaching::Off);
        Self { folder: tempfile::tempdir().expect("a folder"), engine: load(tiny_path(), &options) }
    }

    /// Writes source `index` under a name.
    fn add(&self, name: &str, index: usize) -> PathBuf {
        let (lora, scale) = SOURCES[index];
        let file = LoraFile::open(&model_data("lora").join(lora)).expect("a PEFT folder");
        let store = AdapterStore::new(self.folder.path());
        let stored = store.add(name, self.engine.adapter_base(), &[Part { file: &file, scale }], "", false);
        stored.expect("a compact file").file.path().to_owned()
    }

    /// Tokens of a request with these adapters, computed alone.
    fn expected(&self, request: &GenerateRequest, adapters: &[(usize, FactorFormat, f32)]) -> Vec<u32> {
        let registry = self.engine.adapter_registry();
        let scaled = adapters.iter().map(|&(index, format, scale)| {
            let name = format!("{index}-{format:?}");
            if registry.resolve(&Tenant::root(), &name).is_err() {
                let precision = if format == FactorFormat::F16 { Precision::F16 } else { Precision::I8 };
                let path = self.add(&name, index);
                registry.register(&Tenant::root(), &name, &path, precision).expect("a version");
            }
            self.engine.named_adapter(&Tenant::root(), &name, scale).expect("factors")
        });
        let scaled: Vec<_> = scaled.collect();
        let mut alone = request.clone().with_adapters(scaled).with_tenant(Tenant::root());
        alone.session = None;
        complete(&self.engine, &alone).tokens
    }
}

fn tokens(random: &mut Random, most: usize) -> Vec<u32> {
    (0..1 + random.below(most)).map(|_| random.below(500) as u32).collect()
}

fn request(tokens: Vec<u32>, max_tokens: usize) -> GenerateRequest {
    greedy(Prompt::Tokens(tokens), max_tokens).with_ignore_eos(true)
}

/// The error of the adapter crate in an error of a request.
fn adapter_error(error: Error) -> AdapterError {
    match error {
        Error::Adapter { source: ruvllm::crates::models::Error::Adapter(source) } => source,
        other => panic!("{other:?}"),
    }
}

/// Names of the tenants, and what is behind them now.
struct World<'w> {
    files: &'w Files,
    engine: &'w Engine,
    tenants: Vec<Tenant>,
    /// Source by tenant and name; `None` for a file that is damaged.
    names: BTreeMap<(usize, String), Option<usize>>,
    made: usize,
}

impl<'w> World<'w> {
    fn new(files: &'w Files, engine: &'w Engine) -> Self {
        let tenant = |path| engine.kv_store().pool().tenant(path).expect("a tenant");
        let tenants = vec![Tenant::root(), tenant("a"), tenant("a/b"), tenant("c")];
        let mut world = Self { files, engine, tenants, names: BTreeMap::new(), made: 0 };
        for tenant in 0..4 {
            for name in 0..4 {
                world.put(tenant, &format!("n{name}"), (tenant + name) % SOURCES.len());
            }
        }
        world
    }

    fn put(&mut self, tenant: usize, name: &str, source: usize) -> PathBuf {
        self.made += 1;
        let path = self.files.add(&format!("version-{}", self.made), source);
        let registry = self.engine.adapter_registry();
        registry.replace(&self.tenants[tenant], name, &path, Precision::Tiered).expect("a version");
        self.names.insert((tenant, name.to_owned()), Some(source));
        path
    }

    /// Replaces, unloads or damages a name.
    fn change(&mut self, random: &mut Random) {
        let (tenant, name) = (random.below(4), format!("n{}", random.below(4)));
        match random.below(6) {
            0 => {
                if self.names.remove(&(tenant, name.clone())).is_some() {
                    let registry = self.engine.adapter_registry();
                    registry.unload(&self.tenants[tenant], &name).expect("it is there");
                }
            }
            1 => {
                let path = self.put(tenant, &name, random.below(SOURCES.len()));
                damage(&path);
                self.names.insert((tenant, name), None);
            }
            _ => drop(self.put(tenant, &name, random.below(SOURCES.len()))),
        }
    }

    /// Source that a name means for a tenant: its own, or that of the nearest ancestor.
    fn meaning(&self, tenant: usize, name: &str) -> Option<Option<usize>> {
        let line: &[usize] = [&[0][..], &[1, 0], &[2, 1, 0], &[3, 0]][tenant];
        line.iter().find_map(|&tenant| self.names.get(&(tenant, name.to_owned())).copied())
    }
}

/// Changes a byte of the factors: the header stays right.
fn damage(path: &Path) {
    let mut bytes = fs::read(path).expect("a file");
    let last = bytes.len() - 70;
    bytes[last] ^= 0x55;
    // The section in F16 as well.
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x55;
    fs::write(path, bytes).expect("a file");
}

/// A submitted request with the sources of its names and their scales.
struct Sent {
    request: GenerateRequest,
    /// `None` for a damaged file.
    sources: Vec<(Option<usize>, f32)>,
    handle: RequestHandle,
}

/// Submits a request of one or two names; nothing if a name is unknown, which is an error then.
fn send(world: &World<'_>, random: &mut Random) -> Option<Sent> {
    let tenant = random.below(4);
    let mut request = request(tokens(random, 90), 1 + random.below(24))
        .with_tenant(world.tenants[tenant].clone())
        .with_cache_prefix(random.below(4) > 0);
    let (mut sources, mut is_known) = (Vec::new(), true);
    for _ in 0..1 + random.below(2) {
        let (name, scale) = (format!("n{}", random.below(4)), [1.0, 0.5, -0.7, 0.0][random.below(4)]);
        match world.meaning(tenant, &name) {
            Some(source) if scale != 0.0 => sources.push((source, scale)),
            Some(_) => {}
            None => is_known = false,
        }
        request = request.with_named_adapter(name, scale);
    }
    match world.engine.submit(&request) {
        Ok(handle) => {
            assert!(is_known, "an unknown name is refused");
            Some(Sent { request, sources, handle })
        }
        Err(error) => {
            assert!(!is_known && matches!(adapter_error(error), AdapterError::UnknownAdapter { .. }));
            None
        }
    }
}

/// Compares an output with that computed alone; returns what served.
fn check(files: &Files, sent: Sent) -> Result<Vec<ServedAdapter>, AdapterError> {
    let Sent { request, sources, handle } = sent;
    let completion = match handle.wait() {
        Ok(completion) => completion,
        Err(error) => {
            assert!(sources.iter().any(|(source, _)| source.is_none()), "{error:?}");
            return Err(adapter_error(error));
        }
    };
    assert_eq!(completion.adapters.len(), sources.len());
    let adapters: Vec<_> = (sources.iter().zip(&completion.adapters))
        .map(|(&(source, scale), served)| (source.expect("a sound file"), served.format, scale))
        .collect();
    assert_eq!(completion.tokens, files.expected(&request, &adapters), "{adapters:?}");
    Ok(completion.adapters)
}

#[test]
fn outputs_are_those_of_the_version_of_the_submission_and_the_format_that_served() {
    let files = Files::new();
    let limits = Limits { hot_adapters: 3, warm_adapters: 4, ..Limits::default() };
    let options = tiny_options().with_prefixes(PrefixCaching::Memory).with_adapter_limits(limits);
    let engine = load(tiny_path(), &options);
    let mut world = World::new(&files, &engine);
    let mut random = Random::new(5);
    let (mut seen, mut failures, mut running) = (BTreeSet::new(), 0, Vec::new());
    for step in 0..160 {
        running.extend(send(&world, &mut random));
        if step % 2 == 0 {
            world.change(&mut random);
        }
        // Sixteen at once.
        while running.len() >= 16 || (step == 159 && !running.is_empty()) {
            match check(&files, running.remove(0)) {
                Ok(served) => seen.extend(served.iter().map(|served| (served.found, served.format))),
                Err(error) => {
                    assert!(
                        matches!(error, AdapterError::InFile { .. } | AdapterError::Damaged { .. }),
                        "{error}"
                    );
                    failures += 1;
                }
            }
        }
    }
    let formats: BTreeSet<_> = seen.iter().map(|(_, format)| format!("{format:?}")).collect();
    assert_eq!(formats.len(), 2, "hot and warm ones served: {seen:?}");
    assert!(seen.iter().any(|(found, _)| *found == Some(Tier::Cold)), "{seen:?}");
    assert!(seen.iter().any(|(found, _)| *found != Some(Tier::Cold)), "{seen:?}");
    assert!(failures > 0);
}

#[test]
fn preempted_requests_go_on_in_the_format_that_they_began_with() {
    let files = Files::new();
    let limits = Limits { hot_adapters: 1, warm_adapters: 8, ..Limits::default() };
    // Room for about a third of the sequences beside the adapters.
    let options = tiny_options()
        .with_prefixes(PrefixCaching::Off)
        .with_adapter_limits(limits)
        .with_context(400)
        .with_kv_budget(4 << 20);
    let engine = load(tiny_path(), &options);
    let registry = engine.adapter_registry();
    for index in 0..3 {
        let path = files.add(&format!("a{index}"), index);
        registry
            .register(&Tenant::root(), &format!("n{index}"), &path, Precision::Tiered)
            .expect("a version");
    }
    let mut random = Random::new(11);
    for _ in 0..3 {
        let sent = (0..24).map(|index| {
            let prompt = (0..150 + random.below(60)).map(|_| random.below(500) as u32).collect();
            let request = request(prompt, 40).with_named_adapter(format!("n{}", index % 3), 1.0);
            let handle = engine.submit(&request).expect("a request");
            Sent { request, sources: vec![(Some(index % 3), 1.0)], handle }
        });
        for sent in sent.collect::<Vec<_>>() {
            check(&files, sent).expect("an output");
        }
    }
    assert!(engine.step_statistics().preemptions > 0, "{:?}", engine.step_statistics());
}

#[test]
fn choices_share_the_version_and_the_format_of_their_prompt() {
    let files = Files::new();
    let engine = load(tiny_path(), &tiny_options().with_prefixes(PrefixCaching::Memory));
    let registry = engine.adapter_registry();
    registry.register(&Tenant::root(), "n", &files.add("a", 2), Precision::Tiered).expect("a version");
    let request = request((0..70).map(|i| i * 7 % 500).collect(), 20).with_named_adapter("n", 0.8);
    let handles = engine.submit_many(&request, 4).expect("choices");
    registry.replace(&Tenant::root(), "n", &files.add("b", 1), Precision::Tiered).expect("a version");
    let choices: Vec<Completion> =
        handles.into_iter().map(|handle| handle.wait().expect("an output")).collect();
    let served = choices[0].adapters.clone();
    assert_eq!((served.len(), served[0].name.as_str(), served[0].found), (1, "n", Some(Tier::Cold)));
    let expected = files.expected(&request, &[(2, served[0].format, 0.8)]);
    for choice in choices {
        assert_eq!((choice.tokens, choice.adapters), (expected.clone(), served.clone()));
    }
}

/// Options with a pool of this many pages; an adapter takes one, and keys and values some.
fn narrow(pages: usize) -> EngineOptions {
    tiny_options().with_kv_budget(pages * (512 << 10)).with_context(256).with_prefixes(PrefixCaching::Off)
}

#[test]
fn requests_wait_for_memory_that_others_hold() {
    let files = Files::new();
    let engine = load(tiny_path(), &narrow(5));
    let pages = engine.kv_store().pool().capacity_pages();
    let registry = engine.adapter_registry();
    for index in 0..6 {
        let path = files.add(&format!("a{index}"), index);
        registry.register(&Tenant::root(), &format!("n{index}"), &path, Precision::F16).expect("a version");
    }
    let mut random = Random::new(3);
    let sent: Vec<Sent> = (0..18)
        .map(|index| {
            let (one, two) = (index % 6, (index * 5 + 1) % 6);
            let request = request(tokens(&mut random, 40), 12)
                .with_named_adapter(format!("n{one}"), 1.0)
                .with_named_adapter(format!("n{two}"), 0.5);
            let handle = engine.submit(&request).expect("a request");
            Sent { request, sources: vec![(Some(one), 1.0), (Some(two), 0.5)], handle }
        })
        .collect();
    // More adapters than pages: an error of this one alone.
    let mut large = request(vec![1, 2, 3], 4);
    for index in 0..6 {
        large = large.with_named_adapter(format!("n{index}"), 1.0);
    }
    assert!(pages < 6, "{pages}");
    let large = engine.submit(large).expect("a request");
    for sent in sent {
        check(&files, sent).expect("an output");
    }
    let error = adapter_error(large.wait().expect_err("there is no room"));
    assert!(matches!(error, AdapterError::Memory { .. }), "{error}");
    assert_eq!(complete(&engine, &request(vec![1, 2, 3], 4)).tokens.len(), 4);
}

#[test]
fn a_quota_below_an_adapter_fails_its_request_alone() {
    let files = Files::new();
    let engine = load(tiny_path(), &narrow(8));
    let pool = engine.kv_store().pool();
    let small = pool.tenant("small").expect("a tenant");
    pool.set_quota(&small, Quota { hard_pages: 0, soft_pages: 0 }).expect("a quota");
    let path = files.add("a", 1);
    engine.adapter_registry().register(&small, "n", &path, Precision::Tiered).expect("a version");
    let other = engine.submit(request(vec![5, 6, 7], 60)).expect("a request");
    let named = request(vec![1, 2, 3], 4).with_tenant(small).with_named_adapter("n", 1.0);
    let error = adapter_error(engine.generate(&named).expect_err("no memory"));
    assert!(matches!(error, AdapterError::Memory { .. }), "{error}");
    assert_eq!(other.wait().expect("an output").tokens.len(), 60);
}

#[test]
fn others_are_computed_while_an_adapter_is_loaded() {
    let files = Files::new();
    let engine = load(tiny_path(), &tiny_options());
    let registry = engine.adapter_registry();
    for (index, name) in ["first", "slow"].iter().enumerate() {
        let path = files.add(name, index);
        registry.register(&Tenant::root(), name, &path, Precision::F16).expect("a version");
    }
    // The thread that loads is held until the gate opens.
    let (began, has_begun) = channel();
    let (open, gate) = channel();
    let first = registry.resolve(&Tenant::root(), "first").expect("a version");
    registry.residency().acquire_later(first.version().expect("a file"), None, move |_| {
        let _ = began.send(());
        let _ = gate.recv();
    });
    has_begun.recv().expect("a load");
    let named = request(vec![1, 2, 3], 8).with_named_adapter("slow", 1.0);
    let slow = engine.submit(&named).expect("a request");
    let cancelled = engine.submit(&named).expect("a request");
    let late = named.clone().with_deadline(Instant::now() + Duration::from_millis(50));
    let late = engine.submit(&late).expect("a request");
    for seed in 0..20 {
        let tokens = tokens(&mut Random::new(seed), 40);
        assert_eq!(complete(&engine, &request(tokens, 10)).tokens.len(), 10);
    }
    // Requests end before their adapter is there.
    cancelled.cancel_token().cancel();
    assert_eq!(cancelled.wait().expect("a result").adapters, []);
    assert!(matches!(late.wait(), Err(Error::DeadlineExceeded)));
    let start = Instant::now();
    while engine.step_statistics().loading != 1 && start.elapsed().as_secs() < 20 {
        std::thread::yield_now();
    }
    assert_eq!(engine.step_statistics().loading, 1);
    open.send(()).expect("the thread waits");
    let completion = slow.wait().expect("an output");
    assert_eq!(completion.adapters[0].found, Some(Tier::Cold));
    assert_eq!(completion.tokens, files.expected(&named, &[(1, FactorFormat::F16, 1.0)]));
}

#[test]
fn names_with_unusable_scales_and_absent_names_are_refused_at_the_submission() {
    let files = Files::new();
    let engine = load(tiny_path(), &tiny_options());
    let registry = engine.adapter_registry();
    registry.register(&Tenant::root(), "n", &files.add("a", 0), Precision::Tiered).expect("a version");
    let named = |name: &str, scale| engine.submit(request(vec![1], 2).with_named_adapter(name, scale));
    assert!(matches!(named("n", f32::NAN), Err(Error::AdapterScale { .. })));
    for (name, scale) in [("none", 1.0), ("none", 0.0), ("../n", 1.0), ("", 1.0)] {
        let error = adapter_error(named(name, scale).expect_err("no such name"));
        assert!(matches!(error, AdapterError::UnknownAdapter { .. }), "{name:?}: {error}");
    }
    assert_eq!(named("n", 0.0).expect("a request").wait().expect("an output").adapters, []);
    assert_eq!(registry.residency().statistics().misses, 0, "an adapter at scale 0 is not loaded");
}

#[test]
fn a_session_keeps_no_adapter_in_memory_and_goes_on_with_its_sequence() {
    let files = Files::new();
    let engine = load(tiny_path(), &tiny_options().with_prefixes(PrefixCaching::Off));
    let registry = engine.adapter_registry();
    registry.register(&Tenant::root(), "n", &files.add("a", 1), Precision::F16).expect("a version");
    let prompt: Vec<u32> = (0..50).map(|i| i * 11 % 500).collect();
    let go_on = |prompt: &[u32]| {
        let request = request(prompt.to_vec(), 6).with_named_adapter("n", 1.0).with_session("s");
        let completion = complete(&engine, &request);
        assert_eq!(completion.tokens, files.expected(&request, &[(1, FactorFormat::F16, 1.0)]));
        completion
    };
    let first = go_on(&prompt);
    assert_eq!(first.cached_tokens, 0);
    let version = registry.resolve(&Tenant::root(), "n").expect("a version");
    let version = Arc::clone(version.version().expect("a file"));
    let acquired = registry.acquire(&version).expect("factors");
    // The table and this test.
    assert_eq!(Arc::strong_count(&acquired.adapter), 2);
    drop(acquired);
    let longer: Vec<u32> = prompt.iter().chain(&first.tokens).copied().chain([9, 8, 7]).collect();
    assert!(go_on(&longer).cached_tokens >= prompt.len(), "the keys and values are those of the adapter");
}

/// Adds to all factors of an update.
fn add_to(edit: &mut Edit<'_>, value: f32) {
    let sites: Vec<_> = edit.layout().sites().iter().map(|at| (at.layer, at.site)).collect();
    for (layer, site) in sites {
        let mut site = edit.site(layer, site).expect("a site of the layout");
        site.a().iter_mut().for_each(|factor| *factor += value);
        site.b(0).iter_mut().for_each(|factor| *factor += value);
    }
}

#[test]
fn running_requests_keep_the_version_of_an_adapter_that_changes() {
    let engine = load(tiny_path(), &tiny_options().with_prefixes(PrefixCaching::Memory));
    let pool = engine.kv_store().pool();
    let tenant = pool.tenant("a").expect("a tenant");
    let config = MicroConfig::from(Preset::named("all").expect("a preset"));
    let micro = MicroLora::new(engine.adapter_base(), &config, pool, &Pages::default()).expect("an adapter");
    let micro = Arc::new(micro);
    engine.adapter_registry().register_changing(&tenant, "learned", &micro).expect("a name");
    let prompt: Vec<u32> = (0..40).map(|i| i * 13 % 500).collect();
    let base = request(prompt, 60).with_tenant(tenant);
    let named = base.clone().with_named_adapter("learned", 1.0);
    let mut handles = Vec::new();
    for version in 0..4u64 {
        if version > 0 {
            micro.update(|edit| add_to(edit, 0.02)).expect("memory");
        }
        let held = micro.current();
        handles.push((version, held, engine.submit(&named).expect("a request")));
    }
    let mut outputs = BTreeSet::new();
    for (version, held, handle) in handles {
        let completion = handle.wait().expect("an output");
        let alone = complete(&engine, &base.clone().with_adapter(held).with_cache_prefix(false));
        assert_eq!(completion.tokens, alone.tokens, "version {version}");
        let [served] = &completion.adapters[..] else { panic!("one adapter") };
        assert_eq!((served.name.as_str(), served.version, served.found), ("learned", version, None));
        outputs.insert(completion.tokens);
    }
    assert_eq!(outputs.len(), 4, "each version gives another output");
    let choice = AdapterChoice::from(ruvllm::ScaledAdapter::from(micro.current()));
    assert!(matches!(choice, AdapterChoice::Loaded(_)));
}
