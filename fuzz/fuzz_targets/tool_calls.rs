//! Parses any text as the output of a model with tools, in any division into pieces: the result is
//! the same, and the arguments of every call are a JSON object.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use ruvllm_text::tool_call::{ArgumentTypes, ParsedOutput, ToolCallFormat, ToolCallParser};

fuzz_target!(|input: (u8, &str, &[u8])| {
    let (format, text, cuts) = input;
    let format = ToolCallFormat::ALL[usize::from(format) % ToolCallFormat::ALL.len()];
    let mut types = ArgumentTypes::default();
    types.add("f", &serde_json::json!({"properties": {"s": {"type": "string"}, "n": {"type": "array"}}}));
    let types = Arc::new(types);
    let start = || ToolCallParser::new(format).with_argument_types(Arc::clone(&types));
    let whole = start().parse(text);
    let mut parser = start();
    let (mut output, mut events, mut at) = (ParsedOutput::default(), Vec::new(), 0);
    for &cut in cuts {
        let end = text.floor_char_boundary(at + usize::from(cut));
        parser.push(&text[at..end], &mut events);
        at = end;
        events.drain(..).for_each(|event| output.push(event));
    }
    parser.push(&text[at..], &mut events);
    parser.finish(&mut events);
    events.drain(..).for_each(|event| output.push(event));
    assert_eq!(output, whole, "{text:?}");
    for call in &output.calls {
        let arguments: serde_json::Value = serde_json::from_str(&call.arguments).expect("arguments are JSON");
        assert!(arguments.is_object() && !call.name.is_empty(), "{call:?}");
    }
});
