//! Writer of Lark for the rules of a GBNF grammar.
//!
//! Rules that cannot reach themselves become terminals: regular expressions, which the grammar
//! engine runs as automata. So do the longest regular runs within the other rules. A grammar
//! without recursion is one terminal and matches exactly what GBNF says; where terminals of a
//! recursive rule meet, the longest match of the first one is taken.

use std::fmt::Write;

use super::{Node, Rule};

/// The grammar in Lark.
pub(in crate::constraint) fn to_lark(rules: &[Rule]) -> String {
    let (regular, nullable) = (regular(rules), nullable(rules));
    let mut writer = Writer { rules, regular: &regular, nullable: &nullable, runs: Vec::new() };
    let mut out = String::from("start: ");
    writer.reference(&writer.name(0), regular[0] && nullable[0], &mut out);
    out.push('\n');
    for (id, rule) in rules.iter().enumerate() {
        let name = writer.name(id);
        if regular[id] {
            writer.define(&name, &rule.body, &mut out);
        } else {
            let _ = write!(out, "{name}: ");
            writer.rule(&rule.body, &mut out);
            out.push('\n');
        }
    }
    for (i, run) in std::mem::take(&mut writer.runs).into_iter().enumerate() {
        writer.define_run(&run_name(i), &run, &mut out);
    }
    out
}

/// A string of Lark that stands for a text.
pub(in crate::constraint) fn lark_string(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\0'..='\x1f' | '\x7f' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            _ => out.push(c),
        }
    }
    out.push('"');
    out
}

struct Writer<'r> {
    rules: &'r [Rule],
    /// Rules that become terminals.
    regular: &'r [bool],
    /// Rules that match the empty text.
    nullable: &'r [bool],
    /// Regular parts of other rules, which become terminals of their own.
    runs: Vec<Vec<&'r Node>>,
}

impl<'r> Writer<'r> {
    /// Name of a rule in Lark: lower case for rules, upper case for terminals. The number keeps
    /// names apart that differ in case or in `-` and `_`.
    fn name(&self, id: usize) -> String {
        let kept = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let name: String = self.rules[id].name.chars().map(kept).collect();
        if self.regular[id] {
            format!("T{id}_{}", name.to_ascii_uppercase())
        } else {
            format!("r{id}_{}", name.to_ascii_lowercase())
        }
    }

    /// A reference to a rule or terminal. Terminals that match the empty text have a second one
    /// that does not: a terminal within a rule must match at least a character.
    fn reference(&self, name: &str, is_nullable_terminal: bool, out: &mut String) {
        out.push_str(name);
        out.push_str(if is_nullable_terminal { "_SOME?" } else { "" });
    }

    fn define(&self, name: &str, body: &Node, out: &mut String) {
        self.define_run(name, &[body], out);
    }

    /// Defines a terminal, and its variant that matches at least a character if it can be empty.
    fn define_run(&self, name: &str, run: &[&Node], out: &mut String) {
        let _ = write!(out, "{name}:");
        for node in run {
            out.push(' ');
            self.terminal(node, out);
        }
        out.push('\n');
        if run.iter().all(|node| is_nullable(node, self.nullable)) {
            let _ = writeln!(out, "{name}_SOME: {name} & /(?s:.)+/");
        }
    }

    /// True if a terminal can stand for the expression.
    fn is_regular(&self, node: &Node) -> bool {
        let mut used = Vec::new();
        references(node, &mut used);
        !names_token(node) && used.iter().all(|&id| self.regular[id])
    }

    /// An expression of a rule.
    fn rule(&mut self, node: &'r Node, out: &mut String) {
        if self.is_regular(node) {
            return self.run(vec![node], out);
        }
        match node {
            Node::Rule(id) => out.push_str(&self.name(*id)),
            Node::Token(token) => out.push_str(token),
            Node::Sequence(nodes) => {
                let mut rest = nodes.as_slice();
                out.push('(');
                while !rest.is_empty() {
                    let regular = rest.iter().take_while(|node| self.is_regular(node)).count();
                    let (run, others) = rest.split_at(regular);
                    if !run.is_empty() {
                        self.run(run.iter().collect(), out);
                        out.push(' ');
                    }
                    rest = others;
                    if let Some((first, others)) = rest.split_first() {
                        self.rule(first, out);
                        out.push(' ');
                        rest = others;
                    }
                }
                out.push(')');
            }
            Node::Choice(nodes) => {
                out.push('(');
                for (i, node) in nodes.iter().enumerate() {
                    out.push_str(if i == 0 { "" } else { " | " });
                    self.rule(node, out);
                }
                out.push(')');
            }
            Node::Repeat(node, least, most) => {
                out.push('(');
                self.rule(node, out);
                out.push(')');
                repetition(*least, *most, out);
            }
            // Regular, so written above.
            Node::Literal(_) | Node::Class { .. } | Node::Any => {}
        }
    }

    /// A regular part of a rule: a terminal that is there already, or one of its own.
    fn run(&mut self, run: Vec<&'r Node>, out: &mut String) {
        match run.as_slice() {
            [Node::Literal(text)] => out.push_str(&lark_string(text)),
            [Node::Class { negated, ranges }] => class(*negated, ranges, out),
            [Node::Rule(id)] => self.reference(&self.name(*id), self.nullable[*id], out),
            _ => {
                let is_nullable = run.iter().all(|node| is_nullable(node, self.nullable));
                self.reference(&run_name(self.runs.len()), is_nullable, out);
                self.runs.push(run);
            }
        }
    }

    /// An expression of a terminal.
    fn terminal(&self, node: &Node, out: &mut String) {
        match node {
            Node::Literal(text) => out.push_str(&lark_string(text)),
            Node::Class { negated, ranges } => class(*negated, ranges, out),
            Node::Any => out.push_str("/(?s:.)/"),
            Node::Rule(id) => out.push_str(&self.name(*id)),
            Node::Sequence(nodes) if nodes.is_empty() => out.push_str("\"\""),
            Node::Sequence(nodes) => self.joined(nodes, " ", out),
            Node::Choice(nodes) => self.joined(nodes, " | ", out),
            Node::Repeat(node, least, most) => {
                out.push('(');
                self.terminal(node, out);
                out.push(')');
                repetition(*least, *most, out);
            }
            // Not regular, so never in a terminal.
            Node::Token(_) => {}
        }
    }

    fn joined(&self, nodes: &[Node], between: &str, out: &mut String) {
        out.push('(');
        for (i, node) in nodes.iter().enumerate() {
            out.push_str(if i == 0 { "" } else { between });
            self.terminal(node, out);
        }
        out.push(')');
    }
}

/// Name of a terminal for a regular part of a rule.
fn run_name(index: usize) -> String {
    format!("RUN{index}")
}

fn repetition(least: usize, most: Option<usize>, out: &mut String) {
    let _ = match (least, most) {
        (0, None) => write!(out, "*"),
        (1, None) => write!(out, "+"),
        (0, Some(1)) => write!(out, "?"),
        (least, None) => write!(out, "{{{least},}}"),
        (least, Some(most)) => write!(out, "{{{least},{most}}}"),
    };
}

/// A regular expression for a class of characters.
fn class(negated: bool, ranges: &[(char, char)], out: &mut String) {
    out.push_str(if negated { "/[^" } else { "/[" });
    for (first, last) in ranges {
        let _ = write!(out, "\\x{{{:x}}}", u32::from(*first));
        if first != last {
            let _ = write!(out, "-\\x{{{:x}}}", u32::from(*last));
        }
    }
    out.push_str("]/");
}

/// Rules that reach neither themselves nor a recursive rule, and name no token.
fn regular(rules: &[Rule]) -> Vec<bool> {
    let references: Vec<Vec<usize>> = rules
        .iter()
        .map(|rule| {
            let mut found = Vec::new();
            references(&rule.body, &mut found);
            found
        })
        .collect();
    let mut users = vec![Vec::new(); rules.len()];
    for (user, used) in references.iter().enumerate() {
        for &id in used {
            users[id].push(user);
        }
    }
    let mut open: Vec<usize> = references.iter().map(Vec::len).collect();
    let mut ready: Vec<usize> = (0..rules.len()).filter(|&id| open[id] == 0).collect();
    let mut regular = vec![false; rules.len()];
    while let Some(id) = ready.pop() {
        if names_token(&rules[id].body) {
            continue;
        }
        regular[id] = true;
        for &user in &users[id] {
            open[user] -= 1;
            if open[user] == 0 {
                ready.push(user);
            }
        }
    }
    regular
}

/// Rules that match the empty text.
fn nullable(rules: &[Rule]) -> Vec<bool> {
    let mut nullable = vec![false; rules.len()];
    loop {
        let mut changed = false;
        for (id, rule) in rules.iter().enumerate() {
            if !nullable[id] && is_nullable(&rule.body, &nullable) {
                nullable[id] = true;
                changed = true;
            }
        }
        if !changed {
            return nullable;
        }
    }
}

fn is_nullable(node: &Node, rules: &[bool]) -> bool {
    match node {
        Node::Literal(text) => text.is_empty(),
        Node::Class { .. } | Node::Any | Node::Token(_) => false,
        Node::Rule(id) => rules[*id],
        Node::Sequence(nodes) => nodes.iter().all(|node| is_nullable(node, rules)),
        Node::Choice(nodes) => nodes.iter().any(|node| is_nullable(node, rules)),
        Node::Repeat(node, least, _) => *least == 0 || is_nullable(node, rules),
    }
}

/// Appends the rules that an expression names, each occurrence.
fn references(node: &Node, found: &mut Vec<usize>) {
    match node {
        Node::Rule(id) => found.push(*id),
        Node::Sequence(nodes) | Node::Choice(nodes) => nodes.iter().for_each(|node| references(node, found)),
        Node::Repeat(node, ..) => references(node, found),
        Node::Literal(_) | Node::Class { .. } | Node::Any | Node::Token(_) => {}
    }
}

fn names_token(node: &Node) -> bool {
    match node {
        Node::Token(_) => true,
        Node::Sequence(nodes) | Node::Choice(nodes) => nodes.iter().any(names_token),
        Node::Repeat(node, ..) => names_token(node),
        Node::Literal(_) | Node::Class { .. } | Node::Any | Node::Rule(_) => false,
    }
}
