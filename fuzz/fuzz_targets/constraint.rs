//! Compiles schemas, grammars, expressions and choices made of the input, and generates with a
//! random walk over the allowed tokens: no panic, no step without an allowed token, complete
//! outputs of schemas are JSON.
//!
//! The first byte selects the language. Schemas are built from the bytes, so that most are valid;
//! grammars and expressions are the text itself, or built from pieces of the language.

#![no_main]

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use gguf_rs_lite::Gguf;
use libfuzzer_sys::fuzz_target;
use ruvllm::{Constraint, ConstraintCompiler, TokenId};
use ruvllm_models::Checkpoint;
use ruvllm_text::tokenizer::Tokenizer;
use serde_json::{Value, json};

/// A vocabulary of some hundred tokens, all bytes among them.
static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| {
    let vocabulary = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/text/tests/data/vocab/gpt-2.gguf");
    let gguf = Gguf::open(vocabulary).expect("the vocabulary is there");
    Arc::new(gguf.tokenizer().expect("it has a tokenizer"))
});

static COMPILER: LazyLock<ConstraintCompiler> = LazyLock::new(|| {
    ConstraintCompiler::new(Arc::clone(&TOKENIZER), TOKENIZER.vocab_size()).expect("the vocabulary fits")
});

/// Pieces of grammars and expressions.
const PIECES: [&str; 32] = [
    "root ::= ", "start: ", "a", "b ::= ", "b: ", "\"x\"", "[a-z]", "[^\\n]", "(", ")", "|", "*", "+", "?",
    "{2,5}", "{1000}", "\n", " ", "root", "start", "/[0-9]+/", "\\d", "\\", "%json {\"type\": \"integer\"}",
    "T: ", "T", "\u{e9}", "[", "]", ".", "-", "&",
];

/// Keys and values of schemas, taken from the input byte by byte.
struct Bytes<'d>(std::slice::Iter<'d, u8>);

impl Bytes<'_> {
    fn next(&mut self) -> usize {
        self.0.next().copied().map_or(0, usize::from)
    }

    fn number(&mut self) -> Value {
        match self.next() % 4 {
            0 => json!(self.next()),
            1 => json!(-(self.next() as i64)),
            2 => json!(self.next() as f64 / 8.0),
            _ => json!(1_u64 << (self.next() % 64)),
        }
    }

    fn text(&mut self) -> String {
        (0..self.next() % 6).map(|_| char::from(self.next() as u8)).collect()
    }

    fn schema(&mut self, depth: usize) -> Value {
        if depth == 0 {
            return json!({"type": "boolean"});
        }
        match self.next() % 12 {
            0 => json!({"type": "integer", "minimum": self.number(), "maximum": self.number()}),
            1 => json!({"type": "number", "exclusiveMinimum": self.number(), "multipleOf": self.number()}),
            2 => json!({"type": "string", "minLength": self.next(), "maxLength": self.next()}),
            3 => json!({"type": "string", "pattern": self.pieces(8)}),
            4 => json!({"enum": [self.text(), self.number(), null, self.text()]}),
            5 => json!({"const": {"a": self.text(), "b": [self.number()]}}),
            6 => json!({"type": "array", "items": self.schema(depth - 1), "minItems": self.next() % 8,
                "maxItems": self.next() % 8}),
            7 => json!({"anyOf": [self.schema(depth - 1), self.schema(depth - 1)]}),
            8 => json!({"oneOf": [self.schema(depth - 1), self.schema(depth - 1)]}),
            9 => json!({"allOf": [self.schema(depth - 1), self.schema(depth - 1)]}),
            10 => json!({"$ref": (["#", "#/$defs/a", "#/$defs/b", "#/properties/x"])[self.next() % 4]}),
            _ => {
                let names: Vec<String> = (0..self.next() % 4).map(|_| self.text()).collect();
                let properties: serde_json::Map<_, _> =
                    names.iter().map(|name| (name.clone(), self.schema(depth - 1))).collect();
                json!({"type": "object", "properties": properties, "required": names,
                    "additionalProperties": self.next() % 2 == 0})
            }
        }
    }

    fn pieces(&mut self, most: usize) -> String {
        (0..self.next() % most.max(1)).map(|_| PIECES[self.next() % PIECES.len()]).collect()
    }
}

fn constraint(input: &[u8]) -> Option<(Constraint, bool)> {
    let (&language, rest) = input.split_first()?;
    let mut bytes = Bytes(rest.iter());
    let text = |bytes: &mut Bytes<'_>| match language & 8 {
        0 => String::from_utf8_lossy(rest).into_owned(),
        _ => bytes.pieces(100),
    };
    let constraint = match language % 8 {
        0 | 1 => Constraint::json_schema(&serde_json::from_slice(rest).ok()?),
        2..=4 => {
            let definitions = json!({"a": bytes.schema(3), "b": bytes.schema(3)});
            let mut schema = bytes.schema(4);
            schema["$defs"] = definitions;
            Constraint::json_schema(&schema)
        }
        5 => Constraint::regex(&text(&mut bytes)),
        6 => Constraint::lark(&text(&mut bytes)),
        _ => Constraint::gbnf(&text(&mut bytes)),
    };
    Some((constraint.ok()?, language % 8 < 5))
}

fuzz_target!(|input: &[u8]| {
    let started = Instant::now();
    let Some((constraint, is_schema)) = constraint(input) else { return };
    let Ok(mut state) = COMPILER.start(&constraint) else { return };
    let mut output: Vec<TokenId> = Vec::new();
    let mut allowed: Vec<TokenId> = Vec::new();
    for step in 0..60 {
        let Ok(mask) = state.mask() else { return };
        allowed.clear();
        allowed.extend(mask.ids());
        assert!(!allowed.is_empty(), "no token is allowed");
        let choice = input[step % input.len()] as usize * 31 + step;
        let token = allowed[choice % allowed.len()];
        if state.accept(token).is_err() {
            return;
        }
        if !TOKENIZER.is_end_of_generation(token) {
            output.push(token);
        }
        if state.is_ended() {
            break;
        }
    }
    if is_schema && state.is_ended() {
        let text = TOKENIZER.decode(&output, false).expect("the ids are known");
        serde_json::from_str::<Value>(&text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
    }
    assert!(started.elapsed() < Duration::from_secs(30), "a constraint without end");
});
