//! The loop over answers that a script gives in place of a model.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Barrier};

use ruvllm_text::tool_call::ToolCallFormat;
use serde_json::json;

use super::*;
use crate::answer::OutputParser;
use crate::request::Timings;
use crate::tools::RequestTools;

/// Answers in turn; records prompts.
struct Script {
    answers: VecDeque<&'static str>,
    requests: Vec<GenerateRequest>,
}

impl Script {
    fn new(answers: impl IntoIterator<Item = &'static str>) -> Self {
        Self { answers: answers.into_iter().collect(), requests: Vec::new() }
    }

    /// Content of the last message of a request.
    fn last(&self, request: usize) -> &str {
        let Prompt::Chat { messages, .. } = &self.requests[request].prompt else { panic!("no chat") };
        messages.last().unwrap().content.as_ref().unwrap().as_str().unwrap()
    }
}

impl Generator for Script {
    fn generate_with(
        &mut self,
        request: &GenerateRequest,
        cancel: &CancelToken,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Completion> {
        let text = self.answers.pop_front().expect("an answer");
        self.requests.push(request.clone());
        let is_stopped = on_text(text).is_break() || cancel.is_cancelled();
        let mut completion = Completion {
            id: None,
            text: text.to_owned(),
            tokens: vec![0; 10],
            logprobs: Vec::new(),
            prompt_logprobs: Arc::default(),
            prompt_tokens: 1,
            prompt: vec![0],
            cached_tokens: 0,
            finish_reason: if is_stopped { FinishReason::Cancelled } else { FinishReason::Stop },
            stop_sequence: None,
            seed: 0,
            timings: Timings::default(),
            kv_quality: None,
            dropped_tokens: 0,
            adapters: Vec::new(),
            drafted_tokens: 0,
            accepted_tokens: 0,
            sequence: None,
            tool_calls: Vec::new(),
            reasoning_tokens: 0,
            parsed: None,
        };
        let calls = RequestTools::of_format(ToolCallFormat::Hermes).parser(&[self.requests.len() as u32]);
        completion.parse(&OutputParser { reasoning: None, calls: Some(calls) });
        Ok(completion)
    }
}

const ADD: &str = r#"<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>"#;
const TWO: &str = r#"<tool_call>{"name": "meet", "arguments": {"n": 1}}</tool_call>
<tool_call>{"name": "meet", "arguments": {"n": 2}}</tool_call>"#;

fn request() -> GenerateRequest {
    GenerateRequest::new(Prompt::chat([Message::user("Go.")]))
}

fn add() -> Tool {
    let schema =
        json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}});
    Tool::new("add", "Add two numbers", schema, |arguments: Value| {
        let number = |name: &str| arguments[name].as_i64().ok_or("no number");
        Ok::<_, &str>(number("a")? + number("b")?)
    })
}

fn run(tool: Tool, options: ToolLoopOptions, script: &mut Script) -> ToolLoopResult {
    ToolLoop::new([tool], options).unwrap().run(script, &request()).unwrap()
}

#[test]
fn results_are_fed_back_until_the_model_answers() {
    let mut script = Script::new([ADD, "It is 3."]);
    let first = request().with_tool_choice(ToolChoice::Required);
    let tools = ToolLoop::new([add()], ToolLoopOptions::default()).unwrap();
    let result = tools.run(&mut script, &first).unwrap();
    assert_eq!((result.end, result.rounds, result.calls, result.tokens), (ToolLoopEnd::Answer, 2, 1, 20));
    assert_eq!(result.completion.content(), "It is 3.");
    let messages = serde_json::to_value(&result.messages).unwrap();
    let id = &messages[1]["tool_calls"][0]["id"];
    assert_eq!(
        messages,
        json!([
            {"role": "user", "content": "Go."},
            {"role": "assistant", "content": "", "tool_calls": [
                {"id": id, "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}]},
            {"role": "tool", "content": "3", "tool_call_id": id, "name": "add"},
            {"role": "assistant", "content": "It is 3."},
        ])
    );
    let choices: Vec<_> = script.requests.iter().map(|request| request.tool_choice.clone()).collect();
    assert_eq!(choices, [ToolChoice::Required, ToolChoice::Auto]);
}

#[test]
fn failures_are_told_to_the_model() {
    let fails = || Tool::without_parameters("add", "", |_| Err::<String, _>("no power"));
    let panics =
        || Tool::without_parameters("add", "", |_| -> Result<String, String> { panic!("out of cheese") });
    let hangs = || {
        Tool::without_parameters("add", "", |_| -> Result<String, String> {
            std::thread::sleep(Duration::from_secs(5));
            Ok(String::new())
        })
    };
    let other = || Tool::without_parameters("other", "", |_| Ok::<_, String>("x"));
    for (tool, expected, limit_ms) in [
        (fails(), "no power", 20_000),
        (panics(), "panicked: out of cheese", 20_000),
        (hangs(), "not returned within", 50),
        (other(), "there is no tool add; known: other", 20_000),
    ] {
        let options = ToolLoopOptions::default().with_call_timeout(Duration::from_millis(limit_ms));
        let mut script = Script::new([ADD, "Sorry."]);
        let result = run(tool, options, &mut script);
        assert_eq!(result.end, ToolLoopEnd::Answer);
        let told: Value = serde_json::from_str(script.last(1)).unwrap();
        assert!(told["error"].as_str().unwrap().contains(expected), "{told}");
    }
}

#[test]
fn threads_that_hang_are_limited() {
    let hangs = Tool::without_parameters("add", "", |_| -> Result<String, String> {
        std::thread::sleep(Duration::from_secs(30));
        Ok(String::new())
    });
    let options = ToolLoopOptions::default().with_call_timeout(Duration::from_millis(1)).with_max_rounds(30);
    let mut script = Script::new([ADD; 17].into_iter().chain(["Sorry."]));
    run(hangs, options, &mut script);
    assert!(script.last(16).contains("not returned within") && script.last(17).contains("16 earlier calls"));
}

#[test]
fn limits_end_the_loop() {
    let options = ToolLoopOptions::default;
    for (options, end, rounds, calls) in [
        (options().with_max_rounds(2), ToolLoopEnd::Rounds, 2, 1),
        (options().with_max_rounds(0), ToolLoopEnd::Rounds, 1, 0),
        (options().with_max_tokens(15), ToolLoopEnd::Tokens, 2, 1),
        (options().with_timeout(Duration::ZERO), ToolLoopEnd::Timeout, 1, 0),
    ] {
        let result = run(add(), options.clone(), &mut Script::new([ADD; 3]));
        assert_eq!((result.end, result.rounds, result.calls), (end, rounds, calls), "{options:?}");
    }
    let slow = Tool::without_parameters("add", "", |_| {
        std::thread::sleep(Duration::from_millis(300));
        Ok::<_, String>("late")
    });
    let result = run(slow, options().with_timeout(Duration::from_millis(60)), &mut Script::new([ADD]));
    assert_eq!((result.end, result.calls), (ToolLoopEnd::Timeout, 1));
}

#[test]
fn token_limits_of_loop_and_request_hold_together() {
    let mut script = Script::new([ADD, "3"]);
    let tools = ToolLoop::new([add()], ToolLoopOptions::default().with_max_tokens(25)).unwrap();
    tools.run(&mut script, &request().with_max_tokens(20)).unwrap();
    let limits: Vec<_> = script.requests.iter().map(|request| request.max_tokens).collect();
    assert_eq!(limits, [Some(20), Some(15)]);
}

#[test]
fn cancellation_ends_a_call() {
    let cancel = CancelToken::new();
    let hangs = Tool::without_parameters("add", "", {
        let cancel = cancel.clone();
        move |_| -> Result<String, String> {
            cancel.cancel();
            std::thread::sleep(Duration::from_secs(30));
            Ok(String::new())
        }
    });
    let tools = ToolLoop::new([hangs], ToolLoopOptions::default()).unwrap();
    let mut go_on = |_: ToolLoopEvent<'_>| ControlFlow::Continue(());
    let result = tools.run_with(&mut Script::new([ADD]), &request(), &cancel, &mut go_on).unwrap();
    assert_eq!((result.end, result.messages.len()), (ToolLoopEnd::Cancelled, 3));
    let mut stop = |event: ToolLoopEvent<'_>| match event {
        ToolLoopEvent::Call(_) => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    };
    let tools = ToolLoop::new([add()], ToolLoopOptions::default()).unwrap();
    let result = tools.run_with(&mut Script::new([ADD]), &request(), &CancelToken::new(), &mut stop).unwrap();
    assert_eq!((result.end, result.calls), (ToolLoopEnd::Cancelled, 0));
}

#[test]
fn parallel_calls_run_at_the_same_time() {
    let barrier = Arc::new(Barrier::new(2));
    let meet = Tool::without_parameters("meet", "", move |arguments: Value| {
        barrier.wait();
        Ok::<_, String>(arguments["n"].clone())
    });
    let mut script = Script::new([TWO, "Met."]);
    let result = run(meet, ToolLoopOptions::default(), &mut script);
    assert_eq!((result.calls, script.last(1)), (2, "2"));

    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(0)));
    let count = Tool::without_parameters("meet", "", {
        let most = Arc::clone(&most);
        move |_| {
            let running = now.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1;
            let mut most = most.lock().unwrap();
            *most = (*most).max(running);
            drop(most);
            std::thread::sleep(Duration::from_millis(20));
            now.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
            Ok::<_, String>("")
        }
    });
    run(count, ToolLoopOptions::default().with_parallel(false), &mut Script::new([TWO, "Done."]));
    assert_eq!(*most.lock().unwrap(), 1);
}

#[test]
fn long_results_are_cut() {
    let long = Tool::without_parameters("add", "", |_| Ok::<_, String>("é".repeat(100)));
    let mut script = Script::new([ADD, "Long."]);
    run(long, ToolLoopOptions::default().with_max_result_bytes(5), &mut script);
    assert_eq!(script.last(1), "éé [cut: 200 bytes in all]");
}

#[test]
fn names_are_checked() {
    let tool = |name: &str| Tool::without_parameters(name, "", |_| Ok::<_, String>(""));
    for tools in [vec![tool("")], vec![tool("a"), tool("a")], vec![tool("a b")]] {
        assert!(matches!(ToolLoop::new(tools, ToolLoopOptions::default()), Err(Error::Tools(_))));
    }
    let text = GenerateRequest::new("no chat");
    let tools = ToolLoop::new([tool("a")], ToolLoopOptions::default()).unwrap();
    assert!(matches!(tools.run(&mut Script::new([]), &text), Err(Error::Tools(ToolError::NoTools))));
}
