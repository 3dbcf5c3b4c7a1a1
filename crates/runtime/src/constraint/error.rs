//! Errors of constraints: condition, place in the schema or grammar, remedy.

/// A constraint that cannot be used, or a step of one that cannot be computed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConstraintError {
    /// A keyword of JSON Schema that generation does not support.
    #[error("schema keyword `{keyword}` at {path} is not supported: {remedy}")]
    UnsupportedKeyword {
        /// The keyword.
        keyword: String,
        /// JSON pointer of the subschema, `#` for the root.
        path: String,
        /// Alternative that is supported.
        remedy: String,
    },
    /// A schema that is not valid JSON Schema, or that no value satisfies.
    #[error("invalid schema at {path}: {reason}")]
    InvalidSchema {
        /// JSON pointer of the subschema, `#` for the root.
        path: String,
        /// Fault.
        reason: String,
    },
    /// A GBNF grammar with a syntax error.
    #[error("line {line}, column {column} of the GBNF grammar: {reason}")]
    Gbnf {
        /// Line, counted from 1.
        line: usize,
        /// Column in characters, counted from 1.
        column: usize,
        /// Fault.
        reason: String,
    },
    /// A list of choices without an element.
    #[error("the list of choices is empty; give at least one text")]
    NoChoices,
    /// A choice without a character.
    #[error("choice {} is empty; leave it out", index + 1)]
    EmptyChoice {
        /// Its index in the list.
        index: usize,
    },
    /// A source above a size limit.
    #[error("the {source_kind} has {size} {unit}, and at most {limit} are compiled; simplify it")]
    TooLarge {
        /// Kind of the source, such as `schema` or `Lark grammar`.
        source_kind: &'static str,
        /// Measured quantity.
        unit: &'static str,
        /// Its value.
        size: usize,
        /// The largest value.
        limit: usize,
    },
    /// The grammar compiler refuses the source: a syntax error, an unknown rule, or a limit on
    /// states, items or nesting.
    #[error("cannot compile the {source_kind}: {reason}")]
    Compile {
        /// Kind of the source.
        source_kind: &'static str,
        /// Message of the compiler, with the place for grammars.
        reason: String,
    },
    /// The vocabulary cannot be used for constrained output.
    #[error("the vocabulary cannot be constrained: {reason}")]
    Vocabulary {
        /// Fault.
        reason: String,
    },
    /// No token of the vocabulary continues the output as the constraint demands.
    #[error("no token of the vocabulary continues the output; allow other characters in the constraint")]
    DeadEnd,
    /// A step of the running grammar failed: it needs too many states, or a token was accepted
    /// that the mask excludes.
    #[error("the constraint cannot be followed further: {reason}")]
    Step {
        /// Message of the grammar engine.
        reason: String,
    },
}

/// Longest message of the grammar engine that is kept, in characters.
const MESSAGE_CHARS: usize = 240;

/// A message of the grammar engine on one line, without backtraces, internal state and excerpts.
pub(super) fn readable(message: &str) -> String {
    let end = ["<backtrace>", "<state>", "<non-verbose/>"].iter().filter_map(|mark| message.find(mark)).min();
    let is_excerpt = |line: &&str| {
        let numbered = line.split_once('|').is_some_and(|(number, _)| number.trim().parse::<usize>().is_ok());
        numbered || line.chars().all(|c| c == '^')
    };
    let lines = message[..end.unwrap_or(message.len())].lines().map(str::trim);
    let kept: Vec<&str> = lines.filter(|line| !line.is_empty() && !is_excerpt(line)).collect();
    let line = kept.join(" ");
    match line.char_indices().nth(MESSAGE_CHARS) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}
