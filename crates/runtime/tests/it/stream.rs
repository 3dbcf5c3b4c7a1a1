//! `generate` and `stream`: same pieces and results as the callback.

use std::ops::ControlFlow;

use ruvllm::{
    CancelToken, Chunk, Completion, Engine, EngineOptions, Error, FinishReason, GenerateRequest, Message,
    PrefixCaching, Prompt, SamplingParams, TokenId,
};
use ruvllm_testkit::builtin_model;

use crate::common::{base, complete, greedy, load, run, tiny, tiny_options, tiny_path};

const STORY: &str = "Once upon a time, there was a little fox who lived near a green forest.";

/// Chunks and completion of a stream without errors.
fn chunks(engine: &Engine, request: &GenerateRequest) -> (Vec<Chunk>, Completion) {
    let mut stream = engine.stream(request).expect("a request that is taken");
    let chunks = stream.by_ref().collect::<Result<_, _>>().expect("no error");
    assert!(stream.next().is_none(), "an ended stream stays ended");
    let completion = stream.finish().expect("a completion");
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
    let mut stream = engine.stream(greedy(STORY.repeat(4), 200)).expect("a stream");
    let first = stream.next().expect("a chunk").expect("no error");
    assert!(!first.text.is_empty() && stream.completion().is_none());
    drop(stream);
    let (_, again) = chunks(&engine, &greedy(STORY.repeat(4), 2));
    assert!(again.cached_tokens > 0, "{again:?}");

    let options = tiny_options().with_prefixes(PrefixCaching::Off);
    let engine = Engine::open_with(tiny_path(), &options).expect("the model loads");
    let used = || engine.kv_store().tiers().map(|tier| tier.blocks).sum::<usize>();
    let before = used();
    let mut stream = engine.stream(Prompt::Tokens((1..80).collect())).expect("a stream");
    assert!(stream.next().is_some() && used() > before);
    drop(stream);
    assert_eq!(used(), before);
    drop(engine.stream("never asked"));
}

#[test]
fn finished_stream_has_what_it_gave() {
    let mut stream = base().stream(greedy("Another text", 200)).expect("a stream");
    let text = stream.next().expect("a chunk").expect("no error").text;
    let completion = stream.finish().expect("a completion");
    assert_eq!((completion.text, completion.finish_reason), (text, FinishReason::Cancelled));
}

#[test]
fn cancel_token_ends_a_stream() {
    let mut stream = base().stream(greedy(STORY, 200)).expect("a stream");
    stream.next().expect("a chunk").expect("no error");
    stream.cancel_token().cancel();
    let rest: Vec<Chunk> = stream.by_ref().collect::<Result<_, _>>().expect("no error");
    assert!(rest.len() <= 1, "only what was held back: {rest:?}");
    assert_eq!(stream.completion().map(|c| c.finish_reason), Some(FinishReason::Cancelled));

    let mut stream = base().stream(STORY).expect("a stream");
    stream.cancel_token().cancel();
    assert!(stream.next().is_none(), "cancelled before the prefill");
    assert_eq!(stream.finish().map(|c| c.tokens.len()), Some(0));
}

#[test]
fn errors_come_before_the_stream_or_as_its_last_item() {
    let stream = tiny().stream(Prompt::Tokens(vec![u32::MAX]));
    assert!(matches!(stream.err(), Some(Error::TokenOutOfRange { .. })));
    let all = (0..tiny().config().vocab_size as u32).map(|id| (id, f32::NEG_INFINITY)).collect();
    let request = GenerateRequest::new(Prompt::Tokens(vec![1]))
        .with_sampling(SamplingParams::greedy().with_logit_bias(all));
    let mut stream = tiny().stream(request).expect("found while it runs");
    assert!(matches!(stream.next(), Some(Err(Error::NoCandidate))));
    assert!(stream.next().is_none() && stream.completion().is_none() && stream.finish().is_none());
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
