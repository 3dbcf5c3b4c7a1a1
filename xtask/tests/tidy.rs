//! Every rule of `cargo xtask tidy`, on a tree that conforms and on one that does not.

use std::fs;

use tempfile::TempDir;
use xtask::Workspace;
use xtask::tidy::{self, Rule};

/// A tree with one package that conforms to every rule.
fn tree() -> TempDir {
    let dir = tempfile::tempdir().expect("a temporary folder");
    put(&dir, "crates/a/Cargo.toml", "[package]\nname = \"a\"\nreadme = \"README.md\"\n");
    put(&dir, "crates/a/README.md", "# a\n");
    put(&dir, "crates/a/src/lib.rs", "//! A crate.\nmod b;\nmod c;\n");
    put(&dir, "crates/a/src/b.rs", "use crate::c::C;\npub(crate) struct B(C);\n");
    put(&dir, "crates/a/src/c.rs", "pub(crate) struct C;\n");
    dir
}

fn put(dir: &TempDir, path: &str, text: &str) {
    let path = dir.path().join(path);
    fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
    fs::write(path, text).expect("a file");
}

fn broken(dir: &TempDir) -> Vec<(Rule, String)> {
    tidy::violations(&Workspace::at(dir.path())).expect("a tree that can be read")
}

/// Asserts that `text` in the file `path` violates only `rule`, at `wanted`.
#[track_caller]
fn breaks(path: &str, text: &str, rule: Rule, wanted: &str) {
    let dir = tree();
    put(&dir, path, text);
    let found = broken(&dir);
    assert!(found.iter().any(|(_, line)| line.contains(wanted)), "{found:?}");
    assert!(found.iter().all(|(other, _)| *other == rule), "{found:?}");
}

#[test]
fn every_rule_of_the_form_is_broken_by_a_fixture() {
    assert_eq!(broken(&tree()), []);
    let lines = |count: usize| "const A: u8 = 1;\n".repeat(count);
    breaks("crates/a/src/c.rs", &lines(600), Rule::Files, "crates/a/src/c.rs:600: 600 lines");
    let long = format!("fn long() {{\n{}}}\n", "    a();\n".repeat(78));
    breaks("crates/a/src/c.rs", &long, Rule::Functions, "c.rs:1: `long` has 80 lines");
    let wide = format!("\n// {}\n", "wide ".repeat(20));
    breaks("crates/a/src/c.rs", &wide, Rule::Prose, "c.rs:2: more than 100 columns");
    breaks("docs/page.md", &"wide ".repeat(21), Rule::Prose, "page.md:1: more than 100 columns");
    breaks("crates/a/src/c.rs", "/// How much.\nstruct A;\n", Rule::Openings, "c.rs:1: begins with `How`");
    let marker = format!("// {}: later\n", concat!("TO", "DO"));
    breaks("crates/a/src/c.rs", &marker, Rule::Markers, "c.rs:1: ");
    breaks("crates/b/Cargo.toml", "[package]\nname = \"b\"\n", Rule::Readme, "crates/b/README.md is missing");
    breaks("crates/a/src/b/x.rs", "", Rule::Modules, "crates/a/src/b.rs: becomes crates/a/src/b/mod.rs");
    breaks("crates/a/src/c.rs", "use crate::b::B;\npub(crate) struct C;\n", Rule::Cycles, "b -> c, c -> b");
}

#[test]
fn fixing_wraps_prose() {
    let dir = tree();
    put(&dir, "crates/a/src/c.rs", &format!("// {}\nstruct C;\n", "wide ".repeat(30)));
    put(&dir, "docs/page.md", &format!("{}\n", "wide ".repeat(30).trim_end()));
    assert_eq!(broken(&dir).len(), 2);
    tidy::fix(&Workspace::at(dir.path())).expect("files that can be written");
    assert_eq!(broken(&dir), []);
}
