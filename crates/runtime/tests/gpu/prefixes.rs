//! Stored prefixes: bits, tenants, eviction, sequences that go on from a cut.

use std::ops::ControlFlow;
use std::sync::Arc;

use ruvllm::{
    BackendConversation, BackendQueue, CancelToken, Completion, GenerateRequest, GpuBackend, GpuOptions,
    InferenceBackend, PrefixSharing, Prompt, RequestHandle, SamplingParams, TokenId,
};

use crate::support::{gpu_with, options, prompt_logits, tiny};

/// Tokens of a KV block.
const BLOCK: usize = 32;

fn tokens(seed: usize, n: usize) -> Vec<TokenId> {
    (0..n).map(|i| ((i * 37 + seed * 101) % 500 + 3) as TokenId).collect()
}

/// `shared` tokens that are the same for all seeds, and `own` others.
fn prompt(seed: usize, shared: usize, own: usize) -> Vec<TokenId> {
    let mut prompt = tokens(0, shared);
    prompt.extend(tokens(seed + 1, own));
    prompt
}

fn request(prompt: Vec<TokenId>) -> GenerateRequest {
    let sampling = SamplingParams::default().with_seed(Some(3)).with_temperature(1.0);
    GenerateRequest::new(Prompt::Tokens(prompt))
        .with_max_tokens(6)
        .with_sampling(sampling)
        .with_ignore_eos(true)
}

fn run(backend: &GpuBackend, request: &GenerateRequest) -> Completion {
    backend.generate_with(request, &CancelToken::new(), &mut |_| ControlFlow::Continue(())).expect("text")
}

fn load(name: &str, kv_tokens: usize) -> Option<GpuBackend> {
    let options = GpuOptions { kv_tokens: Some(kv_tokens), context: Some(512), ..options() };
    gpu_with(tiny(name, "model-F16.gguf"), &options)
}

#[test]
fn prompts_with_a_stored_beginning_have_the_tokens_of_whole_ones() {
    for name in ["llama", "gemma3"] {
        let Some(backend) = load(name, 1024) else { return };
        for (seed, shared, own) in [(0, 100, 20), (1, 100, 1), (2, 70, 90), (3, 128, 1), (4, 128, 2)] {
            let request = request(prompt(seed, shared, own)).with_logprobs(2);
            let expected = run(&backend, &request.clone().with_cache_prefix(false));
            assert_eq!(expected.cached_tokens, 0, "{name} {seed}");
            // The first request stores, the second finds its whole prompt but the last token.
            let known = [run(&backend, &request), run(&backend, &request)].map(|found| {
                assert_eq!(found.tokens, expected.tokens, "{name} {seed}");
                assert_eq!(found.logprobs, expected.logprobs, "{name} {seed}");
                found.cached_tokens
            });
            let before = if seed == 0 { 0 } else { shared.min(100) / BLOCK * BLOCK };
            assert!(known[0] >= before, "{name} {seed}: {known:?}");
            assert_eq!(known[1], (shared + own - 1) / BLOCK * BLOCK, "{name} {seed}");
        }
        assert_eq!(backend.kv_room(), 1024, "prefixes yield to requests");
        let statistics = backend.prefix_statistics().expect("a GPU stores prefixes");
        assert!(statistics.hit_tokens > 0 && statistics.blocks > 0, "{statistics:?}");
    }
}

#[test]
fn bits_behind_a_stored_prefix_are_those_of_the_whole_prompt() {
    let Some(backend) = load("mistral", 1024) else { return };
    let prompt = prompt(1, 150, 30);
    let sharing = PrefixSharing { tenant: "", min_tokens: 0, shared_tokens: 0 };
    let mut batch = backend.batch();
    let mut logits = || {
        let (number, known) = batch.begin_with_prefix(200, &prompt, &sharing).expect("a sequence");
        let session = batch.sequence(number).expect("it began");
        let go_on = &mut || ControlFlow::Continue(());
        let logits = session.prefill(&prompt[known..], 37, go_on).expect("logits").expect("all of it");
        let bits: Vec<u32> = logits.iter().map(|x| x.to_bits()).collect();
        batch.keep_prefix(number, &prompt, &sharing);
        (known, bits)
    };
    let (first, second) = (logits(), logits());
    assert_eq!((first.0, second.0), (0, 160));
    let whole: Vec<u32> = prompt_logits(&backend, &prompt, 512).iter().map(|x| x.to_bits()).collect();
    assert!(first.1 == whole && second.1 == whole);
}

#[test]
fn generated_tokens_are_not_stored() {
    let Some(backend) = load("llama", 512) else { return };
    let first = prompt(0, 40, 0);
    let answer = run(&backend, &request(first.clone()).with_max_tokens(80)).tokens;
    let next = [first, answer, tokens(9, 5)].concat();
    // Their keys and values come from other products than those of a prompt.
    assert_eq!(run(&backend, &request(next)).cached_tokens, BLOCK);
}

#[test]
fn a_tenant_sees_its_own_prefixes_and_what_is_for_all() {
    let Some(backend) = load("llama", 1024) else { return };
    let [a, b] = ["a", "b"].map(|path| backend.tenant(path).expect("a tenant"));
    let request = request(prompt(0, 100, 20));
    let shared = request.clone().with_tenant(a.clone()).with_shared_tokens(70);
    assert_eq!(run(&backend, &shared).cached_tokens, 0);
    assert_eq!(run(&backend, &request.clone().with_tenant(b)).cached_tokens, 64);
    assert_eq!(run(&backend, &request.clone().with_tenant(a)).cached_tokens, 96);
    assert_eq!(run(&backend, &request.clone().with_min_cache_tokens(65)).cached_tokens, 0);
}

#[test]
fn prefixes_yield_when_requests_need_their_blocks() {
    let Some(backend) = load("qwen3", 256) else { return };
    let requests: Vec<_> = (0..6).map(|seed| request(tokens(seed + 1, 100))).collect();
    let expected: Vec<_> =
        requests.iter().map(|r| run(&backend, &r.clone().with_cache_prefix(false)).tokens).collect();
    for round in 0..2 {
        for (request, expected) in requests.iter().zip(&expected) {
            assert_eq!(&run(&backend, request).tokens, expected, "round {round}");
        }
    }
    assert_eq!(backend.kv_room(), 256);
    // Only the last ones are left.
    assert_eq!(run(&backend, requests.last().expect("six")).cached_tokens, 96);
    assert_eq!(run(&backend, &requests[0]).cached_tokens, 0);
}

#[test]
fn requests_at_once_share_the_prompt_of_the_first() {
    let Some(backend) = load("llama", 1024) else { return };
    let requests: Vec<_> = (0..4).map(|seed| request(prompt(seed, 128, 10 + seed))).collect();
    let expected: Vec<_> =
        requests.iter().map(|r| run(&backend, &r.clone().with_cache_prefix(false)).tokens).collect();
    let queue = BackendQueue::start(Arc::new(backend)).expect("a thread");
    let handles: Vec<_> = requests.iter().map(|r| queue.submit(r).expect("submitted")).collect();
    let found: Vec<_> = handles.into_iter().map(|h| RequestHandle::wait(h).expect("text")).collect();
    assert_eq!(found.iter().map(|c| c.tokens.clone()).collect::<Vec<_>>(), expected);
    let cached: Vec<_> = found.iter().map(|completion| completion.cached_tokens).collect();
    assert_eq!(cached, [0, 128, 128, 128]);
}

#[test]
fn a_conversation_that_goes_back_does_not_change_what_is_stored() {
    let Some(backend) = load("mistral", 1024) else { return };
    let cancel = CancelToken::new();
    let whole = request(prompt(0, 128, 20));
    // The same beginning up to the middle of a block, then other tokens.
    let other = request([&tokens(0, 100)[..], &tokens(5, 60)].concat());
    let [expected, expected_other] =
        [&whole, &other].map(|r| run(&backend, &r.clone().with_cache_prefix(false)).tokens);
    let mut conversation = BackendConversation::new(&backend);
    let mut say = |request: &GenerateRequest| {
        let found = conversation.generate(request, &cancel, &mut |_| ControlFlow::Continue(()));
        let found = found.expect("text");
        (found.tokens, found.cached_tokens)
    };
    assert_eq!(say(&whole), (expected.clone(), 0));
    assert_eq!(say(&other), (expected_other, 96));
    // The stored prompt is as it was.
    let again = run(&backend, &whole);
    assert_eq!((again.tokens, again.cached_tokens), (expected, 128));
}

/// Prefixes that others displace come back from memory of the host, with the same bits.
#[test]
fn displaced_prefixes_come_back_from_memory_of_the_host() {
    for kv in ["f16", "q8"] {
        let options = GpuOptions {
            kv: kv.parse().expect("a policy"),
            kv_tokens: Some(256),
            context: Some(256),
            host_kv_bytes: 8 << 20,
            ..options()
        };
        let Some(backend) = gpu_with(tiny("mistral", "model-F16.gguf"), &options) else { return };
        assert!(backend.host_kv_bytes() > 7 << 20, "{}", backend.host_kv_bytes());
        let requests: Vec<_> = (0..4).map(|seed| request(prompt(seed, 0, 150)).with_logprobs(2)).collect();
        let expected: Vec<_> =
            requests.iter().map(|request| run(&backend, &request.clone().with_cache_prefix(false))).collect();
        // A prompt has 5 of 8 blocks: each displaces the one before.
        for round in 0..3 {
            for (request, expected) in requests.iter().zip(&expected) {
                let found = run(&backend, request);
                let known = if round == 0 { 0 } else { 150 / BLOCK * BLOCK };
                assert_eq!(found.cached_tokens, known, "{kv}, round {round}");
                assert_eq!(found.tokens, expected.tokens, "{kv}, round {round}");
                assert_eq!(found.logprobs, expected.logprobs, "{kv}, round {round}");
            }
        }
        let host = backend.host_prefix_statistics().expect("a place");
        assert!(host.blocks >= 15 && host.hit_tokens >= 8 * 96, "{host:?}");
    }
}
