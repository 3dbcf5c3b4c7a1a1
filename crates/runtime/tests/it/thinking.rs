//! Thinking: apart from the answer, within its budget, free of the answer's constraint. A scripted
//! backend says what a reasoning model would say, whatever the engine forces in between.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use gguf_rs_lite::{Array, Value};
use ruvllm::crates::text::tokenizer::EncodeOptions;
use ruvllm::serde_json::json;
use ruvllm::{
    AnswerEvent, BackendSession, CancelToken, Completion, Constraint, Engine, Error, FinishReason,
    GenerateRequest, InferenceBackend, Message, ModelConfig, Prompt, ReasoningFormat, Result, TextCodec,
    TokenId, ToolChoice, ToolError,
};

use crate::common::{complete, greedy, tiny, tiny_with};

/// Template of a model that opens its thinking itself, unless it is switched off, and that shows
/// thinking of earlier answers with a switch.
const THINKS: &str = "{% for m in messages %}[{{ m.role }}]{% if shows and m.reasoning_content %}<think>\
    {{ m.reasoning_content }}</think>{% endif %}{{ m.content }}\n{% endfor %}[assistant]\
    {% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}\
    {# calls are <tool_call> #}";
/// Template whose generation prompt opens the thinking, whatever the switches say.
const OPENED: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content.split('</think>')[-1] }}\n{% endfor %}\
    [assistant]<think>\n";
/// Template of channels.
const CHANNELS: &str = "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}\
    <|start|>assistant{# <|channel|>analysis #}";

/// An engine with these texts in unused places of its vocabulary and this template.
fn engine(template: &str, markers: &[&str]) -> Engine {
    tiny_with(|metadata| {
        metadata.insert("tokenizer.chat_template", template.to_owned());
        let mut texts = metadata.get_strings("tokenizer.ggml.tokens").unwrap().unwrap().to_vec();
        let mut kinds = metadata.get_i32s("tokenizer.ggml.token_type").unwrap().unwrap().to_vec();
        let free: Vec<usize> = (0..texts.len()).filter(|&id| texts[id].starts_with("[PAD")).collect();
        for (&id, marker) in free.iter().zip(markers) {
            (texts[id], kinds[id]) = ((*marker).to_owned(), 3);
        }
        metadata.insert("tokenizer.ggml.tokens", Value::Array(Array::String(texts)));
        metadata.insert("tokenizer.ggml.token_type", Value::Array(Array::I32(kinds)));
    })
}

fn tags() -> Engine {
    engine(THINKS, &["<think>", "</think>"])
}

fn channels() -> Engine {
    engine(CHANNELS, &MARKERS)
}

const MARKERS: [&str; 7] =
    ["<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|return|>", "<|call|>", "<|constrain|>"];

/// An engine whose template of channels knows calls.
fn channels_with_calls() -> Engine {
    engine(&format!("{CHANNELS}{{# to=functions. <|call|> #}}"), &MARKERS)
}

/// Backend that thinks one text and, behind the end of the thinking, says another.
struct Thinker {
    engine: Engine,
    prompt_tokens: usize,
    /// With the tokens that end it.
    thinking: Vec<TokenId>,
    closing: Vec<TokenId>,
    answer: Vec<TokenId>,
}

impl Thinker {
    fn new(engine: Engine, format: ReasoningFormat, thinking: &str, answer: &str) -> Self {
        Self::with_closing(engine, format.forced_close(), thinking, answer)
    }

    fn with_closing(engine: Engine, closing: &str, thinking: &str, answer: &str) -> Self {
        let tokenizer = engine.tokenizer();
        let options = EncodeOptions { add_special: false, parse_special: true };
        let encode = |text: &str| tokenizer.encode(text, options).unwrap();
        let closing = encode(closing);
        let thinking = [encode(thinking), closing.clone()].concat();
        let answer = [encode(answer), tokenizer.end_of_generation()[..1].to_vec()].concat();
        let prompt_tokens = engine.encode_prompt(&chat()).unwrap().len();
        Self { engine, prompt_tokens, thinking, closing, answer }
    }

    fn next(&self, tokens: &[TokenId]) -> TokenId {
        let said = &tokens[self.prompt_tokens.min(tokens.len())..];
        let is_closed = said.windows(self.closing.len()).position(|window| window == self.closing);
        let (script, at) = match is_closed {
            Some(at) => (&self.answer, said.len() - at - self.closing.len()),
            None => (&self.thinking, said.len()),
        };
        script[at.min(script.len() - 1)]
    }

    fn run(&self, request: &GenerateRequest) -> Completion {
        self.generate_with(request, &CancelToken::new(), &mut |_| ControlFlow::Continue(())).unwrap()
    }
}

impl InferenceBackend for Thinker {
    fn name(&self) -> &str {
        "thinker"
    }

    fn config(&self) -> &ModelConfig {
        self.engine.config()
    }

    fn codec(&self) -> &TextCodec {
        InferenceBackend::codec(&self.engine)
    }

    fn context_length(&self) -> usize {
        512
    }

    fn session(&self, _: usize) -> Result<Box<dyn BackendSession + '_>> {
        let logits = vec![0.0; self.config().vocab_size];
        Ok(Box::new(Thoughts { thinker: self, tokens: Vec::new(), logits }))
    }
}

struct Thoughts<'t> {
    thinker: &'t Thinker,
    tokens: Vec<TokenId>,
    logits: Vec<f32>,
}

impl BackendSession for Thoughts<'_> {
    fn len(&self) -> usize {
        self.tokens.len()
    }

    fn forward(&mut self, tokens: &[TokenId]) -> Result<&[f32]> {
        self.tokens.extend_from_slice(tokens);
        self.logits.fill(0.0);
        self.logits[self.thinker.next(&self.tokens) as usize] = 9.0;
        Ok(&self.logits)
    }

    fn truncate(&mut self, len: usize) -> Result<usize> {
        self.tokens.truncate(len);
        Ok(self.tokens.len())
    }
}

fn chat() -> Prompt {
    Prompt::chat([Message::user("hi")])
}

fn ask() -> GenerateRequest {
    greedy(chat(), 200)
}

const THINK: ReasoningFormat = ReasoningFormat::THINK;
const HARMONY: ReasoningFormat = ReasoningFormat::HARMONY;

#[test]
fn thinking_is_told_apart_and_counted() {
    let thinker = Thinker::new(tags(), THINK, "<think>\none two\n", "\n\nthree");
    let completion = thinker.run(&ask());
    assert_eq!(completion.text, "<think>\none two\n</think>\n\nthree");
    assert_eq!((completion.reasoning(), completion.content()), (Some("one two"), "three"));
    assert_eq!((completion.finish_reason, completion.is_thinking()), (FinishReason::Stop, false));
    // All of the script but the two markers.
    assert_eq!(completion.reasoning_tokens, thinker.thinking.len() - 2);
    let message = completion.message();
    assert_eq!(
        (message.content, &message.extra["reasoning_content"]),
        (Some("three".into()), &json!("one two"))
    );

    let cut = thinker.run(&ask().with_max_tokens(4));
    assert_eq!((cut.finish_reason, cut.is_thinking(), cut.content()), (FinishReason::Length, true, ""));
    assert_eq!(cut.reasoning_tokens, 3);
    // A prompt that is no conversation has no format, unless the request names one.
    let plain = ask().with_prompt(Prompt::Tokens(thinker.engine.encode_prompt(&chat()).unwrap()));
    let text = thinker.run(&plain);
    assert_eq!((text.reasoning(), text.content(), text.reasoning_tokens), (None, text.text.as_str(), 0));
    let named = thinker.run(&plain.with_reasoning_format(THINK));
    assert_eq!((named.reasoning(), named.content()), (Some("one two"), "three"));
}

#[test]
fn a_used_up_budget_forces_the_answer() {
    let long = format!("<think>{}", " again".repeat(40));
    let thinker = Thinker::new(tags(), THINK, &long, "yes");
    for budget in [1, 2, 7] {
        let completion = thinker.run(&ask().with_thinking_budget(budget));
        assert_eq!(completion.reasoning_tokens, budget);
        assert_eq!((completion.content(), completion.finish_reason), ("yes", FinishReason::Stop));
        assert!(completion.text.ends_with("</think>yes"), "{}", completion.text);
        // With log-probabilities forced tokens are computed one by one.
        let scored = thinker.run(&ask().with_thinking_budget(budget).with_logprobs(0));
        assert_eq!((scored.tokens.len(), &scored.tokens), (scored.logprobs.len(), &completion.tokens));
    }
    let unlimited = thinker.run(&ask());
    let generous = thinker.run(&ask().with_thinking_budget(150));
    assert_eq!(generous.tokens, unlimited.tokens, "a budget that is not used up changes nothing");
    // The model opens its thinking against the switch.
    let none = thinker.run(&ask().with_thinking_budget(0));
    assert_eq!((none.reasoning(), none.reasoning_tokens), (None, 0));
}

#[test]
fn a_marker_that_comes_late_is_no_part_of_the_answer() {
    // The model ends its own thinking once more behind the forced end.
    let thinker = Thinker::new(tags(), THINK, &format!("<think>{}", " again".repeat(40)), " so</think> yes");
    let completion = thinker.run(&ask().with_thinking_budget(3));
    assert!(!completion.content().contains("</think>"), "{}", completion.content());
    assert!(completion.content().starts_with("so"), "{}", completion.content());
}

#[test]
fn a_budget_of_nothing_turns_thinking_off() {
    let engine = tags();
    let off = |request: GenerateRequest| complete(&engine, &request.with_max_tokens(1)).prompt;
    let switched =
        ask().with_template_variables(json!({"enable_thinking": false}).as_object().unwrap().clone());
    assert_eq!(off(ask().with_thinking_budget(0)), off(switched));
    assert_ne!(off(ask().with_thinking_budget(0)), off(ask()));
    let kept = json!({"enable_thinking": true}).as_object().unwrap().clone();
    assert_eq!(off(ask().with_thinking_budget(0).with_template_variables(kept)), off(ask()));

    // A template without a switch: the prompt closes what it has opened.
    let engine = engine_opened();
    let thinker = Thinker::new(engine_opened(), THINK, "one", "two");
    assert_eq!(thinker.run(&ask()).reasoning(), Some("one"));
    let closed = thinker.run(&ask().with_thinking_budget(0));
    assert_eq!((closed.reasoning(), closed.content(), closed.reasoning_tokens), (None, "two", 0));
    let close = engine.tokenizer().token_to_id("</think>").unwrap();
    assert_eq!(closed.prompt.last(), Some(&close));
}

fn engine_opened() -> Engine {
    engine(OPENED, &["<think>", "</think>"])
}

#[test]
fn constraints_hold_for_the_answer_alone() {
    let choices = || Constraint::choices(["yes", "no"]).unwrap();
    for (make, opening) in [(tags as fn() -> Engine, "<think>"), (engine_opened, "")] {
        let thinker = Thinker::new(make(), THINK, &format!("{opening}maybe 1"), "no");
        for request in [ask(), ask().with_thinking_budget(2), ask().with_logprobs(1)] {
            let completion = thinker.run(&request.with_constraint(choices()));
            assert_eq!((completion.content(), completion.finish_reason), ("no", FinishReason::Stop));
            assert!("maybe 1".starts_with(completion.reasoning().unwrap()), "{}", completion.text);
        }
        // Without thinking the first token is the answer's.
        let closed = thinker.run(&ask().with_constraint(choices()).with_thinking_budget(0));
        assert!(["yes", "no"].contains(&closed.content()), "{}", closed.text);
    }
    // A model that does not think begins with the answer.
    let thinker = Thinker::new(tags(), THINK, "no", "");
    let direct = thinker.run(&ask().with_constraint(choices()));
    assert_eq!((direct.text.as_str(), direct.reasoning()), ("no", None));
    // Nothing ends the output before the answer.
    let mut silent = Thinker::new(tags(), THINK, "<think>well", "yes");
    let end = silent.engine.tokenizer().end_of_generation()[0];
    silent.thinking.truncate(2);
    silent.thinking.push(end);
    let request = ask().with_constraint(choices()).with_thinking_budget(9);
    assert_eq!(silent.run(&request).content(), "yes");
    let free = silent.run(&ask());
    assert_eq!((free.finish_reason, free.is_thinking()), (FinishReason::Stop, true));
}

#[test]
fn markers_that_are_no_tokens_leave_the_constraint_no_room_for_thinking() {
    let choices = Constraint::choices(["yes", "no"]).unwrap();
    for template in [THINKS, OPENED] {
        let thinker = Thinker::new(engine(template, &[]), THINK, "<think>so", "yes");
        let completion = thinker.run(&ask().with_constraint(choices.clone()));
        assert!(["yes", "no"].contains(&completion.content()), "{}", completion.text);
        assert_eq!(completion.reasoning(), None);
    }
    // Without a constraint their text tells the thinking apart all the same.
    let thinker = Thinker::new(engine(THINKS, &[]), THINK, "<think>so", "yes");
    let completion = thinker.run(&ask());
    assert_eq!((completion.reasoning(), completion.content()), (Some("so"), "yes"));
    let short = thinker.run(&ask().with_thinking_budget(1));
    assert_eq!(short.content(), "yes");
}

#[test]
fn channels_are_thinking_and_answer() {
    let thinker = Thinker::new(channels(), HARMONY, "<|channel|>analysis<|message|>so it is", "yes");
    let completion = thinker.run(&ask());
    assert_eq!((completion.reasoning(), completion.content()), (Some("so it is"), "yes"));
    assert_eq!(completion.finish_reason, FinishReason::Stop);
    let short = thinker.run(&ask().with_thinking_budget(2));
    assert_eq!((short.reasoning_tokens, short.content()), (2, "yes"));
    let constraint = Constraint::choices(["yes", "no"]).unwrap();
    let constrained = thinker.run(&ask().with_constraint(constraint.clone()).with_thinking_budget(3));
    assert_eq!((constrained.content(), constrained.finish_reason), ("yes", FinishReason::Stop));
    // A model that forgets its header gets one.
    let forgetful = Thinker::new(channels(), HARMONY, "so it is", "no");
    let completion = forgetful.run(&ask().with_constraint(constraint));
    assert!(completion.text.starts_with("<|channel|>"), "{}", completion.text);
}

/// A conversation with one tool.
fn ask_with_tool() -> GenerateRequest {
    let tools = json!([{"type": "function", "function": {"name": "now", "parameters":
        {"type": "object", "properties": {"zone": {"enum": ["UTC"]}}, "required": ["zone"]}}}]);
    greedy(Prompt::chat_with_tools([Message::user("hi")], tools), 300)
}

/// The end of a message and the role of the next one.
const NEXT: &str = "<|end|><|start|>assistant";

#[test]
fn calls_in_channels_follow_thinking() {
    const ARGUMENTS: &str = r#"{"zone": "UTC"}"#;
    for (header, word) in [
        ("<|channel|>commentary to=functions.now <|constrain|>json<|message|>", ""),
        (" to=functions.now<|channel|>commentary json<|message|>", ""),
        ("<|channel|>commentary to=functions.now<|message|>", "I look at the clock."),
    ] {
        let preamble = format!("<|channel|>commentary<|message|>{word}{NEXT}");
        let preamble = if word.is_empty() { "" } else { &preamble };
        let thinking = "<|channel|>analysis<|message|>a to=functions.now b";
        let answer = format!("{preamble}{header}{ARGUMENTS}");
        let thinker = Thinker::with_closing(channels_with_calls(), NEXT, thinking, &answer);
        for request in [
            ask_with_tool(),
            ask_with_tool().with_tool_choice(ToolChoice::Required),
            ask_with_tool().with_constrain_tools(false),
            ask_with_tool().with_thinking_budget(3).with_tool_choice(ToolChoice::Required),
            ask_with_tool().with_logprobs(0),
        ] {
            let completion = thinker.run(&request);
            assert_eq!(completion.finish_reason, FinishReason::ToolCalls, "{}", completion.text);
            let [call] = completion.tool_calls.as_slice() else { panic!("{}", completion.text) };
            assert_eq!((call.name.as_str(), call.arguments.as_str()), ("now", ARGUMENTS));
            assert_eq!(completion.content(), word);
            assert!("a to=functions.now b".starts_with(completion.reasoning().unwrap()));
        }
    }
}

#[test]
fn the_grammar_of_channels_holds_from_the_first_token() {
    // A model that would answer has to call.
    let stubborn = Thinker::with_closing(
        channels_with_calls(),
        NEXT,
        "<|channel|>analysis<|message|>no",
        "<|channel|>final<|message|>No.",
    );
    let completion = stubborn.run(&ask_with_tool().with_tool_choice(ToolChoice::Required));
    assert_eq!(completion.tool_calls[0].arguments_value()["zone"], "UTC", "{}", completion.text);
    // Left to itself it answers.
    let completion = stubborn.run(&ask_with_tool());
    assert_eq!((completion.reasoning(), completion.content()), (Some("no"), "No."));
    assert_eq!((completion.finish_reason, completion.tool_calls.len()), (FinishReason::Stop, 0));
    // Names and arguments are those of the tool.
    let wrong = "<|channel|>commentary to=functions.never<|message|>{\"zone\": \"CET\"}";
    let inventive =
        Thinker::with_closing(channels_with_calls(), NEXT, "<|channel|>analysis<|message|>so", wrong);
    let completion = inventive.run(&ask_with_tool().with_tool_choice(ToolChoice::Required));
    let call = &completion.tool_calls[0];
    assert_eq!((call.name.as_str(), call.arguments_value()["zone"].as_str()), ("now", Some("UTC")));
}

#[test]
fn a_prompt_within_a_message_leaves_calls_in_channels_no_place() {
    let template = format!("{CHANNELS}<|channel|>analysis<|message|>{{# to=functions. <|call|> #}}");
    let error = engine(&template, &MARKERS).generate(ask_with_tool()).unwrap_err();
    assert!(matches!(&error, Error::Tools(ToolError::OpenMessage)), "{error:?}");
}

#[test]
fn calls_follow_thinking() {
    let call = "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"zone\": \"UTC\"}}\n</tool_call>";
    let thinker = Thinker::new(tags(), THINK, &format!("<think>a {call} b"), call);
    for choice in [ToolChoice::Auto, ToolChoice::Required] {
        let completion = thinker.run(&ask_with_tool().with_tool_choice(choice));
        assert_eq!(completion.finish_reason, FinishReason::ToolCalls, "{}", completion.text);
        assert_eq!(completion.tool_calls.len(), 1);
        assert!(completion.reasoning().unwrap().contains("<tool_call>"));
        assert_eq!(completion.tool_calls[0].arguments_value()["zone"], "UTC");
        assert_eq!(completion.message().extra["reasoning_content"], completion.reasoning().unwrap());
    }
}

#[test]
fn deltas_of_the_handle_are_the_parts() {
    let engine = engine_opened();
    let mut handle = engine.submit(ask().with_thinking_budget(3).with_max_tokens(8)).unwrap();
    let mut parser = handle.answer_parser().expect("the model thinks");
    let mut events = Vec::new();
    for chunk in &mut handle {
        parser.push(&chunk.unwrap().text, &mut events);
    }
    parser.finish(&mut events);
    let mut parts: BTreeMap<bool, String> = BTreeMap::new();
    for event in events {
        match event {
            AnswerEvent::Reasoning(text) => parts.entry(true).or_default().push_str(&text),
            AnswerEvent::Content(text) => parts.entry(false).or_default().push_str(&text),
            event => panic!("{event:?}"),
        }
    }
    let completion = handle.completion().unwrap();
    assert_eq!(completion.reasoning_tokens, 3);
    assert_eq!(completion.reasoning(), parts.get(&true).map(String::as_str));
    assert_eq!(completion.content(), parts.get(&false).map_or("", String::as_str));
    assert!(tiny().submit(ask().with_max_tokens(1)).unwrap().answer_parser().is_none());
}
