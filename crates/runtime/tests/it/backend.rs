//! The backend trait: the engine as a backend, and a backend with only the three required methods.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use ruvllm::{
    BackendQueue, BackendSession, CancelToken, Completion, Engine, Error, FinishReason, GenerateRequest,
    InferenceBackend, KvPolicy, ModelConfig, Prompt, RequestHandle, Result, TextCodec, TokenId,
};

use crate::common::{base, complete, family_path, greedy, load, tiny, tiny_options, tiny_path};

const STORY: &str = "Once upon a time, there was a little fox.";

/// Backend that generates a fixed text after any prompt.
pub(crate) struct Parrot {
    tokens: Vec<TokenId>,
    /// Calls received, in order.
    events: Mutex<Vec<String>>,
}

impl Parrot {
    pub(crate) fn saying(text: &str) -> Self {
        let tokens = tiny().encode_prompt(&Prompt::from(text)).expect("a text");
        let end = tiny().tokenizer().eos().expect("an end");
        Self { tokens: tokens[1..].iter().copied().chain([end]).collect(), events: Mutex::default() }
    }

    fn note(&self, event: impl Into<String>) {
        self.events.lock().expect("no panic").push(event.into());
    }

    fn events(&self) -> Vec<String> {
        self.events.lock().expect("no panic").clone()
    }

    fn run(&self, request: &GenerateRequest, cancel: &CancelToken) -> Result<Completion> {
        self.generate_with(request, cancel, &mut |text| {
            self.note(format!("text {text:?}"));
            ControlFlow::Continue(())
        })
    }
}

impl InferenceBackend for Parrot {
    fn name(&self) -> &str {
        "parrot"
    }

    fn config(&self) -> &ModelConfig {
        tiny().config()
    }

    fn codec(&self) -> &TextCodec {
        InferenceBackend::codec(tiny())
    }

    fn context_length(&self) -> usize {
        24
    }

    fn session(&self, capacity: usize) -> Result<Box<dyn BackendSession + '_>> {
        self.note(format!("session of {capacity}"));
        Ok(Box::new(Words { parrot: self, passes: Vec::new(), logits: vec![0.0; self.config().vocab_size] }))
    }

    fn prefill_chunk(&self) -> usize {
        4
    }
}

struct Words<'p> {
    parrot: &'p Parrot,
    /// Tokens of each pass.
    passes: Vec<usize>,
    logits: Vec<f32>,
}

impl BackendSession for Words<'_> {
    fn len(&self) -> usize {
        self.passes.iter().sum()
    }

    fn forward(&mut self, tokens: &[TokenId]) -> Result<&[f32]> {
        self.parrot.note(format!("pass of {}", tokens.len()));
        self.passes.push(tokens.len());
        let said = self.passes.iter().rev().take_while(|&&n| n == 1).count();
        let next = self.parrot.tokens[said.min(self.parrot.tokens.len() - 1)];
        self.logits.fill(0.0);
        self.logits[next as usize] = 1.0;
        Ok(&self.logits)
    }

    fn truncate(&mut self, len: usize) -> Result<usize> {
        if len < self.len() {
            self.passes.clear();
        }
        Ok(self.len())
    }
}

/// A greedy request whose prompt has `n` tokens.
fn prompt_of(n: usize) -> GenerateRequest {
    greedy(Prompt::Tokens(vec![7; n]), 0).with_max_tokens(None)
}

#[test]
fn three_methods_make_a_backend_that_streams() {
    let parrot = Parrot::saying("one two");
    let completion = parrot.run(&prompt_of(6), &CancelToken::new()).expect("it speaks");
    assert_eq!(completion.text.trim(), "one two");
    assert_eq!(completion.finish_reason, FinishReason::Stop);
    assert_eq!((completion.prompt_tokens, completion.cached_tokens), (6, 0));
    assert_eq!(completion.tokens.len() + 1, parrot.tokens.len(), "the end is no part of the output");
    let events = parrot.events();
    assert_eq!(events[..3], ["session of 24", "pass of 4", "pass of 2"], "the prompt goes in by chunks");
    assert!(
        events[3].starts_with("text"),
        "the first token is shown before the next is computed: {events:?}"
    );
}

#[test]
fn stop_strings_and_the_context_end_the_text_of_any_backend() {
    let parrot = Parrot::saying("one two three four five six seven eight nine ten eleven twelve thirteen");
    let stop = prompt_of(3).with_stop(vec![" th".to_owned()]);
    let completion = parrot.run(&stop, &CancelToken::new()).expect("it speaks");
    assert_eq!((completion.text.trim(), completion.finish_reason), ("one two", FinishReason::Stop));

    let completion = parrot.run(&prompt_of(20), &CancelToken::new()).expect("it speaks");
    assert_eq!((completion.tokens.len(), completion.finish_reason), (5, FinishReason::Length));
    let error = parrot.run(&prompt_of(25), &CancelToken::new()).expect_err("there is no room");
    assert!(matches!(error, Error::PromptTooLong { prompt_tokens: 25, context: 24, .. }), "{error:?}");
    let unknown = GenerateRequest::new(Prompt::Tokens(vec![1, 4_000_000]));
    let error = parrot.run(&unknown, &CancelToken::new()).expect_err("there is no such token");
    assert!(matches!(error, Error::TokenOutOfRange { position: 1, .. }), "{error:?}");
}

#[test]
fn any_backend_is_cancelled_between_passes_and_after_a_piece() {
    let parrot = Parrot::saying("one two three");
    let cancelled = CancelToken::new();
    cancelled.cancel();
    let completion = parrot.run(&prompt_of(9), &cancelled).expect("it ends in good order");
    assert_eq!((completion.text.as_str(), completion.finish_reason), ("", FinishReason::Cancelled));
    assert!(parrot.events().is_empty(), "nothing is computed");

    let cancel = CancelToken::new();
    let completion = parrot
        .generate_with(&prompt_of(9), &cancel, &mut |_| {
            cancel.cancel();
            ControlFlow::Continue(())
        })
        .expect("it ends in good order");
    assert_eq!((completion.tokens.len(), completion.finish_reason), (1, FinishReason::Cancelled));
}

#[test]
fn several_requests_run_at_once_on_any_backend() {
    let parrot = Parrot::saying("one two");
    let requests = [prompt_of(6), prompt_of(30), prompt_of(10)];
    let mut texts = [const { String::new() }; 3];
    let results = parrot.generate_many(&requests, &CancelToken::new(), &mut |index, text| {
        texts[index].push_str(text);
        ControlFlow::Continue(())
    });
    let results = results.expect("threads");
    assert!(matches!(results[1], Err(Error::PromptTooLong { prompt_tokens: 30, .. })), "{results:?}");
    for index in [0, 2] {
        let completion = results[index].as_ref().expect("text");
        assert_eq!((completion.text.trim(), completion.finish_reason), ("one two", FinishReason::Stop));
        assert_eq!(texts[index], completion.text);
    }
    assert_eq!(parrot.events()[..2], ["session of 24", "session of 24"], "both begin in the first step");

    let requests = [greedy(Prompt::from(STORY), 5), greedy(Prompt::from("A fox"), 9)];
    let expected = requests.clone().map(|request| complete(tiny(), &request).tokens);
    let backend: &dyn InferenceBackend = tiny();
    let found = backend.generate_many(&requests, &CancelToken::new(), &mut |_, _| ControlFlow::Continue(()));
    let found: Vec<_> = found.expect("threads").into_iter().map(|r| r.expect("text").tokens).collect();
    assert_eq!(found, expected);
}

#[test]
fn requests_join_a_queue_from_any_thread() {
    let queue = BackendQueue::start(Arc::new(Parrot::saying("one two"))).expect("a thread");
    let texts: Vec<String> = std::thread::scope(|scope| {
        let submit = || queue.submit(&prompt_of(7)).and_then(RequestHandle::wait).expect("text").text;
        let threads: Vec<_> = (0..5).map(|_| scope.spawn(submit)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert!(texts.iter().all(|text| text.trim() == "one two"), "{texts:?}");
    let cancel = CancelToken::new();
    cancel.cancel();
    let cancelled = queue.submit_with(&prompt_of(7), &cancel).and_then(RequestHandle::wait);
    assert_eq!(cancelled.expect("it ends in good order").finish_reason, FinishReason::Cancelled);
    let error = queue.submit(&prompt_of(25)).expect_err("there is no room");
    assert!(matches!(error, Error::PromptTooLong { prompt_tokens: 25, context: 24, .. }), "{error:?}");
}

#[test]
fn queue_counts_steps_and_numbers_the_seeds_of_choices() {
    let engine = Arc::new(load(tiny_path(), &tiny_options()));
    let queue = BackendQueue::start(Arc::clone(&engine) as Arc<dyn InferenceBackend>).expect("a thread");
    let request = GenerateRequest::new(STORY).with_max_tokens(6).with_seed(11).with_ignore_eos(true);
    let handles = queue.submit_many(&request, 3).expect("submitted");
    let texts: Vec<_> = handles.into_iter().map(|handle| handle.wait().expect("text").tokens).collect();
    for (index, tokens) in texts.iter().enumerate() {
        let alone = request.clone().with_seed(11 + index as u64);
        assert_eq!(*tokens, complete(&engine, &alone).tokens, "choice {index}");
    }
    let prompt = engine.encode_prompt(&request.prompt).expect("a text").len() as u64;
    let counts = queue.step_statistics();
    // The last token of a choice is not computed.
    assert_eq!((counts.prefill_tokens, counts.decode_tokens), (3 * prompt, 3 * 5));
    assert_eq!((counts.ended_requests, counts.waiting), (3, 0));
    let steps = queue.steps_since(0);
    assert_eq!(steps.len() as u64, counts.steps);
    assert_eq!(steps.iter().map(|step| step.sequences as u64).sum::<u64>(), counts.parts);
    for n in [0, 129] {
        assert!(matches!(queue.submit_many(&request, n), Err(Error::InvalidOption { name: "n", .. })));
    }
    let other = request.clone().with_kv("q8".parse::<KvPolicy>().expect("a policy"));
    let refused = queue.submit(&other);
    assert!(matches!(refused, Err(Error::KvPolicyBackend { .. })), "{refused:?}");
    assert!(!queue.is_lost());
}

#[test]
fn the_engine_behind_the_seam_is_the_engine() {
    let backend: &dyn InferenceBackend = base();
    assert_eq!(backend.name(), "native");
    assert_eq!(backend.config().vocab_size, base().config().vocab_size);
    assert_eq!(backend.context_length(), base().context_length());
    let request = greedy(STORY, 12);
    let direct = complete(base(), &request);
    let mut pieces = Vec::new();
    let completion = backend
        .generate_with(&request, &CancelToken::new(), &mut |text| {
            pieces.push(text.to_owned());
            ControlFlow::Continue(())
        })
        .expect("the request succeeds");
    assert_eq!((&completion.text, &completion.tokens), (&direct.text, &direct.tokens));
    assert_eq!(pieces.concat(), direct.text);
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

#[test]
fn a_session_of_the_engine_gives_its_logits_however_tokens_are_put_in() {
    let tokens: Vec<TokenId> = (0..90).map(|i| (i * 53 + 7) % 500).collect();
    let expected = bits(&tiny().logits(&tokens, &[tokens.len() - 1]).expect("logits"));
    let backend: &dyn InferenceBackend = tiny();
    let mut session = backend.session(100).expect("a sequence");
    assert!(session.is_empty());
    assert_eq!(bits(session.forward(&tokens).expect("logits")), expected);
    assert_eq!(session.truncate(40).expect("it is cut"), 40);
    let mut passes = 0;
    let go_on = &mut || {
        passes += 1;
        ControlFlow::Continue(())
    };
    let logits = session.prefill(&tokens[40..], 16, go_on).expect("a prefill").map(bits);
    assert_eq!((logits, passes), (Some(expected.clone()), 4));
    assert_eq!(session.truncate(60).expect("it is cut"), 60);
    assert_eq!(session.len(), 60);
    assert!(session.prefill(&tokens[60..], 16, &mut || ControlFlow::Break(())).expect("no error").is_none());
    assert_eq!(session.truncate(90).expect("it is as long as it was"), 60);
    assert_eq!(bits(session.forward(&tokens[60..]).expect("logits")), expected);
    assert!(session.forward(&[]).is_err() && session.forward(&[4_000_000]).is_err());
    assert!(session.forward(&tokens[..20]).is_err(), "there is room for 100 tokens");
    assert!(backend.session(backend.context_length() + 1).is_err());
}

#[test]
fn what_a_window_has_left_behind_is_computed_again() {
    let gemma = load(family_path("gemma3"), &tiny_options());
    let mistral = windowed_mistral();
    for engine in [&gemma, &mistral] {
        let tokens: Vec<TokenId> = (0..150).map(|i| (i * 53 + 7) % 500).collect();
        let backend: &dyn InferenceBackend = engine;
        let mut session = backend.session(200).expect("a sequence");
        let go_on = &mut || ControlFlow::Continue(());
        let expected = session.prefill(&tokens, 8, go_on).expect("a prefill").map(bits);
        let kept = session.truncate(145).expect("it is cut");
        assert!(kept == 145 || kept == 0, "{kept}");
        assert_eq!(kept == 0, engine.config().longest_window().is_some());
        assert_eq!(session.len(), kept);
        assert_eq!(session.prefill(&tokens[kept..], 8, go_on).expect("a prefill").map(bits), expected);
    }
}

/// Mistral with its sliding window.
fn windowed_mistral() -> Engine {
    load(family_path("mistral").with_file_name("hf"), &tiny_options())
}

#[test]
fn a_codec_reads_what_the_engine_has() {
    let folder = ruvllm_models::HfFolder::open(tiny_path().with_file_name("hf")).expect("a folder");
    let codec = TextCodec::read(&folder, "tiny", None, 570).expect("a tokenizer");
    let prompt = Prompt::from("Once upon a time");
    assert_eq!(codec.encode_prompt(&prompt).expect("tokens"), tiny().encode_prompt(&prompt).expect("tokens"));
    assert!(codec.chat_template().is_ok());
    let error = TextCodec::read(&folder, "tiny", None, 500).expect_err("it has more ids");
    assert!(matches!(error, Error::VocabularyMismatch { model: 500, .. }), "{error:?}");
    let missing = std::path::Path::new("no/such/file");
    let error = TextCodec::read(&folder, "tiny", Some(missing), 570).expect_err("no file");
    assert!(matches!(&error, Error::Tokenizer { name, .. } if name == "no/such/file"), "{error:?}");
}
