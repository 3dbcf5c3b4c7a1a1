//! Grammar of an answer with tool calls: names are those of tools, arguments fit their schemas.

use std::fmt::Write as _;

use ruvllm_text::TokenId;
use ruvllm_text::tokenizer::Tokenizer;
use ruvllm_text::tool_call::ToolCallFormat;
use serde_json::{Value, json};

use super::elements::Tags;
use super::error::ConstraintError;
use super::gbnf::lark_string;
use super::messages;
use super::schema;
use super::source::Constraint;

/// White space at the beginning of an answer in Llama's format.
const SPACE: &str = r"[ \t\r\n]";

/// A tool as far as the grammar knows it.
pub(crate) struct CallTarget<'t> {
    pub(crate) name: &'t str,
    /// Schema of its arguments; `None` for a function without any.
    pub(crate) parameters: Option<&'t Value>,
}

/// Language of an answer.
pub(crate) struct CallGrammar<'t> {
    pub(crate) format: ToolCallFormat,
    /// Tools that may be called, at least one.
    pub(crate) targets: Vec<CallTarget<'t>>,
    /// True if the answer consists of calls; otherwise text is allowed in place of and before them.
    pub(crate) requires_call: bool,
    /// True if an answer may have several calls.
    pub(crate) parallel: bool,
}

impl CallGrammar<'_> {
    /// The constraint for a vocabulary, of which the first `ids` tokens are sampled.
    ///
    /// # Errors
    /// The index of a tool, and the fault of its schema; no index if the grammar is too large.
    pub(crate) fn constraint(
        &self,
        tokenizer: &Tokenizer,
        ids: usize,
    ) -> Result<Constraint, (Option<usize>, ConstraintError)> {
        let mut writer = Writer { grammar: self, tokenizer, ids, out: String::new() };
        writer.start();
        let tags = Tags::of(self.format, &|tag| writer.marker(tag));
        writer.out.push_str(&tags.as_ref().map(Tags::shared).unwrap_or_default());
        for (index, target) in self.targets.iter().enumerate() {
            let fault = |error| (Some(index), error);
            let schema = arguments(target.parameters).map_err(fault)?;
            match &tags {
                Some(tags) => {
                    let rules = tags.tool(index, target.name, target.parameters).map_err(fault)?;
                    writer.out.push_str(&rules);
                }
                None => writer.target(index, target.name, &schema),
            }
        }
        Constraint::tools(writer.out).map_err(|error| (None, error))
    }
}

/// The rewritten schema of a tool's arguments: an object, closed where its author names properties
/// and says nothing about others, since models invent some.
fn arguments(parameters: Option<&Value>) -> Result<String, ConstraintError> {
    let Some(parameters) = parameters else {
        return schema::normalize(&json!({"type": "object", "additionalProperties": false}));
    };
    let mut parameters = parameters.clone();
    if let Some(object) = parameters.as_object_mut() {
        let decides = [
            "additionalProperties",
            "unevaluatedProperties",
            "patternProperties",
            "allOf",
            "anyOf",
            "oneOf",
            "$ref",
        ];
        object.entry("type").or_insert_with(|| json!("object"));
        if object.contains_key("properties") && !decides.iter().any(|keyword| object.contains_key(*keyword)) {
            object.insert("additionalProperties".to_owned(), json!(false));
        }
    }
    schema::normalize(&parameters)
}

/// Writes the grammar in Lark.
struct Writer<'g> {
    grammar: &'g CallGrammar<'g>,
    tokenizer: &'g Tokenizer,
    ids: usize,
    out: String,
}

impl Writer<'_> {
    /// Id of a marker that is a special token.
    fn special(&self, marker: &str) -> Option<TokenId> {
        let id = self.tokenizer.token_to_id(marker)?;
        ((id as usize) < self.ids && self.tokenizer.is_special(id)).then_some(id)
    }

    /// A marker: its special token, or its text.
    fn marker(&self, marker: &str) -> String {
        self.special(marker).map_or_else(|| lark_string(marker), |id| format!("<[{id}]>"))
    }

    /// Special tokens that text may have, as a list of ranges: all but those that end generation or
    /// begin a call. `None` if there are none.
    fn text_specials(&self) -> Option<String> {
        let opening = self.special(self.grammar.format.opening());
        let is_text = |id: &TokenId| {
            self.tokenizer.is_special(*id)
                && !self.tokenizer.is_end_of_generation(*id)
                && Some(*id) != opening
        };
        let mut ranges: Vec<(TokenId, TokenId)> = Vec::new();
        for id in (0..self.ids as TokenId).filter(is_text) {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == id => *last = id,
                _ => ranges.push((id, id)),
            }
        }
        let texts: Vec<String> = ranges.iter().map(|(first, last)| format!("{first}-{last}")).collect();
        (!texts.is_empty()).then(|| format!("<[{}]>", texts.join(",")))
    }

    /// The rules down to those of the single tools.
    fn start(&mut self) {
        let format = self.grammar.format;
        if format.has_messages() {
            let rules = messages::rules(&|text| self.marker(text), self.grammar.requires_call);
            let _ = write!(self.out, "{rules}{}", self.tools());
            return;
        }
        let calls = self.calls();
        if self.grammar.requires_call {
            let _ = write!(self.out, "start: {calls}\n{}", self.rules());
            return;
        }
        // Text ends where a call begins, so that the parser of the answer sees the same calls: it
        // can neither contain the opening nor, split into several tokens, become it.
        let opening = regex_escape(format.opening());
        let specials = self.text_specials();
        let with_specials = |text: &str| match &specials {
            Some(specials) => format!("({text}? {specials})*"),
            None => "\"\"".to_owned(),
        };
        let before = with_specials("TEXT");
        let _ = writeln!(self.out, "TEXT: /(?s:.+)/ & ~/(?s:.*){opening}(?s:.*)/");
        let start = match (format, self.special(format.opening())) {
            (ToolCallFormat::Llama, _) => {
                let _ = writeln!(
                    self.out,
                    "FIRST: /(?s:.+)/ & ~/(?s:.*){opening}(?s:.*)/ & ~/{SPACE}*\\{{(?s:.*)/"
                );
                let tag = self.marker(format.opening());
                let rest = specials.map_or(String::new(), |specials| format!(" ({specials} TEXT?)*"));
                format!("FIRST?{rest} | {tag}? {calls}")
            }
            (_, Some(_)) => format!("{before} TEXT? | {before} TEXT? {calls}"),
            (_, None) => {
                // A lazy terminal ends with the first opening.
                let _ = writeln!(self.out, "until[lazy]: /(?s:.*){opening}/");
                format!("{before} TEXT? | {before} until {}", self.calls_after_opening())
            }
        };
        let _ = write!(self.out, "start: {start}\n{}", self.rules());
    }

    /// One call or several.
    fn calls(&self) -> String {
        let many = self.grammar.parallel && self.grammar.format.has_parallel_calls();
        match (self.grammar.format, many) {
            (ToolCallFormat::Mistral, _) => {
                format!("{} array", self.marker(self.grammar.format.opening()))
            }
            (_, false) => "call".to_owned(),
            (ToolCallFormat::MistralArgs, true) => "call+".to_owned(),
            (_, true) => "call (\"\\n\" call)*".to_owned(),
        }
    }

    /// The same where the opening of the first call was written already.
    fn calls_after_opening(&self) -> &'static str {
        let many = self.grammar.parallel && self.grammar.format.has_parallel_calls();
        match (self.grammar.format, many) {
            (ToolCallFormat::Mistral, _) => "array",
            (_, false) => "opened",
            (ToolCallFormat::MistralArgs, true) => "opened call*",
            (_, true) => "opened (\"\\n\" call)*",
        }
    }

    /// Rules `call`, `opened`, `array` and `tool`, as far as they are used.
    fn rules(&self) -> String {
        let format = self.grammar.format;
        let opening = self.marker(format.opening());
        let call = match format {
            ToolCallFormat::Llama => "call: tool\n".to_owned(),
            ToolCallFormat::Mistral if self.grammar.parallel => {
                "array: \" \"? \"[\" tool (\", \" tool)* \"]\"\n".to_owned()
            }
            ToolCallFormat::Mistral => "array: \" \"? \"[\" tool \"]\"\n".to_owned(),
            ToolCallFormat::MistralArgs => format!("call: {opening} opened\nopened: tool\n"),
            _ => {
                let closing = self.marker(format.closing());
                format!("call: {opening} opened\nopened: tool {closing}\n")
            }
        };
        call + &self.tools()
    }

    /// Rule `tool`.
    fn tools(&self) -> String {
        let tools: Vec<String> =
            (0..self.grammar.targets.len()).map(|index| format!("tool_{index}")).collect();
        format!("tool: {}\n", tools.join(" | "))
    }

    /// The rule of one tool: its name and its arguments.
    fn target(&mut self, index: usize, name: &str, schema: &str) {
        let quoted = Value::String(name.to_owned());
        let (before, after) = match self.grammar.format {
            ToolCallFormat::Hermes => {
                (lark_string(&format!("\n{{\"name\": {quoted}, \"arguments\": ")), "\"}\\n\"")
            }
            ToolCallFormat::Mistral => {
                (lark_string(&format!("{{\"name\": {quoted}, \"arguments\": ")), "\"}\"")
            }
            ToolCallFormat::MistralArgs => (format!("{} {}", lark_string(name), self.marker("[ARGS]")), ""),
            ToolCallFormat::FunctionTag => (lark_string(&format!("{name}>")), ""),
            ToolCallFormat::Harmony => (format!("{} header", lark_string(name)), ""),
            _ => (lark_string(&format!("{{\"name\": {quoted}, \"parameters\": ")), "\"}\""),
        };
        let _ = writeln!(self.out, "tool_{index}: {before} args_{index} {after}");
        let _ = writeln!(self.out, "args_{index}: %json {schema}");
    }
}

/// A text as a part of a regular expression between slashes.
fn regex_escape(text: &str) -> String {
    let escape = |c: char| r"\.+*?()|[]{}^$#&-~/".contains(c).then_some('\\');
    text.chars().flat_map(|c| escape(c).into_iter().chain([c])).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ruvllm_text::tokenizer::EncodeOptions;

    use super::*;
    use crate::constraint::ConstraintCompiler;
    use crate::constraint::tests::{matches, tokenizer};

    fn weather() -> Value {
        json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})
    }

    fn constraint(format: ToolCallFormat, requires_call: bool, parallel: bool) -> Constraint {
        constraint_for(&tokenizer(), format, requires_call, parallel)
    }

    fn constraint_for(
        tokenizer: &Tokenizer,
        format: ToolCallFormat,
        requires_call: bool,
        parallel: bool,
    ) -> Constraint {
        let weather = weather();
        let targets = vec![
            CallTarget { name: "get", parameters: None },
            CallTarget { name: "get_weather", parameters: Some(&weather) },
        ];
        let grammar = CallGrammar { format, targets, requires_call, parallel };
        grammar.constraint(tokenizer, tokenizer.vocab_size()).map_err(|(_, error)| error).unwrap()
    }

    /// A tokenizer of single characters, with markers of tool calls as special tokens.
    fn characters() -> Arc<Tokenizer> {
        let text = |byte: u8| match byte {
            b' ' => "\u{120}".to_owned(),
            b'\n' => "\u{10a}".to_owned(),
            byte => char::from(byte).to_string(),
        };
        let bytes = (b'!'..=b'~').chain(*b" \n");
        let vocab: serde_json::Map<_, _> = bytes.zip(0..).map(|(byte, id)| (text(byte), json!(id))).collect();
        let specials = ["<tool_call>", "</tool_call>", "<think>", "</think>", "<|im_end|>"];
        let added: Vec<Value> = (vocab.len()..)
            .zip(specials)
            .map(|(id, content)| {
                json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                       "normalized": false, "special": true})
            })
            .collect();
        let byte_level =
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
        let definition = json!({
            "version": "1.0", "added_tokens": added, "pre_tokenizer": byte_level, "decoder": byte_level,
            "model": {"type": "BPE", "vocab": vocab, "merges": []},
        });
        Arc::new(Tokenizer::from_json(definition.to_string().as_bytes()).unwrap())
    }

    /// True if the constraint accepts exactly these tokens.
    fn accepts(compiler: &ConstraintCompiler, constraint: &Constraint, tokens: &[TokenId]) -> bool {
        let mut state = compiler.start(constraint).unwrap();
        if state.accepted_prefix(tokens).unwrap() < tokens.len() {
            return false;
        }
        tokens.iter().for_each(|&token| state.accept(token).unwrap());
        state.is_complete().unwrap()
    }

    const HERMES: [&str; 2] = [
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"get\", \"arguments\": {}}\n</tool_call>",
    ];

    /// Checks Hermes calls in a vocabulary; returns true if their markers are special tokens.
    fn check_hermes(tokenizer: &Arc<Tokenizer>) -> bool {
        let compiler = ConstraintCompiler::new(Arc::clone(tokenizer), tokenizer.vocab_size()).unwrap();
        let encode = |text: &str, parse_special| {
            tokenizer.encode(text, EncodeOptions { add_special: false, parse_special }).unwrap()
        };
        let is_special = tokenizer.token_to_id("<tool_call>").is_some_and(|id| tokenizer.is_special(id));
        let [weather, get] = HERMES;
        let two = format!("{weather}\n{get}");
        let text = format!("Let me look. {get}");
        for (requires_call, parallel) in [(false, false), (false, true), (true, false), (true, true)] {
            let constraint = constraint_for(tokenizer, ToolCallFormat::Hermes, requires_call, parallel);
            let accepted = |text: &str| accepts(&compiler, &constraint, &encode(text, true));
            assert!(accepted(weather) && accepted(get));
            assert_eq!(accepted(&two), parallel);
            for free in ["Hello!", "", "a <b> <tool_", "<think>So.</think>\n\nYes", &text] {
                assert_eq!(accepted(free), !requires_call, "{free:?}");
            }
            for wrong in [
                "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>",
                "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {}}\n</tool_call>",
                "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"a\": 1}}\n</tool_call>",
                "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\", \"x\": 1}}\n</tool_call>",
                "<tool_call>",
                "<tool_call>text</tool_call>",
            ] {
                assert!(!accepted(wrong), "{wrong}");
            }
            // A special token written as text is neither text nor the beginning of a call.
            let plain = |text: &str| accepts(&compiler, &constraint, &encode(text, false));
            assert_eq!(plain(get), !is_special);
            assert!(!plain("a <tool_call> b"));
        }
        is_special
    }

    #[test]
    fn hermes_markers_are_text_or_special_tokens() {
        assert!(!check_hermes(&tokenizer()));
        assert!(check_hermes(&characters()));
    }

    #[test]
    fn formats_whose_markers_are_text() {
        let rome = "{\"city\": \"Rome\"}";
        for (format, one, two) in [
            (
                ToolCallFormat::Mistral,
                format!("[TOOL_CALLS] [{{\"name\": \"get_weather\", \"arguments\": {rome}}}]"),
                format!(
                    "[TOOL_CALLS][{{\"name\": \"get\", \"arguments\": {{}}}}, {{\"name\": \"get_weather\", \"arguments\": {rome}}}]"
                ),
            ),
            (
                ToolCallFormat::MistralArgs,
                format!("[TOOL_CALLS]get_weather[ARGS]{rome}"),
                format!("[TOOL_CALLS]get[ARGS]{{}}[TOOL_CALLS]get_weather[ARGS]{rome}"),
            ),
            (
                ToolCallFormat::FunctionTag,
                format!("<function=get_weather>{rome}</function>"),
                format!("<function=get>{{}}</function>\n<function=get_weather>{rome}</function>"),
            ),
            (
                ToolCallFormat::QwenXml,
                "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>".to_owned(),
                "<tool_call>\n<function=get>\n</function>\n</tool_call>\n\
                 <tool_call>\n<function=get>\n</function>\n</tool_call>".to_owned(),
            ),
            (
                ToolCallFormat::Glm,
                "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>".to_owned(),
                "<tool_call>get\n</tool_call>\n<tool_call>get</tool_call>".to_owned(),
            ),
            (
                ToolCallFormat::Llama,
                format!("{{\"name\": \"get_weather\", \"parameters\": {rome}}}"),
                "{\"name\": \"get\", \"parameters\": {}}; {\"name\": \"get\", \"parameters\": {}}".to_owned(),
            ),
        ] {
            let can_many = format.has_parallel_calls();
            for (requires_call, parallel) in [(false, false), (false, true), (true, false), (true, true)] {
                let constraint = constraint(format, requires_call, parallel);
                assert!(matches(&constraint, &one), "{one}");
                assert_eq!(matches(&constraint, &two), parallel && can_many, "{two}");
                assert_eq!(matches(&constraint, "Hello [T] <f> {}"), !requires_call);
                assert!(!matches(&constraint, &one.replace("city", "town")));
                assert!(!matches(&constraint, &one.replace("get_weather", "get_time")));
                let after_text = format!("Well: {one}");
                let is_text = format == ToolCallFormat::Llama;
                assert_eq!(matches(&constraint, &after_text), !requires_call, "{after_text}");
                assert!(is_text || !matches(&constraint, &format!("Well: {}", format.opening())));
            }
        }
        let llama = constraint(ToolCallFormat::Llama, false, false);
        assert!(matches(&llama, "<|python_tag|>{\"name\": \"get\", \"parameters\": {}}"));
        assert!(!matches(&llama, " {\"answer\": 42}") && !matches(&llama, "x <|python_tag|> y"));
    }

    /// Calls with elements, and whether they are valid for a tool `f`.
    fn check_elements(format: ToolCallFormat, parameters: &Value, calls: &[(&str, bool)]) {
        let targets = vec![CallTarget { name: "f", parameters: Some(parameters) }];
        let grammar = CallGrammar { format, targets, requires_call: true, parallel: false };
        let constraint = grammar.constraint(&tokenizer(), tokenizer().vocab_size()).map_err(|e| e.1).unwrap();
        for (elements, is_valid) in calls {
            let qwen = |(name, value): (&str, &str)| format!("<parameter={name}>\n{value}\n</parameter>\n");
            let glm = |(name, value): (&str, &str)| {
                format!("<arg_key>{name}</arg_key>\n<arg_value>{value}</arg_value>\n")
            };
            let pairs = elements.split(';').filter_map(|pair| pair.split_once('='));
            let call = match format {
                ToolCallFormat::QwenXml => {
                    let elements: String = pairs.map(qwen).collect();
                    format!("<tool_call>\n<function=f>\n{elements}</function>\n</tool_call>")
                }
                _ => format!("<tool_call>f\n{}</tool_call>", pairs.map(glm).collect::<String>()),
            };
            assert_eq!(matches(&constraint, &call), *is_valid, "{call}");
            if format == ToolCallFormat::Glm {
                assert_eq!(matches(&constraint, &call.replace('\n', "")), *is_valid, "{call}");
            }
        }
    }

    #[test]
    fn elements_fit_the_schemas_of_their_parameters() {
        let parameters = json!({
            "type": "object",
            "$defs": {"count": {"type": "integer", "minimum": 0}},
            "properties": {
                "city": {"type": "string"},
                "unit": {"enum": ["C", "F"]},
                "n": {"$ref": "#/$defs/count"},
                "list": {"type": "array", "items": {"type": "number"}},
                "note": {"type": ["string", "null"]},
            },
            "required": ["city"],
        });
        for format in [ToolCallFormat::QwenXml, ToolCallFormat::Glm] {
            check_elements(
                format,
                &parameters,
                &[
                    ("city=Rome", true),
                    ("city=42 <b> </param", true),
                    ("city=", true),
                    ("", false),
                    ("unit=C", false),
                    ("town=Rome", false),
                    ("city=Rome;unit=C;n=3;list=[1, 2.5];note=null", true),
                    ("city=Rome;note=\"text\"", true),
                    ("city=Rome;note=text", false),
                    ("city=Rome;unit=K", false),
                    ("city=Rome;n=-1", false),
                    ("city=Rome;n=\"3\"", false),
                    ("city=Rome;list=[\"1\"]", false),
                    ("unit=C;city=Rome", false),
                    ("city=Rome;city=Rome", false),
                ],
            );
            check_elements(format, &json!({}), &[("", true), ("a=1;b=text", true)]);
            check_elements(format, &json!({"properties": {}}), &[("", true), ("a=1", false)]);
            for (parameters, keyword) in [
                (json!({"properties": {"a": {}}, "required": ["b"]}), "required"),
                (json!({"additionalProperties": {"type": "string"}}), "additionalProperties"),
                (json!({"anyOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}), "anyOf"),
                (json!({"properties": {"a>b": {}}}), "properties"),
            ] {
                let targets = vec![CallTarget { name: "f", parameters: Some(&parameters) }];
                let grammar = CallGrammar { format, targets, requires_call: true, parallel: false };
                let (index, error) = grammar.constraint(&tokenizer(), tokenizer().vocab_size()).unwrap_err();
                assert!(index == Some(0) && error.to_string().contains(keyword), "{error}");
            }
        }
    }

    #[test]
    fn arguments_without_a_schema() {
        for (parameters, text, is_valid) in [
            (None, "{}", true),
            (None, "{\"a\": 1}", false),
            (Some(json!({})), "{\"a\": 1}", true),
            (Some(json!({})), "[]", false),
            (Some(json!({"type": "object", "properties": {}})), "{\"a\": 1}", false),
            (
                Some(json!({"type": "object", "properties": {}, "additionalProperties": true})),
                "{\"a\": 1}",
                true,
            ),
        ] {
            let targets = vec![CallTarget { name: "f", parameters: parameters.as_ref() }];
            let grammar = CallGrammar {
                format: ToolCallFormat::FunctionTag,
                targets,
                requires_call: true,
                parallel: false,
            };
            let constraint =
                grammar.constraint(&tokenizer(), tokenizer().vocab_size()).map_err(|e| e.1).unwrap();
            let call = format!("<function=f>{text}</function>");
            assert_eq!(matches(&constraint, &call), is_valid, "{parameters:?} {text}");
        }
    }
}
