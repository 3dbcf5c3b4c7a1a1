//! Formats of real templates, parsed outputs, and independence of the division into pieces.

use proptest::prelude::*;

use std::sync::Arc;

use super::{ArgumentTypes, ParsedOutput, ToolCallEvent, ToolCallFormat, ToolCallParser};
use crate::chat::ChatStyle;

use ToolCallFormat::{FunctionTag, Glm, Harmony, Hermes, Llama, Mistral, MistralArgs, QwenXml};

fn parse(format: ToolCallFormat, text: &str) -> ParsedOutput {
    ToolCallParser::new(format).parse(text)
}

/// Content, and names with arguments.
fn summary(format: ToolCallFormat, text: &str) -> (String, Vec<(String, String)>) {
    let output = parse(format, text);
    assert!(output.invalid.is_empty(), "{text:?}: {:?}", output.invalid);
    (output.content, output.calls.into_iter().map(|call| (call.name, call.arguments)).collect())
}

#[track_caller]
fn check(format: ToolCallFormat, text: &str, content: &str, calls: &[(&str, &str)]) {
    let calls: Vec<_> = calls.iter().map(|&(name, args)| (name.to_owned(), args.to_owned())).collect();
    assert_eq!(summary(format, text), (content.to_owned(), calls), "{text:?}");
}

/// Text of a published template.
fn template(name: &str) -> String {
    let path = format!("{}/tests/data/chat/templates/{name}.jinja", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn formats_of_templates() {
    for (style, format) in [
        (ChatStyle::ChatMl, Some(Hermes)),
        (ChatStyle::Gemma, None),
        (ChatStyle::Llama2, None),
        (ChatStyle::Llama3, Some(Llama)),
        (ChatStyle::Mistral, Some(Mistral)),
        (ChatStyle::Phi3, None),
    ] {
        assert_eq!(ToolCallFormat::of_template(style.source()), format, "built-in {style}");
        assert_eq!(ToolCallFormat::of_template(&template(style.name())), format, "template {style}");
    }
    assert_eq!(ToolCallFormat::of_template(&template("thinking/gpt_oss")), Some(Harmony));
    for (source, format) in [
        ("{{ '[TOOL_CALLS]' + call.name + '[ARGS]' }}", Some(MistralArgs)),
        ("{{ '<function=' + call.name + '>' + arguments + '</function>' }}", Some(FunctionTag)),
        (r#"{{ "<|python_tag|>{\"name\": \"x\", \"parameters\": " }}"#, Some(Llama)),
        ("{{ '<tool_call>\n<function=f>\n<parameter=x>' }}", Some(QwenXml)),
        ("{{ '<tool_call>f\n<arg_key>' }}", Some(Glm)),
        ("{{ '<|start|>assistant to=functions.' + name + '<|channel|>commentary<|call|>' }}", Some(Harmony)),
        ("{{ '<parameter=x>' }}", None),
        ("{{ '<|im_start|>' }}", None),
        ("", None),
    ] {
        assert_eq!(ToolCallFormat::of_template(source), format, "{source}");
    }
    for format in ToolCallFormat::ALL {
        assert_eq!(format.name().parse(), Ok(format));
    }
    assert!("x".parse::<ToolCallFormat>().unwrap_err().to_string().contains("hermes, llama"));
}

#[test]
fn calls_of_each_format() {
    let f = ("f", r#"{"a": 1}"#);
    check(Hermes, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>", "", &[f]);
    let two = r#"Two. <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>
        <tool_call>{"arguments": {"b": "}\"{"}, "name": "g"}</tool_call> End."#;
    check(Hermes, two, "Two. End.", &[f, ("g", r#"{"b": "}\"{"}"#)]);
    check(Llama, r#"{"name": "f", "parameters": {"a": 1}}"#, "", &[f]);
    check(
        Llama,
        "\n<|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {\"a\": 1}}",
        "",
        &[f],
    );
    check(Llama, r#"{"name": "f", "parameters": {"a": 1}}; {"name": "g"}"#, "", &[f, ("g", "{}")]);
    check(
        Mistral,
        r#"[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}, "id": "x"}, {"name": "g", "arguments": {}}]"#,
        "",
        &[f, ("g", "{}")],
    );
    check(
        MistralArgs,
        r#"Ok[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]12[ARGS]{}"#,
        "Ok",
        &[f, ("g", "{}")],
    );
    let header = "to=functions.f <|constrain|>json<|message|>";
    check(Harmony, &format!("I look. {header}{{\"a\": 1}}<|call|>"), "I look.", &[f]);
    check(Harmony, " to=functions.f<|channel|>commentary json<|message|>{\"a\": 1}", "", &[f]);
    check(Harmony, "to=functions.f<|message|>{\"a\": 1}", "", &[f]);
    let text = "Write to=functions.f and go on.";
    check(Harmony, text, text, &[]);
    check(FunctionTag, "<function=f>{\"a\": 1}</function>\n<function=g>{}</function>", "", &[f, ("g", "{}")]);
}

/// Types of a tool `f` with parameters of each kind.
fn types() -> Arc<ArgumentTypes> {
    let mut types = ArgumentTypes::default();
    let schema = serde_json::json!({"properties": {
        "text": {"type": "string"}, "n": {"type": "integer"}, "list": {"type": "array"},
        "either": {"type": ["string", "null"]},
    }});
    types.add("f", &schema);
    Arc::new(types)
}

/// Calls of a text, with the types of `f`.
fn typed(format: ToolCallFormat, text: &str) -> ParsedOutput {
    ToolCallParser::new(format).with_argument_types(types()).parse(text)
}

#[test]
fn arguments_between_tags_have_the_types_of_their_schema() {
    let qwen = "I look.\n\n<tool_call>\n<function=f>\n<parameter=text>\n42\n</parameter>\n<parameter=n>\n42\n\
                </parameter>\n<parameter=list>\n[1, \"</x>\"]\n</parameter>\n<parameter=either>\nnull\n</parameter>\n\
                <parameter=unknown>\ntrue\n</parameter>\n</function>\n</tool_call>";
    let tag = qwen.replace("</x>", "</parameter>");
    assert_eq!(typed(QwenXml, &tag).calls[0].arguments_value()["list"][1], "</parameter>");
    let lines = "I look.\n<tool_call>f\n<arg_key>text</arg_key>\n<arg_value>42</arg_value>\n<arg_key>n</arg_key>\n\
                 <arg_value>42</arg_value>\n<arg_key>list</arg_key>\n<arg_value>[1, \"</x>\"]</arg_value>\n\
                 <arg_key>either</arg_key>\n<arg_value>null</arg_value>\n<arg_key>unknown</arg_key>\n\
                 <arg_value>true</arg_value>\n</tool_call>";
    let compact = lines.replace("f\n<", "f<").replace(">\n<", "><");
    let expected = r#"{"text": "42", "n": 42, "list": [1, "</x>"], "either": null, "unknown": true}"#;
    for (format, text) in [(QwenXml, qwen), (Glm, lines), (Glm, &compact)] {
        let output = typed(format, text);
        assert_eq!((output.content.as_str(), output.invalid.len()), ("I look.", 0), "{text}");
        assert_eq!((output.calls[0].name.as_str(), output.calls[0].arguments.as_str()), ("f", expected));
    }
    // Without types.
    assert!(parse(QwenXml, qwen).calls[0].arguments.starts_with(r#"{"text": 42,"#));
}

#[test]
fn texts_between_tags_keep_their_lines() {
    for (written, expected) in [
        ("\na\nb\n", "a\nb"),
        ("a", "a"),
        ("\n\n a\n\n", "\n a\n"),
        ("\n\n", ""),
        ("\n", ""),
        ("", ""),
        ("\n\"quoted\" \\ <b> </parameter \n", "\"quoted\" \\ <b> </parameter "),
    ] {
        let text = format!(
            "<tool_call>\n<function=f>\n<parameter=text>{written}</parameter>\n</function>\n</tool_call>"
        );
        let output = typed(QwenXml, &text);
        assert_eq!(output.calls[0].arguments_value()["text"], expected, "{written:?}");
    }
    let glm = typed(Glm, "<tool_call>f<arg_key>text</arg_key><arg_value>\na\n</arg_value></tool_call>");
    assert_eq!(glm.calls[0].arguments_value()["text"], "\na\n");
}

#[test]
fn calls_with_elements_may_have_none_and_follow_one_another() {
    let two = "<tool_call>\n<function=f>\n</function>\n</tool_call>\n<tool_call><function=g></function></tool_call> End.";
    check(QwenXml, two, " End.", &[("f", "{}"), ("g", "{}")]);
    check(
        Glm,
        "<tool_call>f</tool_call>\n<tool_call>g\n</tool_call> End.",
        " End.",
        &[("f", "{}"), ("g", "{}")],
    );
    for (format, text) in [
        (QwenXml, "<tool_call>\n<function=f>\ntext"),
        (QwenXml, "<tool_call>\n<parameter=a>"),
        (QwenXml, "<tool_call>\n<function=>\n</function>"),
        (QwenXml, "<tool_call>{\"name\": \"f\"}</tool_call>"),
        (Glm, "<tool_call>hello\nworld</tool_call>"),
        (Glm, "<tool_call>hello world</tool_call>"),
        (Glm, "<tool_call></tool_call>"),
    ] {
        check(format, text, text, &[]);
    }
    for (format, text, arguments) in [
        (QwenXml, "<tool_call><function=f><parameter=text>\nab", "{\"text\": \"ab"),
        (QwenXml, "<tool_call><function=f><parameter=n>1</parameter>x</function></tool_call>", "{\"n\": 1"),
        (Glm, "<tool_call>f<arg_key>n</arg_key>1</tool_call>", "{\"n\": "),
    ] {
        let output = typed(format, text);
        assert_eq!(output.invalid, [("f".to_owned(), arguments.to_owned())], "{text}");
        assert!(output.content.is_empty() && output.calls.is_empty(), "{text}: {output:?}");
    }
}

#[test]
fn texts_between_tags_are_streamed() {
    let mut parser = ToolCallParser::new(QwenXml).with_argument_types(types());
    let mut events = Vec::new();
    parser.push("<tool_call>\n<function=f>\n<parameter=text>\nfirst li", &mut events);
    assert!(matches!(&events[0], ToolCallEvent::Begin { index: 0, name, .. } if name == "f"));
    assert!(matches!(&events[1], ToolCallEvent::Arguments { delta, .. } if delta == "{\"text\": \"first li"));
    events.clear();
    parser.push("ne\n</param", &mut events);
    assert!(matches!(&events[..], [ToolCallEvent::Arguments { delta, .. }] if delta == "ne"), "{events:?}");
}

#[test]
fn arguments_are_an_object() {
    for (arguments, expected) in [
        ("null", Some("{}")),
        (r#""{\"a\": 1}""#, Some(r#"{"a": 1}"#)),
        ("{}", Some("{}")),
        ("[]", None),
        ("3", None),
        (r#""no object""#, None),
        (r#""\"{}\"""#, None),
    ] {
        let text = format!("<tool_call>{{\"name\": \"f\", \"arguments\": {arguments}}}</tool_call>");
        match expected {
            Some(expected) => check(Hermes, &text, "", &[("f", expected)]),
            None => check(Hermes, &text, &text, &[]),
        }
    }
    check(Hermes, "<tool_call>{\"name\": \"f\"}</tool_call>", "", &[("f", "{}")]);
}

#[test]
fn text_that_is_no_call_is_content() {
    for text in [
        "",
        " \n",
        "plain",
        "<tool_call",
        "<tool_call>",
        "<tool_call>\nhello</tool_call>",
        "<tool_call>{\"name\": 3}</tool_call>",
        "<tool_call>{\"name\": \"\"}</tool_call>",
        "<tool_call>{\"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"name\": \"g\"}</tool_call>",
        "<tool_call>{\"na",
        "a <b> [c] {\"name\": \"f\", \"arguments\": {}}",
        "[TOOL_CALLS]",
        "[TOOL_CALLS] [",
        "[TOOL_CALLS] [3]",
        "<function=>{}",
        "<function=f",
        "<function=a b>{}",
    ] {
        for format in [Hermes, Mistral, MistralArgs, FunctionTag] {
            check(format, text, text, &[]);
        }
    }
    check(Llama, "The object {\"name\": \"f\"}", "The object {\"name\": \"f\"}", &[]);
    check(Llama, "{\"answer\": 42}", "{\"answer\": 42}", &[]);
    check(Hermes, "<tool_call><tool_call>{\"name\": \"f\"}</tool_call>", "<tool_call>", &[("f", "{}")]);
}

#[test]
fn calls_that_break_off_are_reported() {
    for (format, text, name, arguments) in [
        (Hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": ", "f", "{\"a\": "),
        (Hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {a: 1}}</tool_call>", "f", "{a: 1"),
        (Llama, "{\"name\": \"f\", \"parameters\": {\"a\"", "f", "{\"a\""),
        (MistralArgs, "[TOOL_CALLS]f[ARGS]{\"a\":", "f", "{\"a\":"),
        (FunctionTag, "<function=f>{\"a\" 1}</function>", "f", "{\"a\" 1}"),
    ] {
        let output = parse(format, text);
        assert_eq!(output.invalid, [(name.to_owned(), arguments.to_owned())], "{text}");
        assert!(output.content.is_empty() && output.calls.is_empty(), "{text}: {output:?}");
    }
    // The rest of a broken call is dropped up to its end.
    let text = "<tool_call>{\"name\": \"f\", \"arguments\": {a}, 3}</tool_call> and \
                <tool_call>{\"name\": \"g\"}</tool_call>";
    let output = parse(Hermes, text);
    assert_eq!((output.content.as_str(), output.calls.len(), output.invalid.len()), (" and", 1, 1));
}

#[test]
fn a_missing_last_brace_is_forgiven() {
    check(Hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {}</tool_call> x", " x", &[("f", "{}")]);
    check(Hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {}", "", &[("f", "{}")]);
    check(Llama, "{\"name\": \"f\", \"parameters\": {}", "", &[("f", "{}")]);
}

#[test]
fn deep_nesting_is_a_fault() {
    let text = format!("<tool_call>{{\"name\": \"f\", \"arguments\": {{\"a\": {}", "[".repeat(100_000));
    assert_eq!(parse(Hermes, &text).invalid.len(), 1);
}

#[test]
fn identifiers_depend_on_seed_and_number() {
    let text = "<tool_call>{\"name\": \"f\"}</tool_call>".repeat(2);
    let ids = |seed| -> Vec<String> {
        let parser = ToolCallParser::new(Hermes).with_id_seed(seed);
        parser.parse(&text).calls.into_iter().map(|call| call.id).collect()
    };
    assert_eq!(ids(1), ids(1));
    assert!(ids(1)[0] != ids(1)[1] && ids(1)[0] != ids(2)[0], "{:?}", ids(1));
    let mistral = parse(Mistral, "[TOOL_CALLS][{\"name\": \"f\"}]");
    assert_eq!(mistral.calls[0].id.len(), 9);
    assert!(mistral.calls[0].id.chars().all(|c| c.is_ascii_alphanumeric()));
}

#[test]
fn arguments_arrive_as_they_are_written() {
    let mut parser = ToolCallParser::new(Hermes);
    let mut events = Vec::new();
    parser.push("Hi\n<tool_call>\n{\"name\": \"f\", \"argu", &mut events);
    assert_eq!(events, [ToolCallEvent::Content("Hi".to_owned())]);
    events.clear();
    parser.push("ments\": {\"a\": [1, ", &mut events);
    assert!(matches!(&events[0], ToolCallEvent::Begin { index: 0, name, .. } if name == "f"));
    assert!(matches!(&events[1], ToolCallEvent::Arguments { delta, .. } if delta == "{\"a\": [1, "));
}

/// Text of fragments that calls consist of, in any order.
fn fragments() -> impl Strategy<Value = String> {
    let fragment = prop::sample::select(vec![
        "<tool_call>",
        "</tool_call>",
        "<function=",
        "f>",
        "</function>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "<|python_tag|>",
        "{\"name\": \"f\", \"arguments\": ",
        "{\"name\": \"f\", \"parameters\": {\"a\": 1}}",
        "{}",
        "}",
        "{",
        "[",
        "]",
        ",",
        ";",
        "\"",
        "\\\"",
        " ",
        "\n",
        "name",
        "é",
        "𝄞",
        "{\"a\": \"x\"}",
        "null",
        "1",
        "</",
        "<",
        "f\n",
        "<function=f>",
        "<parameter=text>",
        "<parameter=n>",
        "</parameter>",
        "<arg_key>text</arg_key>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "to=functions.f",
        " <|constrain|>json",
        "<|message|>",
        "<|call|>",
    ]);
    prop::collection::vec(fragment, 0..24).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn any_division_into_pieces_gives_the_same(
        format in prop::sample::select(ToolCallFormat::ALL.to_vec()),
        text in fragments(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..16),
    ) {
        let whole = typed(format, &text);
        let mut borders: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        borders.push(text.len());
        let mut chosen: Vec<usize> = cuts.iter().map(|cut| borders[cut.index(borders.len())]).collect();
        chosen.extend([0, text.len()]);
        chosen.sort_unstable();
        let mut parser = ToolCallParser::new(format).with_argument_types(types());
        let mut output = ParsedOutput::default();
        let mut events = Vec::new();
        for pair in chosen.windows(2) {
            parser.push(&text[pair[0]..pair[1]], &mut events);
            events.drain(..).for_each(|event| output.push(event));
        }
        parser.finish(&mut events);
        events.drain(..).for_each(|event| output.push(event));
        prop_assert_eq!(&output, &whole);
        for call in &output.calls {
            let arguments = serde_json::from_str::<serde_json::Value>(&call.arguments);
            prop_assert!(arguments.is_ok_and(|value| value.is_object()), "{}", call.arguments);
            prop_assert!(!call.name.is_empty());
        }
    }

    #[test]
    fn arguments_come_back(
        format in prop::sample::select(ToolCallFormat::ALL.to_vec()),
        values in prop::collection::vec(any::<String>(), 1..4),
    ) {
        let arguments = serde_json::json!({"values": values}).to_string();
        let list = serde_json::json!(values).to_string();
        let text = match format {
            Hermes => format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {arguments}}}\n</tool_call>"),
            Llama => format!("{{\"name\": \"f\", \"parameters\": {arguments}}}"),
            Mistral => format!("[TOOL_CALLS][{{\"name\": \"f\", \"arguments\": {arguments}}}]"),
            MistralArgs => format!("[TOOL_CALLS]f[ARGS]{arguments}"),
            FunctionTag => format!("<function=f>{arguments}</function>"),
            QwenXml => format!(
                "<tool_call>\n<function=f>\n<parameter=values>\n{list}\n</parameter>\n</function>\n</tool_call>"
            ),
            Harmony => format!("to=functions.f <|constrain|>json<|message|>{arguments}"),
            Glm => format!("<tool_call>f<arg_key>values</arg_key><arg_value>{list}</arg_value></tool_call>"),
        };
        // Tags in the text of an argument end it.
        prop_assume!(!format.has_elements() || !list.contains("</"));
        let output = parse(format, &text);
        prop_assert_eq!(output.content, "");
        let found: serde_json::Value = serde_json::from_str(&output.calls[0].arguments).unwrap();
        prop_assert_eq!(found, serde_json::from_str::<serde_json::Value>(&arguments).unwrap());
    }
}
