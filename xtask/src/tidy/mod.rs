//! `cargo xtask tidy`: checks the tree against the form described in CONTRIBUTING.

mod functions;
mod graph;
mod imports;
mod lexer;
mod prose;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;

use graph::FileGraph;
use lexer::{Kind, Token};

use crate::workspace::PathPatterns;
use crate::{Error, Result, Workspace};

/// Exclusive limit of lines per file.
const FILE_LINES: usize = 600;

/// Exclusive limit of lines per function, from `fn` to the closing brace.
const FUNCTION_LINES: usize = 80;

/// Files that only list items of a crate; their uses are ignored in cycles.
///
/// `kernels.rs` is the one dispatch table. It names the body of every operation, and every
/// operation is a method of the type that holds the table. That puts every file into one cycle,
/// which hides all others and which no move of code can break.
const TABLES: [&str; 1] = ["crates/kernels/src/kernels.rs"];

/// Markers of unfinished work; split, so that this file does not match.
const MARKERS: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

/// A rule of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// Files below `FILE_LINES`.
    Files,
    /// Functions below `FUNCTION_LINES`.
    Functions,
    /// Prose within `prose::MAX_COLUMNS`.
    Prose,
    /// Comments of Rust source begin with a noun or a verb, not with a clause.
    Openings,
    /// No marker of unfinished work.
    Markers,
    /// Every package has a README.md that its manifest names.
    Readme,
    /// Modules with submodules are `x/mod.rs`, not `x.rs` beside `x/`.
    Modules,
    /// No cycles between files of one crate.
    Cycles,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Files => "files",
            Self::Functions => "functions",
            Self::Prose => "prose",
            Self::Openings => "openings",
            Self::Markers => "markers",
            Self::Readme => "readme",
            Self::Modules => "modules",
            Self::Cycles => "cycles",
        })
    }
}

/// Checks every rule and prints each violation.
///
/// # Errors
/// [`Error::Untidy`] if a rule is broken, other errors if files cannot be read.
pub fn check(workspace: &Workspace) -> Result<()> {
    let violations = violations(workspace)?;
    for (rule, violation) in &violations {
        println!("{rule}: {violation}");
    }
    match violations.len() {
        0 => Ok(()),
        count => Err(Error::Untidy { count }),
    }
}

/// All violations of all rules, in order of files.
///
/// # Errors
/// When a file or a manifest cannot be read.
pub fn violations(workspace: &Workspace) -> Result<Vec<(Rule, String)>> {
    let files = workspace.files()?;
    let mut found = Vec::new();
    for path in files.iter().filter(|path| is_text(path)) {
        let text = workspace.read(path)?;
        let mut add = |rule, line: usize, what: String| found.push((rule, format!("{path}:{line}: {what}")));
        for line in prose::wide_lines(path, &text) {
            add(Rule::Prose, line, format!("more than {} columns", prose::MAX_COLUMNS));
        }
        for (line, marker) in markers(path, &text) {
            add(Rule::Markers, line, marker.to_owned());
        }
        if path.ends_with(".md") {
            continue;
        }
        let lines = text.lines().count();
        if lines >= FILE_LINES {
            add(Rule::Files, lines, format!("{lines} lines, below {FILE_LINES} are wanted"));
        }
        if path.ends_with(".rs") {
            for (line, word) in prose::clause_openings(&text) {
                add(Rule::Openings, line, format!("begins with `{word}`; begin with a noun or a verb"));
            }
            let tokens = lexer::tokens(&text);
            for function in functions::functions(&tokens).iter().filter(|f| f.lines >= FUNCTION_LINES) {
                let what = format!(
                    "`{}` has {} lines, below {FUNCTION_LINES} are wanted",
                    function.name, function.lines
                );
                add(Rule::Functions, function.line, what);
            }
        }
    }
    found.extend(readmes(workspace, &files)?);
    found.extend(split_modules(&files));
    for (name, graph) in graphs(workspace, &files)? {
        let cycles = graph.cycles();
        found.extend(cycles.iter().map(|group| (Rule::Cycles, format!("{name}: {}", shown(&graph, group)))));
    }
    Ok(found)
}

/// Wraps prose that is too wide and prints the number of changed files.
///
/// # Errors
/// When a file cannot be read or written.
pub fn fix(workspace: &Workspace) -> Result<()> {
    let mut changed = 0;
    let is_prose = |path: &&String| is_text(path) && (path.ends_with(".rs") || path.ends_with(".md"));
    for path in workspace.files()?.iter().filter(is_prose) {
        let text = workspace.read(path)?;
        let wrapped = prose::wrapped(path, &text);
        if wrapped != text {
            let file = workspace.path(path);
            fs::write(&file, wrapped).map_err(Error::io("write", file))?;
            changed += 1;
        }
    }
    println!("{changed} files changed");
    Ok(())
}

/// Prints files, lines and cycles of each crate.
///
/// # Errors
/// When a file cannot be read.
pub fn print_graph(workspace: &Workspace) -> Result<()> {
    let files = workspace.files()?;
    println!("| crate | files | lines | cycles | files in cycles |\n|---|---:|---:|---:|---:|");
    let mut lists = Vec::new();
    for (name, graph) in graphs(workspace, &files)? {
        let folder = format!("{name}/src/");
        let mut lines = 0;
        for path in files.iter().filter(|path| path.starts_with(&folder) && path.ends_with(".rs")) {
            lines += workspace.read(path)?.lines().count();
        }
        let cycles = graph.cycles();
        let in_cycles: usize = cycles.iter().map(Vec::len).sum();
        println!("| {name} | {} | {lines} | {} | {in_cycles} |", graph.len(), cycles.len());
        lists.extend(cycles.iter().map(|group| format!("{name}: {}", shown(&graph, group))));
    }
    println!();
    lists.iter().for_each(|list| println!("{list}"));
    Ok(())
}

/// Text of a cycle: its files, and for small cycles the uses.
fn shown(graph: &FileGraph, group: &[usize]) -> String {
    let names: Vec<String> = group.iter().map(|file| graph.name(*file)).collect();
    let edges: Vec<String> = graph
        .edges_within(group)
        .map(|(from, to)| format!("{} -> {}", graph.name(from), graph.name(to)))
        .collect();
    if edges.len() <= 8 { edges.join(", ") } else { format!("{} files: {}", names.len(), names.join(", ")) }
}

/// True for source, scripts, manifests and Markdown; false for test data, except Markdown, and for
/// generated code.
fn is_text(path: &str) -> bool {
    let is_data = ["/tests/data/", "/generated/"].iter().any(|folder| path.contains(folder))
        || path.starts_with("fuzz/corpus/");
    let is_source = [".rs", ".py", ".toml"].iter().any(|end| path.ends_with(end)) || path == ".ci/run";
    path.ends_with(".md") || (is_source && !is_data)
}

/// Markers of unfinished work in comments and pages, with their lines.
fn markers(path: &str, text: &str) -> Vec<(usize, &'static str)> {
    let has = |line: &str| {
        let mut words = line.split(|c: char| !c.is_alphanumeric());
        words.find_map(|word| MARKERS.into_iter().find(|marker| *marker == word))
    };
    if path.ends_with(".rs") {
        let comments = lexer::tokens(text).into_iter().filter_map(|Token { line, kind }| match kind {
            Kind::Comment(comment) => Some((line, has(comment)?)),
            _ => None,
        });
        comments.collect()
    } else {
        (1..).zip(text.lines()).filter_map(|(line, words)| Some((line, has(words)?))).collect()
    }
}

/// Packages without a README.md or whose manifest does not name it.
fn readmes(workspace: &Workspace, files: &[String]) -> Result<Vec<(Rule, String)>> {
    let mut found = Vec::new();
    for manifest in files.iter().filter(|path| path.ends_with("/Cargo.toml")) {
        let text = workspace.read(manifest)?;
        if !text.lines().any(|line| line == "[package]") {
            continue;
        }
        let readme = manifest.replace("Cargo.toml", "README.md");
        if !files.contains(&readme) {
            found.push((Rule::Readme, format!("{readme} is missing")));
        }
        if !text.lines().any(|line| line == "readme = \"README.md\"") {
            found.push((Rule::Readme, format!("{manifest} has no line `readme = \"README.md\"`")));
        }
    }
    Ok(found)
}

/// Modules `x.rs` beside a folder `x/`.
fn split_modules(files: &[String]) -> Vec<(Rule, String)> {
    let has_folder = |path: &str| {
        let folder = path.replace(".rs", "/");
        files.iter().any(|other| other.starts_with(&folder) && other.ends_with(".rs"))
    };
    let split = files.iter().filter(|path| path.ends_with(".rs") && has_folder(path));
    split.map(|path| (Rule::Modules, format!("{path}: becomes {}", path.replace(".rs", "/mod.rs")))).collect()
}

/// The graph of each package of this workspace that has sources, by its folder.
fn graphs(workspace: &Workspace, files: &[String]) -> Result<Vec<(String, FileGraph)>> {
    let roots = PathPatterns::new(&["crates/*/src/lib.rs", "crates/*/src/main.rs", "*/src/lib.rs"]);
    let mut graphs: BTreeMap<String, FileGraph> = BTreeMap::new();
    for root in files.iter().filter(|path| roots.matches(path)) {
        let (folder, _) = root.split_once("/src/").expect("a root's path has the folder");
        if graphs.contains_key(folder) {
            continue;
        }
        let sources = format!("{folder}/src/");
        let (mut parts, mut tables) = (Vec::new(), Vec::new());
        for path in files.iter().filter(|path| path.starts_with(&sources) && path.ends_with(".rs")) {
            let inner = &path[sources.len()..];
            // A `main.rs` beside a library only calls it.
            let is_other_root = inner == "main.rs" && root.ends_with("lib.rs") || inner.starts_with("bin/");
            if is_other_root {
                continue;
            }
            let module = inner.trim_end_matches(".rs").split('/').filter(|part| *part != "mod");
            let module = if *path == *root { Vec::new() } else { module.map(str::to_owned).collect() };
            if TABLES.contains(&path.as_str()) {
                tables.push(module.clone());
            }
            let text = workspace.read(path)?;
            parts.push((module, imports::facts(&lexer::tokens(&text))));
        }
        let mut graph = FileGraph::new(parts);
        tables.iter().for_each(|table| graph.forget_uses(table));
        graphs.insert(folder.to_owned(), graph);
    }
    Ok(graphs.into_iter().collect())
}
