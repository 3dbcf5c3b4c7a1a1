//! Tool calls of real models: choice, constraint, deltas, errors, the loop.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ruvllm::serde_json::{Value, json};
use ruvllm::{
    AnswerEvent, Completion, Constraint, Error, FinishReason, GenerateRequest, Message, Prompt,
    SamplingParams, Tool, ToolCallEvent, ToolCallFormat, ToolChoice, ToolError, ToolLoop, ToolLoopEnd,
    ToolLoopOptions,
};

use crate::common::{base, complete, greedy, tiny_with};

fn tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "get_weather", "description": "Get the weather in a city",
            "parameters": {"type": "object", "properties": {
                "city": {"type": "string", "description": "Name of the city"},
                "unit": {"enum": ["celsius", "fahrenheit"]}}, "required": ["city"]}}},
        {"type": "function", "function": {"name": "set_timer", "description": "Start a timer",
            "parameters": {"type": "object", "properties": {"minutes": {"type": "integer", "minimum": 1}},
                "required": ["minutes"]}}},
        {"type": "function", "function": {"name": "get_time", "description": "Get the time"}},
    ])
}

fn ask(question: &str) -> GenerateRequest {
    greedy(Prompt::chat_with_tools([Message::user(question)], tools()), 200)
}

/// Fault of a request, with its causes.
fn fault(request: &GenerateRequest) -> String {
    let mut error: &dyn std::error::Error = &base().generate(request).unwrap_err();
    let mut text = error.to_string();
    while let Some(source) = error.source() {
        (text, error) = (format!("{text}: {source}"), source);
    }
    text
}

fn names(completion: &Completion) -> Vec<&str> {
    completion.tool_calls.iter().map(|call| call.name.as_str()).collect()
}

#[test]
fn the_model_decides_between_text_and_calls() {
    let call = complete(base(), &ask("What is the weather in Rome?"));
    assert_eq!((names(&call), call.finish_reason), (vec!["get_weather"], FinishReason::ToolCalls));
    assert_eq!(call.tool_calls[0].arguments_value()["city"], "Rome");
    assert!(call.content().is_empty() && call.text.contains("<tool_call>"));
    let text = complete(base(), &ask("What is the largest planet?"));
    assert!(text.tool_calls.is_empty() && text.content() == text.text && !text.text.is_empty());
    assert_eq!(text.finish_reason, FinishReason::Stop);
}

#[test]
fn choices_force_and_forbid_calls() {
    let question = "What is the largest planet?";
    let forced = complete(base(), &ask(question).with_tool_choice(ToolChoice::Required));
    assert_eq!(forced.finish_reason, FinishReason::ToolCalls);
    let named = ToolChoice::Named("set_timer".to_owned());
    let named = complete(base(), &ask("What is the weather in Rome?").with_tool_choice(named));
    assert_eq!(names(&named)[0], "set_timer");
    assert!(named.tool_calls[0].arguments_value()["minutes"].as_i64().unwrap() >= 1);
    let none = complete(base(), &ask("What is the weather in Rome?").with_tool_choice(ToolChoice::None));
    let plain = greedy(Prompt::chat([Message::user("What is the weather in Rome?")]), 200);
    assert_eq!(none.text, complete(base(), &plain).text);
}

#[test]
fn calls_fit_their_schemas_at_any_temperature() {
    let list = tools();
    let validators: Vec<_> = list
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| {
            let function = &tool["function"];
            let empty = json!({"type": "object", "additionalProperties": false});
            let schema = function.get("parameters").unwrap_or(&empty);
            (function["name"].as_str().unwrap(), jsonschema::validator_for(schema).unwrap())
        })
        .collect();
    let mut finished = 0;
    for seed in 0..12 {
        for choice in [ToolChoice::Auto, ToolChoice::Required] {
            for parallel in [false, true] {
                let request = ask("What can you do?")
                    .with_sampling(SamplingParams::greedy().with_temperature(1.6))
                    .with_seed(seed)
                    .with_tool_choice(choice.clone())
                    .with_parallel_tool_calls(parallel);
                let completion = complete(base(), &request);
                if completion.finish_reason == FinishReason::Length {
                    continue;
                }
                finished += 1;
                assert!(completion.invalid_tool_calls().is_empty(), "{}", completion.text);
                let count = completion.tool_calls.len();
                assert!(count <= 1 || parallel, "{}", completion.text);
                assert!(count > 0 || choice == ToolChoice::Auto, "{}", completion.text);
                for call in &completion.tool_calls {
                    let (_, validator) =
                        validators.iter().find(|(name, _)| *name == call.name).expect("a known name");
                    assert!(validator.is_valid(&Value::Object(call.arguments_value())), "{}", call.arguments);
                }
            }
        }
    }
    assert!(finished > 20, "{finished} of 48 were finished");
}

#[test]
fn deltas_of_the_handle_are_the_calls() {
    let mut handle = base().submit(ask("What is the weather in Rome?")).unwrap();
    let mut parser = handle.answer_parser().expect("there are tools");
    let mut events = Vec::new();
    for chunk in &mut handle {
        parser.push(&chunk.unwrap().text, &mut events);
    }
    parser.finish(&mut events);
    let call = &handle.completion().unwrap().tool_calls[0];
    let begin = ToolCallEvent::Begin { index: 0, id: call.id.clone(), name: call.name.clone() };
    let arguments = ToolCallEvent::Arguments { index: 0, delta: call.arguments.clone() };
    let expected = [begin, arguments, ToolCallEvent::End { index: 0 }].map(AnswerEvent::ToolCall);
    assert_eq!(events, expected);
    let again = complete(base(), &ask("What is the weather in Rome?"));
    assert_eq!(again.tool_calls[0].id, call.id);
    let other = complete(base(), &ask("What is the weather in Paris?"));
    assert_ne!(other.tool_calls[0].id, call.id);
    let text = base().submit(greedy("Once", 2)).unwrap();
    assert!(text.answer_parser().is_none());
}

#[test]
fn a_call_that_is_cut_is_reported() {
    let whole = complete(base(), &ask("What is the weather in Rome?"));
    let cut = complete(base(), &ask("What is the weather in Rome?").with_max_tokens(whole.tokens.len() - 4));
    assert_eq!((cut.finish_reason, cut.tool_calls.len()), (FinishReason::Length, 0));
    assert_eq!(cut.invalid_tool_calls()[0].0, "get_weather");
}

#[test]
fn unconstrained_calls_are_found_too() {
    let request = ask("What is the weather in Rome?").with_constrain_tools(false);
    assert_eq!(names(&complete(base(), &request)), ["get_weather"]);
}

#[test]
fn faults_name_the_tool() {
    let with = |tools: Value| greedy(Prompt::chat_with_tools([Message::user("Hi")], tools), 4);
    let named = ToolChoice::Named("fly".to_owned());
    let not = json!({"type": "object", "properties": {"a": {"not": {}}}});
    let values: Vec<usize> = (0..200_000).collect();
    let bomb = json!({"type": "object", "properties": {"a": {"enum": values}}});
    let mut deep = json!({"type": "string"});
    (0..70).for_each(|_| deep = json!({"type": "array", "items": deep}));
    let deep = json!({"type": "object", "properties": {"a": deep}});
    let both = ask("Hi").with_constraint(Constraint::json());
    for (request, pieces) in [
        (with(json!([{"name": "a"}, {"description": "x"}])), ["tool 2 has no name", ""]),
        (with(json!([{"name": "a"}, {"name": "a"}])), ["two tools with the name `a`", ""]),
        (with(json!({"name": "a"})), ["not an object", ""]),
        (with(json!([{"name": "a", "parameters": not}])), ["tool `a`", "keyword `not` at #/properties/a"]),
        (with(json!([{"name": "a", "parameters": bomb}])), ["tool `a`", "at most 200000"]),
        (with(json!([{"name": "a", "parameters": deep}])), ["tool `a`", "nested"]),
        (ask("Hi").with_tool_choice(named), ["no tool `fly`", "get_weather, set_timer, get_time"]),
        (greedy("Hi", 4).with_tool_choice(ToolChoice::Required), ["required", "has no tools"]),
        (both, ["exclude each other", ""]),
    ] {
        let started = Instant::now();
        let text = fault(&request);
        assert!(pieces.iter().all(|piece| text.contains(piece)), "{text}");
        assert!(started.elapsed() < Duration::from_secs(60), "{text}");
    }
}

#[test]
fn templates_without_calls_need_a_format() {
    let engine = tiny_with(|metadata| {
        let template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}".to_owned();
        metadata.insert("tokenizer.chat_template", template);
    });
    let request = ask("Hi").with_max_tokens(2);
    let error = engine.generate(&request).unwrap_err();
    assert!(matches!(error, Error::Tools(ToolError::UnknownFormat { .. })), "{error:?}");
    assert!(engine.generate(request.clone().with_tool_choice(ToolChoice::None)).is_ok());
    assert!(engine.generate(request.with_tool_format(ToolCallFormat::Hermes)).is_ok());
}

#[test]
fn the_loop_answers_with_results() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let schema = tools()[0]["function"]["parameters"].clone();
    let weather = Tool::new("get_weather", "Get the weather in a city", schema, {
        let asked = Arc::clone(&asked);
        move |arguments: Value| {
            asked.lock().unwrap().push(arguments["city"].clone());
            Ok::<_, String>(json!({"temperature_c": 21, "condition": "sunny"}))
        }
    });
    let tools = ToolLoop::new([weather], ToolLoopOptions::default().with_max_rounds(3)).unwrap();
    let request = greedy(Prompt::chat([Message::user("What is the weather in Rome?")]), 100);
    let mut conversation = base().conversation();
    let result = tools.run(&mut conversation, &request).unwrap();
    assert_eq!(*asked.lock().unwrap(), [json!("Rome")]);
    assert_eq!((result.end, result.rounds, result.calls), (ToolLoopEnd::Answer, 2, 1));
    let roles: Vec<&str> = result.messages.iter().map(|message| message.role.as_str()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant"]);
    assert!(!result.completion.content().is_empty());
    // The second round computes only what is new.
    assert!(result.completion.cached_tokens > result.completion.prompt_tokens / 2);
    let alone = tools.run(&mut base(), &request).unwrap();
    assert_eq!(alone.completion.text, result.completion.text);
}
