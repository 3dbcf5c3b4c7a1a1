//! GBNF, llama.cpp's notation for grammars: parser, and writer of the Lark grammar that is
//! compiled.
//!
//! Source: the format's description in llama.cpp, `grammars/README.md`.

mod parse;
mod write;

pub(super) use self::parse::parse;
pub(super) use self::write::{lark_string, to_lark};

/// A rule: its name and body. References are indices into the list of rules.
#[derive(Debug, PartialEq)]
pub(super) struct Rule {
    name: String,
    body: Node,
}

/// An expression.
#[derive(Debug, PartialEq)]
enum Node {
    /// Characters as they are; may be empty.
    Literal(String),
    /// One character in, or with `negated` outside of, these inclusive ranges.
    Class {
        negated: bool,
        ranges: Vec<(char, char)>,
    },
    /// Any character.
    Any,
    /// A token of the vocabulary, `<name>` or `<[id]>`.
    Token(String),
    Rule(usize),
    Sequence(Vec<Node>),
    Choice(Vec<Node>),
    /// At least and at most so many repetitions.
    Repeat(Box<Node>, usize, Option<usize>),
}

#[cfg(test)]
mod tests;
