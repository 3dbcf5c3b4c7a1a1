//! Definitions, imports and module paths of one file.

use std::collections::BTreeSet;

use super::lexer::{Kind, Token};

/// Facts about one file for the graph, without code under `#[cfg(test)]`: tests may use anything.
#[derive(Debug, Default)]
pub(super) struct FileFacts {
    /// `mod name;` of files.
    pub(super) children: BTreeSet<String>,
    /// Names of items.
    pub(super) items: BTreeSet<String>,
    pub(super) imports: Vec<Import>,
    /// Paths of two or more names outside of `use`, such as `super::error::Error`.
    pub(super) mentions: BTreeSet<Vec<String>>,
}

/// One leaf of a `use` tree.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Import {
    /// Path: `crate`, `super`, `self` or a name, then names; `a::b` for `a::b as c`.
    pub(super) path: Vec<String>,
    /// Bound name; `*` for a glob.
    pub(super) name: String,
}

/// Words before the name of an item.
const ITEMS: [&str; 9] = ["fn", "struct", "enum", "union", "trait", "type", "const", "static", "macro_rules"];

/// Reads a file's tokens.
pub(super) fn facts(tokens: &[Token<'_>]) -> FileFacts {
    let code: Vec<Kind<'_>> =
        tokens.iter().map(|token| token.kind).filter(|kind| !matches!(kind, Kind::Comment(_))).collect();
    let code = without_tests(&code);
    let mut facts = FileFacts::default();
    let mut at = 0;
    while at < code.len() {
        at += step(&code[at..], &mut facts).max(1);
    }
    facts
}

/// Parses the first item of `code`; returns the number of its tokens.
fn step(code: &[Kind<'_>], facts: &mut FileFacts) -> usize {
    match code {
        [Kind::Word("use"), rest @ ..] => {
            let end = rest.iter().position(|kind| *kind == Kind::Mark(';')).unwrap_or(rest.len());
            use_tree(&rest[..end], &mut Vec::new(), &mut facts.imports);
            end + 1
        }
        [Kind::Word("mod"), Kind::Word(name), Kind::Mark(';'), ..] => {
            facts.children.insert((*name).to_owned());
            3
        }
        [Kind::Word(word), Kind::Word(name), ..] if ITEMS.contains(word) => {
            facts.items.insert((*name).to_owned());
            2
        }
        [Kind::Word("macro_rules"), Kind::Mark('!'), Kind::Word(name), ..] => {
            facts.items.insert((*name).to_owned());
            3
        }
        [Kind::Word(_), Kind::Mark(':'), Kind::Mark(':'), ..] => {
            let (path, used) = path(code);
            facts.mentions.insert(path);
            used
        }
        _ => 1,
    }
}

/// Names joined by `::`, and the tokens they take.
fn path(code: &[Kind<'_>]) -> (Vec<String>, usize) {
    let mut names = Vec::new();
    let mut at = 0;
    while let Some(Kind::Word(name)) = code.get(at) {
        names.push((*name).to_owned());
        at += 1;
        match (code.get(at), code.get(at + 1)) {
            (Some(Kind::Mark(':')), Some(Kind::Mark(':'))) => at += 2,
            _ => break,
        }
    }
    (names, at)
}

/// Collects the leaves of `a::{b, c::*, d as e}`.
fn use_tree(code: &[Kind<'_>], prefix: &mut Vec<String>, imports: &mut Vec<Import>) {
    let depth = prefix.len();
    let (names, used) = path(code);
    prefix.extend(names);
    match code.get(used) {
        Some(Kind::Mark('*')) => {
            imports.push(Import { path: prefix.clone(), name: "*".to_owned() });
        }
        Some(Kind::Mark('{')) => {
            let end = code.iter().rposition(|kind| *kind == Kind::Mark('}')).unwrap_or(code.len());
            for part in split(&code[used + 1..end]) {
                use_tree(part, prefix, imports);
            }
        }
        following => {
            let renamed = match (following, code.get(used + 1)) {
                (Some(Kind::Word("as")), Some(Kind::Word(name))) => Some((*name).to_owned()),
                _ => None,
            };
            if prefix.last().is_some_and(|name| name == "self") && prefix.len() > 1 {
                prefix.pop();
            }
            if let Some(name) = renamed.or_else(|| prefix.last().cloned()) {
                imports.push(Import { path: prefix.clone(), name });
            }
        }
    }
    prefix.truncate(depth);
}

/// Splits at commas outside of braces.
fn split<'c, 'a>(code: &'c [Kind<'a>]) -> Vec<&'c [Kind<'a>]> {
    let mut depth = 0;
    let parts = code.split(|kind| {
        match kind {
            Kind::Mark('{') => depth += 1,
            Kind::Mark('}') => depth -= 1,
            _ => {}
        }
        depth == 0 && *kind == Kind::Mark(',')
    });
    parts.filter(|part| !part.is_empty()).collect()
}

/// Drops every item under an attribute `#[cfg(...)]` that names `test` and does not negate it.
fn without_tests<'a>(code: &[Kind<'a>]) -> Vec<Kind<'a>> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < code.len() {
        if is_test_attribute(&code[at..]) {
            at += item_length(&code[at..]);
        } else {
            kept.push(code[at]);
            at += 1;
        }
    }
    kept
}

fn is_test_attribute(code: &[Kind<'_>]) -> bool {
    let [Kind::Mark('#'), Kind::Mark('['), Kind::Word("cfg"), rest @ ..] = code else { return false };
    let inside = rest.iter().take_while(|kind| **kind != Kind::Mark(']'));
    let words: Vec<&str> = inside
        .filter_map(|kind| match kind {
            Kind::Word(word) => Some(*word),
            _ => None,
        })
        .collect();
    words.contains(&"test") && !words.contains(&"not")
}

/// Tokens up to the `;` or the closing brace that ends the item, its attributes included.
fn item_length(code: &[Kind<'_>]) -> usize {
    let (mut braces, mut brackets) = (0, 0);
    // A comma ends a field or a variant; in other items it separates parameters.
    let mut is_item = false;
    for (at, kind) in code.iter().enumerate() {
        match kind {
            Kind::Word(word) => is_item |= ITEMS.contains(word) || matches!(*word, "impl" | "mod" | "use"),
            Kind::Mark('(' | '[') => brackets += 1,
            Kind::Mark(')' | ']') => brackets -= 1,
            Kind::Mark(';') if braces == 0 && brackets == 0 => return at + 1,
            Kind::Mark(',') if braces == 0 && brackets == 0 && !is_item => return at + 1,
            Kind::Mark('{') => braces += 1,
            Kind::Mark('}') => {
                braces -= 1;
                if braces <= 0 && brackets <= 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::super::lexer::tokens;
    use super::*;

    #[test]
    fn imports_are_the_leaves_of_the_tree() {
        let source = "use crate::{a::{self, B as C}, d::*};\npub(crate) use e::F;\n";
        let facts = facts(&tokens(source));
        let found: Vec<String> =
            facts.imports.iter().map(|import| format!("{}={}", import.name, import.path.join("/"))).collect();
        assert_eq!(found, ["a=crate/a", "C=crate/a/B", "*=crate/d", "F=e/F"]);
    }

    #[test]
    fn tests_are_left_out() {
        let source = "mod a;\n#[cfg(test)]\nmod b;\n#[cfg(test)]\nmod c { use crate::x::Y; }\n\
            fn d() -> u8 { crate::e::f(super::G) }\n#[cfg(not(test))]\nmod h;\n";
        let facts = facts(&tokens(source));
        assert_eq!(facts.children.iter().collect::<Vec<_>>(), ["a", "h"]);
        assert_eq!(facts.items.iter().collect::<Vec<_>>(), ["d"]);
        assert!(facts.imports.is_empty());
        let mentions: Vec<String> = facts.mentions.iter().map(|path| path.join("::")).collect();
        assert_eq!(mentions, ["crate::e::f", "super::G"]);
    }
}
