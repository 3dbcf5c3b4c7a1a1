//! Sources of constraints: checks that need no vocabulary, and the text that the compiler takes.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use super::error::ConstraintError;
use super::{gbnf, schema};

/// Most bytes of a regular expression.
const REGEX_BYTES: usize = 64 << 10;
/// Most bytes of a Lark or GBNF grammar.
const GRAMMAR_BYTES: usize = 1 << 20;
/// Most bytes of the grammar of all tools' calls.
const TOOLS_BYTES: usize = 4 << 20;
/// Most rules and terminals of a grammar: the compiler recurses through their references.
const DEFINITIONS: usize = 2000;
/// Most bytes of all choices together.
const CHOICES_BYTES: usize = 1 << 20;

/// Restricts the output of a generation to a language.
///
/// A constraint is independent of models; an engine compiles it at its first use and keeps the
/// result. Clones share their content. Limits and the supported parts of each language are listed
/// in `docs/structured-output.md`.
///
/// Output that ends with [`FinishReason::Stop`](crate::FinishReason::Stop), and not at a stop
/// string, is a complete element of the language; a token limit can end it early.
///
/// # Examples
/// ```
/// use ruvllm::{Constraint, GenerateRequest};
///
/// let schema = ruvllm::serde_json::json!({
///     "type": "object",
///     "properties": {"city": {"type": "string"}, "population": {"type": "integer", "minimum": 0}},
///     "required": ["city", "population"],
///     "additionalProperties": false
/// });
/// let request = GenerateRequest::new("The largest city:").with_constraint(Constraint::json_schema(&schema)?);
/// let yes_or_no = Constraint::choices(["yes", "no"])?;
/// # Ok::<(), ruvllm::ConstraintError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Constraint(Arc<Source>);

/// Language of a constraint's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Language {
    Schema,
    Regex,
    Lark,
    Gbnf,
    Choices,
    Tools,
}

impl Language {
    /// Name in messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Schema => "schema",
            Self::Regex => "regex",
            Self::Lark => "Lark grammar",
            Self::Gbnf => "GBNF grammar",
            Self::Choices => "list of choices",
            Self::Tools => "list of tools",
        }
    }
}

/// A checked source.
#[derive(PartialEq, Eq)]
pub(super) struct Source {
    pub(super) language: Language,
    /// JSON text of a schema, otherwise a Lark grammar.
    pub(super) text: String,
}

/// The language and the size of the text, which may be long.
impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Constraint")
            .field("language", &self.0.language)
            .field("bytes", &self.0.text.len())
            .finish_non_exhaustive()
    }
}

impl Constraint {
    /// Any JSON object.
    pub fn json() -> Self {
        Self::new(Language::Schema, schema::any_object())
    }

    /// JSON values that a JSON Schema (2020-12) accepts.
    ///
    /// Properties are generated in the order of `properties`. Supported keywords:
    /// - any type: `type`, `enum`, `const`, `anyOf`, `oneOf` (of provably exclusive schemas),
    ///   `allOf`, `$ref` (within the document: `#`, `#/...`, `#anchor`), `$defs`, `definitions`;
    /// - objects: `properties`, `required`, `additionalProperties`, `patternProperties` (disjoint
    ///   patterns), `minProperties` (up to one more than are required), `maxProperties`;
    /// - arrays: `items`, `prefixItems`, `minItems`, `maxItems`;
    /// - strings: `minLength`, `maxLength`, `pattern` (without look-around and back-references),
    ///   `format` (`date`, `time`, `date-time`, `duration`, `email`, `hostname`, `ipv4`, `ipv6`,
    ///   `uri`, `uuid`);
    /// - numbers: `minimum`, `maximum`, `exclusiveMinimum`, `exclusiveMaximum`, `multipleOf`.
    ///
    /// Annotations (`title`, `description`, `default`, ...) and keywords that no JSON Schema
    /// vocabulary defines have no effect. All other keywords are refused: `not`, `if`, `contains`,
    /// `uniqueItems`, `dependentRequired`, `propertyNames`, `unevaluatedProperties`, ...
    ///
    /// The output is narrower than the schema in three ways: white space between elements is at
    /// most two spaces or one line break with indentation, strings escape only where JSON demands
    /// it, and numbers without bounds of their own have at most 15 digits before the point and no
    /// exponent.
    ///
    /// # Errors
    /// [`ConstraintError::UnsupportedKeyword`], [`ConstraintError::InvalidSchema`],
    /// [`ConstraintError::TooLarge`]. Faults that only the compiler finds (a pattern that is no
    /// regular expression, a schema without a value) are errors of the request that uses it.
    pub fn json_schema(schema: &Value) -> Result<Self, ConstraintError> {
        Ok(Self::new(Language::Schema, schema::normalize(schema)?))
    }

    /// Texts that a regular expression matches as a whole, in the syntax of the crate `regex`,
    /// without look-around, anchors and back-references.
    ///
    /// # Errors
    /// [`ConstraintError::TooLarge`].
    pub fn regex(pattern: &str) -> Result<Self, ConstraintError> {
        limited(Language::Regex, "bytes", pattern.len(), REGEX_BYTES)?;
        let escaped = llguidance::regex_to_lark(pattern, "");
        let text = if escaped.is_empty() { "start: \"\"".to_owned() } else { format!("start: /{escaped}/") };
        Ok(Self::new(Language::Regex, text))
    }

    /// Texts of a grammar in llguidance's dialect of Lark, with `start` as the first rule.
    ///
    /// # Errors
    /// [`ConstraintError::TooLarge`]. Syntax errors are errors of the request that uses it.
    pub fn lark(grammar: &str) -> Result<Self, ConstraintError> {
        limited(Language::Lark, "bytes", grammar.len(), GRAMMAR_BYTES)?;
        // A definition begins a line, so lines with a colon are an upper bound.
        let definitions = grammar.lines().filter(|line| line.contains(':')).count();
        limited(Language::Lark, "definitions", definitions, DEFINITIONS)?;
        Ok(Self::new(Language::Lark, grammar.to_owned()))
    }

    /// Texts of a grammar in llama.cpp's GBNF, with `root` as the first rule.
    ///
    /// Rules that do not recurse become terminals, which match as much text as they can.
    ///
    /// # Errors
    /// [`ConstraintError::Gbnf`] with the place of a syntax error or of an unknown rule;
    /// [`ConstraintError::TooLarge`].
    pub fn gbnf(grammar: &str) -> Result<Self, ConstraintError> {
        limited(Language::Gbnf, "bytes", grammar.len(), GRAMMAR_BYTES)?;
        let rules = gbnf::parse(grammar)?;
        limited(Language::Gbnf, "rules", rules.len(), DEFINITIONS)?;
        Ok(Self::new(Language::Gbnf, gbnf::to_lark(&rules)))
    }

    /// One of several texts.
    ///
    /// # Errors
    /// [`ConstraintError::NoChoices`], [`ConstraintError::EmptyChoice`],
    /// [`ConstraintError::TooLarge`].
    pub fn choices(texts: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, ConstraintError> {
        let mut text = String::from("start: CHOICE\nCHOICE: ");
        let (mut count, mut bytes) = (0, 0);
        for choice in texts {
            let choice = choice.as_ref();
            if choice.is_empty() {
                return Err(ConstraintError::EmptyChoice { index: count });
            }
            bytes += choice.len();
            limited(Language::Choices, "bytes", bytes, CHOICES_BYTES)?;
            text.push_str(if count == 0 { "" } else { " | " });
            text.push_str(&gbnf::lark_string(choice));
            count += 1;
        }
        if count == 0 {
            return Err(ConstraintError::NoChoices);
        }
        Ok(Self::new(Language::Choices, text))
    }

    /// Answers with tool calls, as a Lark grammar for one vocabulary.
    ///
    /// # Errors
    /// [`ConstraintError::TooLarge`].
    pub(super) fn tools(grammar: String) -> Result<Self, ConstraintError> {
        limited(Language::Tools, "bytes", grammar.len(), TOOLS_BYTES)?;
        Ok(Self::new(Language::Tools, grammar))
    }

    fn new(language: Language, text: String) -> Self {
        Self(Arc::new(Source { language, text }))
    }

    pub(super) fn source(&self) -> &Source {
        &self.0
    }
}

/// Checks a size against its limit.
fn limited(language: Language, unit: &'static str, size: usize, limit: usize) -> Result<(), ConstraintError> {
    if size <= limit {
        return Ok(());
    }
    Err(ConstraintError::TooLarge { source_kind: language.name(), unit, size, limit })
}
