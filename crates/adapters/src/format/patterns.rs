//! Patterns of module names, by which PEFT gives ranks and scales of their own to some modules.
//!
//! Nearly all are names and are compared as they are; the others are regular expressions of
//! somebody else's, compiled into one automaton under one limit for all of them. Module names are
//! ASCII, so expressions are compiled without Unicode: `\w` has 63 characters instead of 140,000.

use regex::bytes::{RegexSet, RegexSetBuilder};
use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// Most patterns of a configuration, ranks and scales together. One per matrix of a model of 126
/// layers is 882 of each.
const MAX_PATTERNS: usize = 4096;

/// Longest pattern, in bytes.
const MAX_PATTERN_BYTES: usize = 1024;

/// Most patterns of a configuration that are more than names.
const MAX_EXPRESSIONS: usize = 64;

/// Most memory of all compiled expressions of a configuration together, in bytes. A hundred names
/// of layers and projections as alternatives take 50 KB.
const MAX_COMPILED_BYTES: usize = 256 << 10;

/// Most memory for states of the automaton that are kept between two names, in bytes.
const MAX_CACHED_BYTES: usize = 1 << 20;

/// Deepest nesting of groups in an expression.
const MAX_NESTING: u32 = 64;

/// Beginnings of groups that are read. Flags in groups could switch Unicode on, or make what
/// follows a comment.
const GROUPS: [&str; 5] = ["(?:", "(?P<", "(?<", "(?i)", "(?i:"];

/// Ranks and scales of modules by their names.
#[derive(Debug)]
pub(super) struct Patterns {
    ranks: Vec<(Pattern, f64)>,
    alphas: Vec<(Pattern, f64)>,
    expressions: RegexSet,
}

/// The rank and the alpha that the patterns give to one module.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Given {
    pub(super) rank: Option<f64>,
    pub(super) alpha: Option<f64>,
}

#[derive(Debug)]
enum Pattern {
    /// Letters, digits, `_`, `-`, and `.` for any character.
    Name(String),
    /// Index in the set.
    Expression(usize),
}

impl Patterns {
    /// Reads `rank_pattern` and `alpha_pattern`.
    ///
    /// # Errors
    /// [`Error::Pattern`], [`Error::PatternLimit`].
    pub(super) fn new(ranks: Option<Map<String, Value>>, alphas: Option<Map<String, Value>>) -> Result<Self> {
        let (ranks, alphas) = (ranks.unwrap_or_default(), alphas.unwrap_or_default());
        limit("patterns", ranks.len() + alphas.len(), MAX_PATTERNS)?;
        let mut expressions: Vec<String> = Vec::new();
        let mut read = |fields: Map<String, Value>| -> Result<Vec<(Pattern, f64)>> {
            fields.into_iter().map(|(key, value)| pattern(key, &value, &mut expressions)).collect()
        };
        let (ranks, alphas) = (read(ranks)?, read(alphas)?);
        Ok(Self { ranks, alphas, expressions: compile(&expressions)? })
    }

    /// The values of the first patterns that name the module. A pattern is the end of a module's
    /// name, from a dot on.
    pub(super) fn of(&self, module: &str) -> Given {
        // Once for both lists: a hostile expression is slow even within its limits.
        let matched = self.expressions.matches(module.as_bytes());
        let first = |patterns: &[(Pattern, f64)]| {
            let is_named = |pattern: &Pattern| match pattern {
                Pattern::Name(name) => is_end(name, module),
                Pattern::Expression(index) => matched.matched(*index),
            };
            patterns.iter().find(|(pattern, _)| is_named(pattern)).map(|&(_, value)| value)
        };
        Given { rank: first(&self.ranks), alpha: first(&self.alphas) }
    }
}

/// Reads one pattern; what is more than a name is added to `expressions`.
fn pattern(key: String, value: &Value, expressions: &mut Vec<String>) -> Result<(Pattern, f64)> {
    limit("bytes in a pattern", key.len(), MAX_PATTERN_BYTES)?;
    let Some(value) = value.as_f64() else { return Err(invalid(&key)) };
    if key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte)) {
        return Ok((Pattern::Name(key), value));
    }
    let mut groups = key.match_indices("(?");
    if !groups.all(|(at, _)| GROUPS.iter().any(|group| key[at..].starts_with(group))) {
        return Err(invalid(&key));
    }
    limit("regular expressions", expressions.len() + 1, MAX_EXPRESSIONS)?;
    expressions.push(key);
    Ok((Pattern::Expression(expressions.len() - 1), value))
}

fn compile(expressions: &[String]) -> Result<RegexSet> {
    let build = |keys: &[String]| {
        RegexSetBuilder::new(keys.iter().map(|key| format!(r"^(?:.*\.)?(?:{key})$")))
            .unicode(false)
            .nest_limit(MAX_NESTING)
            .size_limit(MAX_COMPILED_BYTES)
            .dfa_size_limit(MAX_CACHED_BYTES)
            .build()
    };
    build(expressions).map_err(|_| {
        // The one to blame, or all of them together.
        let failed = |key: &&String| build(std::slice::from_ref(*key)).is_err();
        match expressions.iter().find(failed) {
            Some(key) => invalid(key),
            None => Error::PatternSize { limit: MAX_COMPILED_BYTES },
        }
    })
}

/// True if a module's name ends with `name`, from a dot on, `.` in `name` standing for any
/// character.
fn is_end(name: &str, module: &str) -> bool {
    let (name, module) = (name.as_bytes(), module.as_bytes());
    let Some(start) = module.len().checked_sub(name.len()) else { return false };
    let (before, end) = module.split_at(start);
    let is_same = |(a, b): (&u8, &u8)| a == b || *a == b'.';
    before.last().is_none_or(|&last| last == b'.') && name.iter().zip(end).rev().all(is_same)
}

fn limit(what: &'static str, found: usize, limit: usize) -> Result<()> {
    if found > limit { Err(Error::PatternLimit { what, found, limit }) } else { Ok(()) }
}

fn invalid(pattern: &str) -> Error {
    const SHOWN_CHARS: usize = 60;
    let mut shown: String = pattern.chars().take(SHOWN_CHARS).collect();
    if shown.len() < pattern.len() {
        shown.push_str("...");
    }
    Error::Pattern { pattern: shown }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use regex::Regex;

    use super::*;

    fn map<'a>(patterns: impl IntoIterator<Item = &'a str>) -> Map<String, Value> {
        let numbered = patterns.into_iter().zip(1..);
        numbered.map(|(pattern, number)| (pattern.to_owned(), Value::from(number))).collect()
    }

    fn read<'a>(patterns: impl IntoIterator<Item = &'a str>) -> Result<Patterns> {
        Patterns::new(Some(map(patterns)), None)
    }

    #[test]
    fn the_first_pattern_counts() {
        let patterns = read(["layers.0.q", "layers.[1-3].(q|k)", "q", r"^m\.v$"]).unwrap();
        for (module, rank) in [
            ("m.layers.0.q", Some(1.0)),
            ("m.layers.2.k", Some(2.0)),
            ("m.layers.2.q", Some(2.0)),
            ("m.layers.9.q", Some(3.0)),
            ("q", Some(3.0)),
            ("m.v", Some(4.0)),
            ("m.xq", None),
            ("m.layers.0.v", None),
        ] {
            assert_eq!(patterns.of(module), Given { rank, alpha: None }, "{module}");
        }
    }

    #[test]
    fn both_lists_share_the_limits() {
        let names: Vec<String> = (0..MAX_PATTERNS / 2).map(|i| format!("q{i}")).collect();
        let list = || Some(map(names.iter().map(String::as_str)));
        assert!(Patterns::new(list(), list()).is_ok());
        let mut more = list().unwrap();
        more.insert("one".to_owned(), Value::from(1));
        assert!(matches!(Patterns::new(Some(more), list()), Err(Error::PatternLimit { .. })));

        let expressions: Vec<String> = (0..MAX_EXPRESSIONS / 2).map(|i| format!("q{i}$")).collect();
        let list = || map(expressions.iter().map(String::as_str));
        assert!(Patterns::new(Some(list()), Some(list())).is_ok());
        let mut more = list();
        more.insert("one$".to_owned(), Value::from(1));
        assert!(matches!(Patterns::new(Some(more), Some(list())), Err(Error::PatternLimit { .. })));

        let long = "q".repeat(MAX_PATTERN_BYTES);
        assert!(read([long.as_str()]).is_ok());
        assert!(matches!(read([format!("{long}q").as_str()]), Err(Error::PatternLimit { .. })));
        // Each below the size, all together beyond it.
        let large: Vec<String> = (0..20).map(|i| format!("q{i}.{{500}}[a-z]{{500}}")).collect();
        assert!(read([large[0].as_str()]).is_ok());
        let all = read(large.iter().map(String::as_str));
        assert!(matches!(all, Err(Error::PatternSize { .. })), "{all:?}");
    }

    #[test]
    fn expressions_that_could_grow_are_refused() {
        for pattern in [
            r"x@(\pL{30}){5}",
            r"x@(?u)\w{30}",
            r"x@(?iu:\w)",
            r"x@(?x)( ?u)\w",
            "x@(?x) #",
            r"(((x{99}){99}){99}){99}",
            "(?=a)b",
            "(",
            "a{",
            &"(".repeat(500),
            &format!("{}a{}", "(".repeat(100), ")".repeat(100)),
        ] {
            assert!(matches!(read([pattern]), Err(Error::Pattern { .. })), "{pattern}");
        }
    }

    proptest! {
        #[test]
        fn names_match_as_expressions_do(
            name in "[ab.]{0,5}",
            module in "[ab.]{0,9}",
        ) {
            let expression = Regex::new(&format!(r"^(?:.*\.)?(?:{name})$")).unwrap();
            prop_assert_eq!(is_end(&name, &module), expression.is_match(&module));
        }

        #[test]
        fn expressions_match_as_they_do_one_by_one(
            patterns in prop::collection::vec(r"(\^)?[ab]?[.]?(\(a\|b\)|\[ab\]|\\w|\\d|a\*|b\{1,2\})[ab]?\$?", 1..6),
            module in "[ab1_.]{0,9}",
        ) {
            let all = map(patterns.iter().map(String::as_str));
            let expected = all.iter().find_map(|(pattern, value)| {
                let expression = Regex::new(&format!(r"^(?:.*\.)?(?:{pattern})$")).unwrap();
                expression.is_match(&module).then(|| value.as_f64()).flatten()
            });
            prop_assert_eq!(Patterns::new(None, Some(all)).unwrap().of(&module).alpha, expected);
        }

        #[test]
        fn any_text_is_read_or_refused(pattern in r"([\[\](){}?*+|^$\\.,:iux0-9apPLwdW<>-]{0,20})") {
            if let Ok(patterns) = read([pattern.as_str()]) {
                patterns.of("model.layers.0.self_attn.q_proj");
            }
        }
    }
}
