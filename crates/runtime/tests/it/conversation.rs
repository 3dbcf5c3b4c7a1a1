//! Conversations: reused tokens, and answers equal to those of separate requests.

use std::ops::ControlFlow;
use std::path::PathBuf;

use ruvllm::{
    CancelToken, Completion, Conversation, Engine, Error, FinishReason, GenerateRequest, Message,
    PrefixCaching, Prompt,
};

use crate::common::{base, complete, greedy, load, tiny_options, tiny_path, tiny_source};

/// An engine without a prefix cache, so that only the conversation can reuse tokens.
fn forgetful(path: PathBuf) -> Engine {
    load(path, &tiny_options().with_prefixes(PrefixCaching::Off))
}

fn go_on(conversation: &mut Conversation<'_>, request: &GenerateRequest) -> Completion {
    conversation
        .generate_with(request, &CancelToken::new(), &mut |_| ControlFlow::Continue(()))
        .expect("the request succeeds")
}

/// Ids of the tiny model, another text for each seed.
fn ids(seed: u32, n: u32) -> Vec<u32> {
    (0..n).map(|i| (i * 53 + 7 + seed * 31 * (i + 1)) % 500).collect()
}

fn request(tokens: &[u32]) -> GenerateRequest {
    greedy(Prompt::Tokens(tokens.to_vec()), 6).with_ignore_eos(true)
}

#[test]
fn each_turn_computes_only_what_is_new_and_answers_like_a_request_of_its_own() {
    let engine = forgetful(tiny_path());
    let mut conversation = engine.conversation();
    let mut history = ids(1, 40);
    let mut known = 0;
    for turn in 0..5 {
        let completion = go_on(&mut conversation, &request(&history));
        let alone = complete(&engine, &request(&history));
        assert_eq!((alone.cached_tokens, completion.cached_tokens), (0, known), "turn {turn}");
        assert_eq!((&completion.tokens, &completion.text), (&alone.tokens, &alone.text), "turn {turn}");
        history.extend(completion.tokens);
        // The last token was sampled, without a forward pass.
        known = history.len() - 1;
        assert_eq!(conversation.len(), known);
        assert!(conversation.kv_bytes() > 0);
        history.extend(ids(10 + turn, 9));
    }
}

#[test]
fn the_messages_of_a_conversation_are_known_up_to_the_last_answer() {
    let mut conversation = base().conversation();
    let mut messages = vec![Message::system("Be brief.")];
    let mut cached = Vec::new();
    for question in ["What is the capital of France?", "Tell me about a cat.", "What did I ask first?"] {
        messages.push(Message::user(question));
        let prompt = Prompt::Chat { messages: messages.clone(), tools: None };
        let completion = go_on(&mut conversation, &greedy(prompt.clone(), 24));
        let alone = complete(base(), &greedy(prompt, 24));
        assert_eq!((&completion.text, &completion.tokens), (&alone.text, &alone.tokens));
        cached.push((completion.cached_tokens, completion.prompt_tokens));
        messages.push(Message::assistant(completion.text));
    }
    assert_eq!(cached[0].0, 0);
    for turns in cached.windows(2) {
        assert!(turns[1].0 > turns[0].1, "more than the prompt of the turn before is known: {cached:?}");
    }
}

#[test]
fn a_prompt_that_parts_from_the_sequence_goes_on_from_there() {
    let engine = forgetful(tiny_path());
    let mut conversation = engine.conversation();
    let first = ids(2, 60);
    go_on(&mut conversation, &request(&first));
    // 45 common tokens, then others; the same prompt again, whose last token is computed; one
    // without a common prefix.
    let second: Vec<u32> = first[..45].iter().copied().chain(ids(3, 30)).collect();
    let other = [vec![first[0] + 1], ids(4, 20)].concat();
    for (tokens, cached) in [(&second, 45), (&second, 74), (&other, 0), (&other, 20)] {
        let completion = go_on(&mut conversation, &request(tokens));
        assert_eq!(completion.cached_tokens, cached);
        assert_eq!(completion.tokens, complete(&engine, &request(tokens)).tokens);
    }
    conversation.clear();
    assert!(conversation.is_empty() && conversation.kv_bytes() == 0);
    assert_eq!(go_on(&mut conversation, &request(&other)).cached_tokens, 0);
}

#[test]
fn a_new_conversation_begins_with_what_others_have_computed() {
    let engine = load(tiny_path(), &tiny_options());
    let tokens = ids(5, 70);
    go_on(&mut engine.conversation(), &request(&tokens));
    assert_eq!(go_on(&mut engine.conversation(), &request(&tokens)).cached_tokens, 69);
}

#[test]
fn an_interrupted_answer_is_gone_on_from() {
    let engine = forgetful(tiny_path());
    let mut conversation = engine.conversation();
    let tokens = ids(6, 40);
    let mut pieces = 0;
    let endless = request(&tokens).with_max_tokens(None);
    let completion = conversation
        .generate_with(&endless, &CancelToken::new(), &mut |_| {
            pieces += 1;
            if pieces == 4 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .expect("what was generated until then");
    assert_eq!(completion.finish_reason, FinishReason::Cancelled);
    let history = [&tokens[..], &completion.tokens, &ids(7, 8)].concat();
    let next = go_on(&mut conversation, &request(&history));
    assert_eq!(next.cached_tokens, tokens.len() + completion.tokens.len() - 1);
    assert_eq!(next.tokens, complete(&engine, &request(&history)).tokens);

    // Cancelled before the prefill: an empty sequence to continue from.
    let cancelled = CancelToken::new();
    cancelled.cancel();
    let other = ids(8, 30);
    let none = conversation.generate_with(&request(&other), &cancelled, &mut |_| ControlFlow::Continue(()));
    assert_eq!(none.expect("nothing generated").tokens, Vec::<u32>::new());
    assert_eq!(go_on(&mut conversation, &request(&other)).cached_tokens, 0);
}

#[test]
fn a_refused_request_and_one_of_no_tokens_change_nothing() {
    let engine = forgetful(tiny_path());
    let mut conversation = engine.conversation();
    let mut history = ids(9, 40);
    history.extend(go_on(&mut conversation, &request(&history)).tokens);
    let known = conversation.len();
    let too_long = request(&ids(1, 5000));
    let refused =
        conversation.generate_with(&too_long, &CancelToken::new(), &mut |_| ControlFlow::Continue(()));
    assert!(matches!(refused, Err(Error::PromptTooLong { .. })), "{refused:?}");
    let none = request(&history).with_max_tokens(0);
    assert_eq!(go_on(&mut conversation, &none).finish_reason, FinishReason::Length);
    assert_eq!(conversation.len(), known);
    assert_eq!(go_on(&mut conversation, &request(&history)).cached_tokens, known);
}

#[test]
fn a_window_that_slid_is_gone_on_from_and_not_cut_back_into() {
    let source = tiny_source(|metadata| _ = metadata.insert("llama.attention.sliding_window", 48u32));
    let options = tiny_options().with_prefixes(PrefixCaching::Off);
    let engine = Engine::load(&source, &options, &mut |_| ()).expect("the model loads");
    let window = engine.config().longest_window().expect("the model has a window");
    let mut conversation = engine.conversation();
    let mut history = ids(3, 3 * window as u32 + 50);
    let completion = go_on(&mut conversation, &request(&history));
    history.extend(completion.tokens);
    let known = history.len() - 1;
    history.extend(ids(4, 5));
    let next = go_on(&mut conversation, &request(&history));
    assert_eq!(next.cached_tokens, known);
    assert_eq!(next.tokens, complete(&engine, &request(&history)).tokens);
    // The window has released blocks that are visible from earlier positions.
    history.truncate(history.len() - 4);
    let back = go_on(&mut conversation, &request(&history));
    assert_eq!(back.cached_tokens, 0);
    assert_eq!(back.tokens, complete(&engine, &request(&history)).tokens);
}
