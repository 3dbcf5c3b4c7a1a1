//! Parser of GBNF.

use std::collections::HashMap;

use super::{Node, Rule};
use crate::constraint::error::ConstraintError;

/// Deepest nesting of parentheses.
const NESTING: usize = 64;
/// Largest number of repetitions in braces.
const REPETITIONS: usize = 10_000;
/// Name of the rule that a grammar begins with.
const ROOT: &str = "root";

/// The rules of a grammar; the first one is `root`.
///
/// # Errors
/// [`ConstraintError::Gbnf`] with the place of the fault.
pub(in crate::constraint) fn parse(text: &str) -> Result<Vec<Rule>, ConstraintError> {
    let mut parser = Parser { text, at: 0, nesting: 0, names: HashMap::new(), rules: Vec::new() };
    parser.id(ROOT, 0);
    parser.space(true);
    while parser.at < text.len() {
        parser.rule()?;
        parser.space(true);
    }
    let rules = std::mem::take(&mut parser.rules);
    let mut complete = Vec::with_capacity(rules.len());
    for Declared { name, first_use, body } in rules {
        let Some(body) = body else {
            let reason = match name.as_str() {
                ROOT => "there is no rule `root` to begin with".to_owned(),
                _ => format!("there is no rule `{name}`"),
            };
            return Err(parser.fault_at(first_use, reason));
        };
        complete.push(Rule { name, body });
    }
    Ok(complete)
}

/// A rule that was named, and its body once it is defined.
struct Declared {
    name: String,
    /// Offset of the first place that names it.
    first_use: usize,
    body: Option<Node>,
}

struct Parser<'t> {
    text: &'t str,
    /// Offset of the next character.
    at: usize,
    nesting: usize,
    names: HashMap<String, usize>,
    rules: Vec<Declared>,
}

impl Parser<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    /// Takes a piece of text if it comes next.
    fn take(&mut self, piece: &str) -> bool {
        let found = self.rest().starts_with(piece);
        self.at += if found { piece.len() } else { 0 };
        found
    }

    fn fault_at(&self, offset: usize, reason: String) -> ConstraintError {
        let before = &self.text[..offset];
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|&c| c != '\n').count() + 1;
        ConstraintError::Gbnf { line, column, reason }
    }

    fn fault(&self, reason: impl Into<String>) -> ConstraintError {
        self.fault_at(self.at, reason.into())
    }

    /// Passes white space and comments; line breaks as well if `lines` says so.
    fn space(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => {}
                '\r' | '\n' if lines => {}
                '#' => {
                    let end = self.rest().find('\n').unwrap_or(self.rest().len());
                    self.at += end;
                    continue;
                }
                _ => return,
            }
            self.at += 1;
        }
    }

    /// Index of the rule with this name, first named at `offset`.
    fn id(&mut self, name: &str, offset: usize) -> usize {
        if let Some(&id) = self.names.get(name) {
            return id;
        }
        let id = self.rules.len();
        self.names.insert(name.to_owned(), id);
        self.rules.push(Declared { name: name.to_owned(), first_use: offset, body: None });
        id
    }

    /// A rule name, if one comes next.
    fn name(&mut self) -> Option<(String, usize)> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let rest = self.rest();
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let found = (rest[..end].to_owned(), self.at);
        self.at += end;
        (end > 0).then_some(found)
    }

    fn rule(&mut self) -> Result<(), ConstraintError> {
        let Some((name, start)) = self.name() else {
            return Err(self.fault("expected the name of a rule"));
        };
        self.space(false);
        if !self.take("::=") {
            return Err(self.fault(format!("expected ::= after `{name}`")));
        }
        self.space(true);
        let body = self.choice()?;
        let id = self.id(&name, start);
        if self.rules[id].body.replace(body).is_some() {
            return Err(self.fault_at(start, format!("rule `{name}` is defined twice")));
        }
        match self.peek() {
            None | Some('\r' | '\n') => Ok(()),
            Some(c) => Err(self.fault(format!("unexpected {c:?}; a rule ends with its line"))),
        }
    }

    fn choice(&mut self) -> Result<Node, ConstraintError> {
        let mut options = vec![self.sequence()?];
        while self.take("|") {
            self.space(true);
            options.push(self.sequence()?);
        }
        Ok(one_or(options, Node::Choice))
    }

    fn sequence(&mut self) -> Result<Node, ConstraintError> {
        let mut items = Vec::new();
        while let Some(mut item) = self.item()? {
            if let Some((least, most)) = self.repetition()? {
                item = Node::Repeat(Box::new(item), least, most);
            }
            if matches!(self.peek(), Some('*' | '+' | '?' | '{')) {
                return Err(self.fault("nothing to repeat here; put parentheses around a repetition"));
            }
            items.push(item);
            self.space(self.nesting > 0);
        }
        Ok(one_or(items, Node::Sequence))
    }

    /// One element of a sequence, if one comes next.
    fn item(&mut self) -> Result<Option<Node>, ConstraintError> {
        let start = self.at;
        let node = match self.peek() {
            Some('"') => self.literal()?,
            Some('[') => self.class()?,
            Some('.') => {
                self.at += 1;
                Node::Any
            }
            Some('<') => self.token()?,
            Some('!') => {
                return Err(self.fault("`!` before a token is not supported; list the tokens to allow"));
            }
            Some('(') => {
                if self.nesting == NESTING {
                    return Err(self.fault(format!("more than {NESTING} nested parentheses")));
                }
                self.at += 1;
                self.nesting += 1;
                self.space(true);
                let inner = self.choice()?;
                self.nesting -= 1;
                if !self.take(")") {
                    return Err(self.fault_at(start, "this parenthesis is not closed".to_owned()));
                }
                inner
            }
            _ => match self.name() {
                Some((name, start)) => Node::Rule(self.id(&name, start)),
                None => return Ok(None),
            },
        };
        Ok(Some(node))
    }

    /// A repetition operator, if one comes next.
    fn repetition(&mut self) -> Result<Option<(usize, Option<usize>)>, ConstraintError> {
        for (operator, least, most) in [("*", 0, None), ("+", 1, None), ("?", 0, Some(1))] {
            if self.take(operator) {
                return Ok(Some((least, most)));
            }
        }
        let start = self.at;
        if !self.take("{") {
            return Ok(None);
        }
        self.space(false);
        let first = self.number();
        self.space(false);
        let (least, most) = if self.take(",") {
            self.space(false);
            (first.unwrap_or(0), self.number())
        } else {
            let Some(exact) = first else { return Err(self.fault("expected a number of repetitions")) };
            (exact, Some(exact))
        };
        self.space(false);
        if !self.take("}") {
            return Err(self.fault("expected } after the number of repetitions"));
        }
        if most.is_some_and(|most| most < least) {
            return Err(self.fault_at(start, "the repetitions end before they begin".to_owned()));
        }
        if least.max(most.unwrap_or(0)) > REPETITIONS {
            return Err(self.fault_at(start, format!("more than {REPETITIONS} repetitions")));
        }
        Ok(Some((least, most)))
    }

    /// Decimal digits, if some come next; numbers above the limit of repetitions saturate.
    fn number(&mut self) -> Option<usize> {
        let digits = self.rest().len() - self.rest().trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let value = self.rest()[..digits].parse().unwrap_or(usize::MAX);
        self.at += digits;
        (digits > 0).then_some(value)
    }

    fn literal(&mut self) -> Result<Node, ConstraintError> {
        let start = self.at;
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.peek() {
                None | Some('\n') => return Err(self.fault_at(start, "this text is not closed".to_owned())),
                Some('"') => {
                    self.at += 1;
                    return Ok(Node::Literal(text));
                }
                Some(_) => text.push(self.character()?),
            }
        }
    }

    fn class(&mut self) -> Result<Node, ConstraintError> {
        let start = self.at;
        self.at += 1;
        let negated = self.take("^");
        let mut ranges = Vec::new();
        loop {
            match self.peek() {
                None | Some('\n') => return Err(self.fault_at(start, "this class is not closed".to_owned())),
                Some(']') => {
                    self.at += 1;
                    break;
                }
                Some(_) => {
                    let place = self.at;
                    let first = self.character()?;
                    let is_range = self.rest().starts_with('-') && !self.rest().starts_with("-]");
                    let last = if is_range {
                        self.at += 1;
                        self.character()?
                    } else {
                        first
                    };
                    if last < first {
                        return Err(self.fault_at(place, "the range ends before it begins".to_owned()));
                    }
                    ranges.push((first, last));
                }
            }
        }
        match (ranges.is_empty(), negated) {
            (false, _) => Ok(Node::Class { negated, ranges }),
            (true, true) => Ok(Node::Any),
            (true, false) => Err(self.fault_at(start, "this class has no characters".to_owned())),
        }
    }

    /// A character of a text or class, with its escapes.
    fn character(&mut self) -> Result<char, ConstraintError> {
        let start = self.at;
        let ended = || "unexpected end of the grammar".to_owned();
        let c = self.next().ok_or_else(|| self.fault_at(start, ended()))?;
        if c != '\\' {
            return Ok(c);
        }
        let escape = self.next().ok_or_else(|| self.fault_at(start, ended()))?;
        let digits = match escape {
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            '\\' | '"' | '[' | ']' | '-' | '^' | '/' | '\'' => return Ok(escape),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            other => return Err(self.fault_at(start, format!("unknown escape \\{other}"))),
        };
        let code = self.rest().get(..digits).and_then(|hex| u32::from_str_radix(hex, 16).ok());
        let Some(c) = code.and_then(char::from_u32) else {
            let reason = format!("expected {digits} hexadecimal digits of a character after \\{escape}");
            return Err(self.fault_at(start, reason));
        };
        self.at += digits;
        Ok(c)
    }

    /// A token of the vocabulary: `<name>` or `<[id]>`.
    fn token(&mut self) -> Result<Node, ConstraintError> {
        let rest = self.rest();
        let end = rest.find(['>', '\n', ' ']).filter(|&end| rest[end..].starts_with('>') && end > 1);
        let Some(end) = end else { return Err(self.fault("expected a token as <name> or <[id]>")) };
        let token = rest[..=end].to_owned();
        if token[1..].contains('<') {
            return Err(self.fault("expected a token as <name> or <[id]>"));
        }
        self.at += end + 1;
        Ok(Node::Token(token))
    }
}

/// The only element, or all of them together.
fn one_or(mut nodes: Vec<Node>, all: fn(Vec<Node>) -> Node) -> Node {
    match nodes.len() {
        1 => nodes.swap_remove(0),
        _ => all(nodes),
    }
}
