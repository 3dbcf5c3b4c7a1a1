//! Stored prefixes of models whose layers keep a state (ADR-0161).

use std::ops::ControlFlow;
use std::sync::Arc;

use ruvllm::{
    BackendConversation, BackendQueue, CancelToken, Completion, GenerateRequest, GpuBackend, GpuOptions,
    InferenceBackend, PrefixSharing, Prompt, RequestHandle, SamplingParams, TokenId,
};

use crate::states::{WITH_STATES, backend, backend_with, bits, tokens};
use crate::support::{options, prompt_logits};

/// Tokens of a KV block.
const BLOCK: usize = 32;

/// `shared` tokens that are the same for all seeds, and `own` others.
fn prompt(seed: usize, shared: usize, own: usize) -> Vec<TokenId> {
    let mut prompt = tokens(0, shared);
    prompt.push(seed as TokenId + 3);
    prompt.extend(tokens(seed + 1, own.saturating_sub(1)));
    prompt
}

fn request(prompt: Vec<TokenId>) -> GenerateRequest {
    let sampling = SamplingParams::default().with_seed(Some(3)).with_temperature(1.0);
    GenerateRequest::new(Prompt::Tokens(prompt))
        .with_max_tokens(6)
        .with_sampling(sampling)
        .with_ignore_eos(true)
        .with_logprobs(2)
}

fn run(backend: &GpuBackend, request: &GenerateRequest) -> Completion {
    backend.generate_with(request, &CancelToken::new(), &mut |_| ControlFlow::Continue(())).expect("text")
}

/// Runs a request; checks tokens and log-probabilities against those of the whole prompt. Returns
/// the stored tokens that it began with.
#[track_caller]
fn cached(backend: &GpuBackend, request: &GenerateRequest) -> usize {
    let expected = run(backend, &request.clone().with_cache_prefix(false));
    let found = run(backend, request);
    assert_eq!((expected.cached_tokens, &found.tokens), (0, &expected.tokens));
    assert_eq!(found.logprobs, expected.logprobs);
    found.cached_tokens
}

#[test]
fn bits_behind_a_stored_state_are_those_of_the_whole_prompt() {
    let folder = tempfile::tempdir().expect("a folder");
    let sharing = PrefixSharing { tenant: "", min_tokens: 0, shared_tokens: 70 };
    for name in WITH_STATES {
        let Some(backend) = backend(name, 2, folder.path()) else { return };
        let mut batch = backend.batch();
        let mut logits = |prompt: &[TokenId], chunk| {
            let (number, known) = batch.begin_with_prefix(220, prompt, &sharing).expect("a sequence");
            let session = batch.sequence(number).expect("it began");
            let go_on = &mut || ControlFlow::Continue(());
            let logits = session.prefill(&prompt[known..], chunk, go_on).expect("logits").expect("all of it");
            let bits = bits(logits);
            batch.keep_prefix(number, prompt, &sharing);
            batch.end(number);
            (known, bits)
        };
        let [first, other, third] = [(1, 30), (2, 40), (3, 5)].map(|(seed, own)| prompt(seed, 150, own));
        let found: Vec<_> = [(&first, 512), (&first, 37), (&other, 64), (&other, 512), (&third, 9)]
            .map(|(prompt, chunk)| (logits(prompt, chunk), prompt))
            .into();
        // States are at the end of what is shared, at the end of prompts, and where they part.
        let known: Vec<_> = found.iter().map(|((known, _), _)| *known).collect();
        assert_eq!(known, [0, 160, 64, 160, 128], "{name}");
        for (index, ((_, found), prompt)) in found.iter().enumerate() {
            assert!(*found == bits(&prompt_logits(&backend, prompt, 512)), "{name}: prompt {index}");
        }
        let statistics = backend.prefix_statistics().expect("a GPU stores prefixes");
        assert!(statistics.states >= 4, "{name}: {statistics:?}");
    }
}

#[test]
fn prompts_with_a_stored_beginning_have_the_tokens_of_whole_ones() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["qwen35", "lfm2", "granitehybrid", "nemotron_h"] {
        let Some(backend) = backend(name, 1, folder.path()) else { return };
        let found: Vec<_> = [(0, 100, 20), (0, 100, 20), (1, 100, 60), (2, 100, 9), (1, 100, 70)]
            .map(|(seed, shared, own)| cached(&backend, &request(prompt(seed, shared, own))))
            .into();
        assert_eq!(found, [0, 96, 96, 96, 128], "{name}");
        // Generated tokens are not stored: their states come from other products.
        let first = prompt(4, 0, 40);
        let answer = run(&backend, &request(first.clone()).with_max_tokens(80)).tokens;
        assert_eq!(cached(&backend, &request([first, answer, tokens(9, 5)].concat())), BLOCK, "{name}");
        assert_eq!((backend.sequence_room(), backend.kv_room()), (1, 4096), "{name}: prefixes yield");
    }
}

#[test]
fn stored_states_yield_to_sequences_and_to_later_ones() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = GpuOptions { sequences: 2, spare_states: Some(1), ..options() };
    let Some(backend) = backend_with("qwen3next", options, folder.path()) else { return };
    let requests: Vec<_> = (0..6).map(|seed| request(prompt(seed, 0, 90))).collect();
    for round in 0..2 {
        for request in &requests {
            assert_eq!(
                cached(&backend, request),
                0,
                "round {round}: five slots, two of a sequence that runs"
            );
        }
    }
    assert_eq!(run(&backend, &requests[5]).cached_tokens, 64);
    let statistics = backend.prefix_statistics().expect("a GPU stores prefixes");
    assert!(statistics.states <= 3 && statistics.evicted_states > 6, "{statistics:?}");
    // Sequences that run at once need four slots.
    let mut batch = backend.batch();
    for seed in 0..2 {
        let number = batch.begin(100).expect("a sequence");
        let session = batch.sequence(number).expect("it began");
        let whole = session.prefill(&tokens(seed, 50), 512, &mut || ControlFlow::Continue(()));
        whole.expect("logits");
        session.forward(&[5]).expect("logits");
    }
    assert!(backend.prefix_statistics().is_some_and(|statistics| statistics.states <= 3));
}

#[test]
fn a_tenant_sees_its_own_states_and_what_is_for_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(backend) = backend("lfm2", 1, folder.path()) else { return };
    let [a, b] = ["a", "b"].map(|path| backend.tenant(path).expect("a tenant"));
    let request = request(prompt(0, 100, 20));
    let shared = request.clone().with_tenant(a.clone()).with_shared_tokens(70);
    assert_eq!(run(&backend, &shared).cached_tokens, 0);
    assert_eq!(run(&backend, &request.clone().with_tenant(b)).cached_tokens, 64);
    assert_eq!(run(&backend, &request.clone().with_tenant(a)).cached_tokens, 96);
    assert_eq!(run(&backend, &request.clone().with_min_cache_tokens(97)).cached_tokens, 0);
}

#[test]
fn requests_at_once_share_the_prompt_of_the_first() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(backend) = backend("falcon_h1", 4, folder.path()) else { return };
    let requests: Vec<_> = (0..4).map(|seed| request(prompt(seed, 128, 10 + seed))).collect();
    let requests: Vec<_> = requests.into_iter().map(|request| request.with_shared_tokens(128)).collect();
    let expected: Vec<_> =
        requests.iter().map(|r| run(&backend, &r.clone().with_cache_prefix(false)).tokens).collect();
    let queue = BackendQueue::start(Arc::new(backend)).expect("a thread");
    let handles: Vec<_> = requests.iter().map(|r| queue.submit(r).expect("submitted")).collect();
    let found: Vec<_> = handles.into_iter().map(|h| RequestHandle::wait(h).expect("text")).collect();
    assert_eq!(found.iter().map(|c| c.tokens.clone()).collect::<Vec<_>>(), expected);
    let cached: Vec<_> = found.iter().map(|completion| completion.cached_tokens).collect();
    assert_eq!(cached, [0, 128, 128, 128]);
}

/// A conversation goes back to a stored state of its own, and does not change it.
#[test]
fn a_conversation_goes_back_to_a_stored_state() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(backend) = backend("qwen35", 2, folder.path()) else { return };
    let cancel = CancelToken::new();
    let whole = request(prompt(0, 128, 20));
    let other = request([&prompt(0, 128, 20)[..140], &tokens(5, 60)].concat());
    let [expected, expected_other] =
        [&whole, &other].map(|r| run(&backend, &r.clone().with_cache_prefix(false)).tokens);
    let mut conversation = BackendConversation::new(&backend);
    let mut say = |request: &GenerateRequest| {
        let found = conversation.generate(request, &cancel, &mut |_| ControlFlow::Continue(()));
        let found = found.expect("text");
        (found.tokens, found.cached_tokens)
    };
    assert_eq!(say(&whole), (expected.clone(), 0));
    assert_eq!(say(&other), (expected_other.clone(), 128));
    // Tokens that the conversation computed behind it are stored too, unless the request says
    // not to.
    let hidden = request([&prompt(0, 128, 20)[..140], &tokens(7, 60)].concat());
    assert_eq!(say(&hidden.clone().with_cache_prefix(false)).1, 128);
    assert_eq!(run(&backend, &hidden.with_cache_prefix(true)).cached_tokens, 128);
    let again = run(&backend, &other);
    assert_eq!((again.tokens, again.cached_tokens), (expected_other, 192));
    assert_eq!(say(&whole), (expected.clone(), 128));
    let again = run(&backend, &whole);
    assert_eq!((again.tokens, again.cached_tokens), (expected, 128));
}

/// A conversation goes on behind its answer, whose states come from other products than those of
/// a prompt.
#[test]
fn states_behind_an_answer_are_not_stored() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(backend) = backend("qwen35", 2, folder.path()) else { return };
    let mut conversation = BackendConversation::new(&backend);
    let mut say = |request: &GenerateRequest| {
        let found = conversation.generate(request, &CancelToken::new(), &mut |_| ControlFlow::Continue(()));
        found.expect("text")
    };
    let first = prompt(0, 0, 40);
    let answer = say(&request(first.clone()).with_max_tokens(30)).tokens;
    let next = request([first, answer, tokens(9, 60)].concat());
    assert!(say(&next).cached_tokens > 60, "it goes on");
    assert_eq!(cached(&backend, &next), BLOCK);
}
