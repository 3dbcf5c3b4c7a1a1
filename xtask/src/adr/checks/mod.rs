//! Kinds of checks in a Conformance section.
//!
//! Every kind fails when its scope is empty: a pattern without files, a package that does not
//! exist, a filter without tests. Otherwise a rename would switch a rule off in silence.

mod dependencies;
mod sources;
mod test_names;

use std::cell::OnceCell;

use serde::Deserialize;

use super::Depth;
use crate::metadata::Graph;
use crate::test_binaries::{self, TestBinary};
use crate::{Result, Workspace};

/// Note on the scope, or each violation.
pub(super) type Verdict = Result<String, Vec<String>>;

/// One entry of a Conformance section.
#[derive(Debug)]
pub(super) struct Check {
    /// Unique within its record.
    pub(super) id: String,
    /// Condition to hold.
    pub(super) kind: Kind,
}

/// Condition of a check.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Kind {
    /// No package in `from` reaches a package in `to` over normal and build dependencies, however
    /// far.
    NoDep { from: Vec<String>, to: Vec<String> },
    /// The direct normal and build dependencies of `package` are all in `allowed`.
    OnlyDeps { package: String, allowed: Vec<String> },
    /// Every member is in one layer or in `side`; it depends directly only on members of lower
    /// layers; a member in `side` is above all layers and above those of `side` before it.
    Layers {
        layers: Vec<Vec<String>>,
        #[serde(default)]
        side: Vec<String>,
    },
    /// Every path exists.
    PathExists { paths: Vec<String> },
    /// Every file in scope has a line that matches. A pattern with alternatives would hold when all
    /// but one are gone.
    Match {
        pattern: String,
        paths: Vec<String>,
        #[serde(default)]
        except: Vec<String>,
    },
    /// No line of any file in scope matches; with `skip_comments`, lines that begin with `//` do
    /// not count. `example` is a line that the pattern finds.
    NoMatch {
        pattern: String,
        example: String,
        #[serde(default)]
        skip_comments: bool,
        paths: Vec<String>,
        #[serde(default)]
        except: Vec<String>,
    },
    /// The root files of these packages' libraries and binaries forbid unsafe code.
    ForbidsUnsafe { packages: Vec<String> },
    /// `const NAME: T = VALUE;` stands in `file`; underscores and spaces in the value do not count.
    Constant { file: String, name: String, value: String },
    /// No file in scope is longer than `max` lines.
    MaxLines {
        max: usize,
        paths: Vec<String>,
        #[serde(default)]
        except: Vec<String>,
    },
    /// At least `min_tests` tests of `package` have a name that contains `filter`, and all of
    /// `names` exist; in a full run they pass.
    Test {
        package: String,
        #[serde(default)]
        filter: Option<String>,
        #[serde(default)]
        min_tests: Option<usize>,
        #[serde(default)]
        names: Vec<String>,
    },
}

/// Files of the workspace by path patterns.
#[derive(Clone, Copy)]
struct FileScope<'a> {
    paths: &'a [String],
    except: &'a [String],
}

impl Kind {
    /// Runs the check. `Err` means it could not be run; a broken rule is a verdict.
    pub(super) fn run(&self, facts: &Facts<'_>) -> Result<Verdict> {
        match self {
            Self::NoDep { from, to } => Ok(dependencies::no_dep(facts.graph()?, from, to)),
            Self::OnlyDeps { package, allowed } => {
                Ok(dependencies::only_deps(facts.graph()?, package, allowed))
            }
            Self::Layers { layers, side } => Ok(dependencies::layers(facts.graph()?, layers, side)),
            Self::PathExists { paths } => Ok(sources::path_exists(facts, paths)),
            Self::Match { pattern, paths, except } => {
                sources::matches(facts, pattern, FileScope { paths, except })
            }
            Self::NoMatch { pattern, example, skip_comments, paths, except } => {
                sources::no_match(facts, pattern, example, *skip_comments, FileScope { paths, except })
            }
            Self::ForbidsUnsafe { packages } => sources::forbids_unsafe(facts, packages),
            Self::Constant { file, name, value } => Ok(sources::constant(facts, file, name, value)),
            Self::MaxLines { max, paths, except } => {
                sources::max_lines(facts, *max, FileScope { paths, except })
            }
            Self::Test { package, filter, min_tests, names } => {
                test_names::test(facts, package, filter.as_deref(), *min_tests, names)
            }
        }
    }
}

/// Inputs of checks, each computed once and only on demand.
pub(super) struct Facts<'a> {
    pub(super) workspace: &'a Workspace,
    depth: Depth,
    files: OnceCell<Vec<String>>,
    graph: OnceCell<Graph>,
    tests: OnceCell<Vec<TestBinary>>,
}

impl<'a> Facts<'a> {
    pub(super) fn new(workspace: &'a Workspace, depth: Depth) -> Self {
        Self { workspace, depth, files: OnceCell::new(), graph: OnceCell::new(), tests: OnceCell::new() }
    }

    pub(super) fn files(&self) -> Result<&[String]> {
        get_or_try(&self.files, || self.workspace.files()).map(Vec::as_slice)
    }

    fn graph(&self) -> Result<&Graph> {
        get_or_try(&self.graph, || Graph::load(self.workspace))
    }

    fn tests(&self) -> Result<&[TestBinary]> {
        get_or_try(&self.tests, || test_binaries::build(self.workspace, self.graph()?)).map(Vec::as_slice)
    }
}

/// Stable replacement of `OnceCell::get_or_try_init`.
fn get_or_try<T>(cell: &OnceCell<T>, init: impl FnOnce() -> Result<T>) -> Result<&T> {
    match cell.get() {
        Some(value) => Ok(value),
        None => init().map(|value| cell.get_or_init(|| value)),
    }
}

/// Verdict from violations and a note on the scope.
fn verdict(violations: Vec<String>, looked_at: String) -> Verdict {
    if violations.is_empty() { Ok(looked_at) } else { Err(violations) }
}
