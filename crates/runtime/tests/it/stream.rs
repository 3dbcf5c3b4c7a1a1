//! `generate` and `stream`: same pieces and results as the callback.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use ruvllm::{
    CancelToken, Chunk, Completion, Engine, EngineOptions, Error, FinishReason, GenerateRequest, Message,
    PrefixCaching, Prompt, RequestEvent, SamplingParams, TokenId,
};
use ruvllm_testkit::builtin_model;

use crate::common::{base, complete, greedy, load, run, tiny, tiny_options, tiny_path};

const STORY: &str = "Once upon a time, there was a little fox who lived near a green forest.";

/// Chunks and completion of a stream without errors.
fn chunks(engine: &Engine, request: &GenerateRequest) -> (Vec<Chunk>, Completion) {
    let mut stream = engine.submit(request).expect("a request that is taken");
    let prompt_tokens = stream.prompt_tokens();
    let chunks = stream.by_ref().collect::<Result<_, _>>().expect("no error");
    assert!(stream.next().is_none(), "an ended stream stays ended");
    let completion = stream.finish().expect("a completion");
    assert_eq!(prompt_tokens, completion.prompt_tokens);
    (chunks, completion)
}

fn texts(chunks: &[Chunk]) -> Vec<String> {
    chunks.iter().map(ToString::to_string).collect()
}

#[test]
fn stream_gives_the_pieces_of_the_callback() {
    let mut requests = vec![greedy(STORY, 24), greedy(STORY, 1), greedy(STORY, 0)];
    requests.push(greedy(STORY, 40).with_stop(["the"]));
    requests.push(greedy(Prompt::chat([Message::user("Hello")]), 24));
    for request in &requests {
        let (pieces, expected) = run(base(), request);
        let (chunks, found) = chunks(base(), request);
        assert_eq!(texts(&chunks), pieces);
        assert_eq!((&found.text, &found.tokens), (&expected.text, &expected.tokens));
        assert_eq!(found.finish_reason, expected.finish_reason);
        let ids: Vec<TokenId> = chunks.iter().flat_map(|chunk| chunk.tokens.clone()).collect();
        assert!(expected.tokens.starts_with(&ids), "{ids:?}");
    }
}

/// Pieces and result that a channel gives.
fn received(channel: &mpsc::Receiver<Result<RequestEvent, Error>>) -> (Vec<Chunk>, Option<Completion>) {
    let (mut chunks, mut end) = (Vec::new(), None);
    for event in channel {
        assert!(end.is_none(), "nothing follows the result");
        match event.expect("no error") {
            RequestEvent::Chunk(chunk) => chunks.push(chunk),
            RequestEvent::End(completion) => end = Some(*completion),
            other => panic!("{other:?}"),
        }
    }
    (chunks, end)
}

#[test]
fn channels_give_the_pieces_and_the_result() {
    let requests = [greedy(STORY, 24), greedy(STORY, 0), greedy(STORY, 40).with_stop(["the"])];
    let channels: Vec<_> = (0..9)
        .map(|index| base().submit(&requests[index % 3]).expect("a request that is taken").into_channel())
        .collect();
    for (index, channel) in channels.iter().enumerate() {
        let (expected, completion) = chunks(base(), &requests[index % 3]);
        let (found, end) = received(channel);
        assert_eq!(texts(&found).concat(), texts(&expected).concat());
        let end = end.expect("a result");
        assert_eq!((end.text, end.tokens), (completion.text, completion.tokens));
        assert_eq!(end.finish_reason, completion.finish_reason);
    }
    // A request that has ended before anybody asks for its events.
    let handle = base().submit(&requests[0]).expect("a request that is taken");
    complete(base(), &greedy(STORY, 200));
    assert_eq!(received(&handle.into_channel()).1.expect("a result").tokens.len(), 24);
}

#[test]
fn a_dropped_channel_and_a_break_cancel_the_request() {
    let engine = load(tiny_path(), &tiny_options().with_prefixes(PrefixCaching::Off));
    let used = || engine.kv_store().tiers().map(|tier| tier.blocks).sum::<usize>();
    let before = used();
    let endless =
        || GenerateRequest::new(Prompt::Tokens((1..6).collect())).with_ignore_eos(true).with_seed(5);
    drop(engine.submit(endless()).expect("a request").into_channel());
    let events = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&events);
    engine.submit(endless()).expect("a request").on_events(move |event| {
        assert!(matches!(event, Ok(RequestEvent::Chunk(_))));
        match seen.fetch_add(1, Ordering::Relaxed) {
            0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    });
    let deadline = Instant::now() + Duration::from_secs(60);
    while used() > before || events.load(Ordering::Relaxed) < 2 {
        assert!(Instant::now() < deadline, "the requests go on");
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(events.load(Ordering::Relaxed), 2, "nothing follows a break");
}

#[test]
fn errors_of_the_run_are_the_last_event() {
    let request = greedy(STORY, 24).with_deadline(Instant::now());
    let events: Vec<_> = base().submit(request).expect("a request").into_channel().iter().collect();
    assert!(matches!(&events[..], [Err(Error::Refused(_))]), "{events:?}");
}

#[test]
fn stream_ends_with_the_context() {
    let prompt = Prompt::Tokens((1..6).collect());
    let request = GenerateRequest::new(prompt).with_ignore_eos(true).with_seed(5);
    let (_, completion) = chunks(tiny(), &request);
    assert_eq!(completion.finish_reason, FinishReason::Length);
    // The last token is sampled, without a forward pass.
    assert_eq!(5 + completion.tokens.len(), tiny().context_length() + 1);
}

#[test]
fn dropped_stream_keeps_its_prefix_and_frees_its_memory() {
    let engine = load(builtin_model(), &EngineOptions::default());
    let mut stream = engine.submit(greedy(STORY.repeat(4), 200)).expect("a stream");
    let first = stream.next().expect("a chunk").expect("no error");
    assert!(!first.text.is_empty() && stream.completion().is_none());
    drop(stream);
    let (_, again) = chunks(&engine, &greedy(STORY.repeat(4), 2));
    assert!(again.cached_tokens > 0, "{again:?}");

    let options = tiny_options().with_prefixes(PrefixCaching::Off);
    let engine = Engine::open_with(tiny_path(), &options).expect("the model loads");
    let used = || engine.kv_store().tiers().map(|tier| tier.blocks).sum::<usize>();
    let before = used();
    let mut stream = engine.submit(Prompt::Tokens((1..80).collect())).expect("a stream");
    assert!(stream.next().is_some() && used() > before);
    drop(stream);
    let deadline = Instant::now() + Duration::from_secs(60);
    while used() != before {
        assert!(Instant::now() < deadline, "memory is free within a step");
        std::thread::yield_now();
    }
    drop(engine.submit("never asked"));
}

#[test]
fn finished_stream_has_what_it_gave() {
    let mut stream = base().submit(greedy("Another text", 200)).expect("a stream");
    let text = stream.next().expect("a chunk").expect("no error").text;
    let completion = stream.finish().expect("a completion");
    assert_eq!((completion.text, completion.finish_reason), (text, FinishReason::Cancelled));
}

#[test]
fn cancel_token_ends_a_stream() {
    let mut stream = base().submit(greedy(STORY, 200)).expect("a stream");
    stream.next().expect("a chunk").expect("no error");
    stream.cancel_token().cancel();
    let rest: Vec<Chunk> = stream.by_ref().collect::<Result<_, _>>().expect("no error");
    assert!(rest.len() < 150, "pieces that were there already: {rest:?}");
    assert_eq!(stream.completion().map(|c| c.finish_reason), Some(FinishReason::Cancelled));

    let cancel = CancelToken::new();
    cancel.cancel();
    let completion = base().generate_with(&greedy(STORY, 8), &cancel, &mut |_| panic!("no text"));
    assert_eq!(completion.expect("a completion").tokens.len(), 0, "cancelled before the prefill");
}

#[test]
fn errors_come_before_the_stream_or_as_its_last_item() {
    let stream = tiny().submit(Prompt::Tokens(vec![u32::MAX]));
    assert!(matches!(stream.err(), Some(Error::TokenOutOfRange { .. })));
    let all = (0..tiny().config().vocab_size as u32).map(|id| (id, f32::NEG_INFINITY)).collect();
    let request = GenerateRequest::new(Prompt::Tokens(vec![1]))
        .with_sampling(SamplingParams::greedy().with_logit_bias(all));
    let mut stream = tiny().submit(request).expect("found while it runs");
    assert!(matches!(stream.next(), Some(Err(Error::NoCandidate))));
    assert!(stream.next().is_none() && stream.completion().is_none() && stream.finish().is_err());
}

#[test]
fn generate_takes_prompts_and_requests() {
    let request = greedy("Once upon", 8);
    let expected = complete(base(), &request);
    assert_eq!(base().generate(&request).expect("text").tokens, expected.tokens);
    let mut conversation = base().conversation();
    assert_eq!(conversation.generate(&request).expect("text").tokens, expected.tokens);
    assert_eq!(base().generate(request).expect("text").tokens, expected.tokens);
    let engine = Engine::open_with(tiny_path(), &tiny_options()).expect("the model loads");
    assert!(engine.generate("a").is_ok() && engine.generate("a".to_owned()).is_ok());
    assert!(engine.generate(Prompt::Tokens(vec![1])).is_ok());
}

#[test]
fn a_break_with_the_last_token_counts_as_cancelled() {
    let stop = |_: &str| ControlFlow::Break(());
    let completion = base().generate_with(&greedy(STORY, 1), &CancelToken::new(), &mut { stop });
    assert_eq!(completion.expect("text").finish_reason, FinishReason::Cancelled);
}
