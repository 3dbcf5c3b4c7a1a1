//! Imports between the files of one crate, and the cycles among them.
//!
//! A file depends on another one if it names something that is defined there; a name that is
//! re-exported on the way leads to where it is defined. Macros and methods are not looked through.

use std::collections::{BTreeMap, BTreeSet};

use super::imports::{FileFacts, Import};

/// Files of one crate and their uses of one another.
#[derive(Debug)]
pub(super) struct FileGraph {
    /// Path from the root of the crate's sources without `.rs` and `/mod`, such as `["matmul",
    /// "panel"]`.
    modules: Vec<Vec<String>>,
    facts: Vec<FileFacts>,
    index: BTreeMap<Vec<String>, usize>,
    /// Per file: the files it uses.
    edges: Vec<BTreeSet<usize>>,
}

/// Maximum number of re-exports that are followed.
const MAX_HOPS: usize = 16;

impl FileGraph {
    /// Graph of `files`, each with its module path (empty for the root).
    pub(super) fn new(files: impl IntoIterator<Item = (Vec<String>, FileFacts)>) -> Self {
        let (modules, facts): (Vec<_>, Vec<_>) = files.into_iter().unzip();
        // Test modules have no declaration, because tests are left out.
        let index: BTreeMap<Vec<String>, usize> =
            modules.iter().cloned().enumerate().map(|(i, module)| (module, i)).collect();
        let mut graph = Self { edges: vec![BTreeSet::new(); facts.len()], modules, facts, index };
        for file in 0..graph.facts.len() {
            let imports = graph.facts[file].imports.iter().map(|import| &import.path);
            let paths = imports.chain(&graph.facts[file].mentions);
            let targets = paths.filter_map(|path| graph.target(file, path, 0));
            graph.edges[file] = targets.filter(|target| *target != file && graph.is_declared(file)).collect();
        }
        graph
    }

    /// Removes the uses by a file; uses of it stay.
    pub(super) fn forget_uses(&mut self, module: &[String]) {
        if let Some(file) = self.index.get(module) {
            self.edges[*file].clear();
        }
    }

    /// Number of files.
    pub(super) fn len(&self) -> usize {
        self.facts.len()
    }

    /// Display name of a file: `crate` or `a::b`.
    pub(super) fn name(&self, file: usize) -> String {
        if self.modules[file].is_empty() { "crate".to_owned() } else { self.modules[file].join("::") }
    }

    /// Groups of files that use one another, each sorted; a folder's own module file is taken out
    /// first.
    ///
    /// A module file and the submodules of its folder are one concept: the type is in one, parts of
    /// its implementation are in the others. So of a group below one of its files, that file is
    /// taken out and the rest is looked at again. What remains are cycles between files of
    /// different concepts.
    pub(super) fn cycles(&self) -> Vec<Vec<usize>> {
        let mut found = Vec::new();
        let mut pending = self.components(&(0..self.facts.len()).collect());
        while let Some(group) = pending.pop() {
            let head =
                group.iter().copied().find(|head| group.iter().all(|file| self.is_below(*file, *head)));
            match head {
                Some(head) => {
                    let rest = group.into_iter().filter(|file| *file != head).collect();
                    pending.extend(self.components(&rest));
                }
                None => found.push(group.into_iter().collect()),
            }
        }
        found.sort();
        found
    }

    /// Edges within a group of files.
    pub(super) fn edges_within<'g>(
        &'g self,
        group: &'g [usize],
    ) -> impl Iterator<Item = (usize, usize)> + 'g {
        let uses = |file: &usize| self.edges[*file].iter().map(|to| (*file, *to)).collect::<Vec<_>>();
        group.iter().flat_map(uses).filter(|(_, to)| group.contains(to))
    }

    /// True if `mod` declarations outside of tests lead from the root to the file.
    fn is_declared(&self, file: usize) -> bool {
        let Some((name, above)) = self.modules[file].split_last() else { return true };
        let parent = self.index.get(above);
        parent.is_some_and(|parent| self.facts[*parent].children.contains(name) && self.is_declared(*parent))
    }

    fn is_below(&self, file: usize, head: usize) -> bool {
        self.modules[file].starts_with(&self.modules[head])
    }

    /// File that `path`, as written in `file`, resolves to.
    fn target(&self, file: usize, path: &[String], hops: usize) -> Option<usize> {
        let (first, rest) = path.split_first()?;
        let here = &self.modules[file];
        match first.as_str() {
            "crate" => self.walk(*self.index.get(&Vec::new())?, rest, hops),
            "self" => self.walk(file, rest, hops),
            "super" => {
                let above = here.get(..here.len().checked_sub(1)?)?;
                let mut parent = *self.index.get(above)?;
                let mut rest = rest;
                while let Some((word, tail)) = rest.split_first()
                    && word == "super"
                {
                    let module = &self.modules[parent];
                    parent = *self.index.get(module.get(..module.len().checked_sub(1)?)?)?;
                    rest = tail;
                }
                self.walk(parent, rest, hops)
            }
            // A child module, or an imported module.
            name => {
                let is_child = self.facts[file].children.contains(name);
                let is_imported = self.facts[file].imports.iter().any(|import| import.name == name);
                // Imports from other crates resolve to no file.
                (is_child || (is_imported && hops < MAX_HOPS && path.len() > 1))
                    .then(|| self.walk(file, path, hops))
                    .flatten()
            }
        }
    }

    /// Resolves names from a module's file.
    fn walk(&self, file: usize, names: &[String], hops: usize) -> Option<usize> {
        let Some((name, rest)) = names.split_first() else { return Some(file) };
        let facts = &self.facts[file];
        if facts.children.contains(name) {
            let mut module = self.modules[file].clone();
            module.push(name.clone());
            return self.index.get(&module).and_then(|child| self.walk(*child, rest, hops)).or(Some(file));
        }
        if facts.items.contains(name) || hops >= MAX_HOPS {
            return Some(file);
        }
        let named = facts.imports.iter().find(|import| import.name == *name);
        if let Some(Import { path, .. }) = named {
            // A re-exported name of another crate: its users depend on this file only.
            let joined: Vec<String> = path.iter().chain(rest).cloned().collect();
            let is_itself = joined == names;
            return if is_itself { Some(file) } else { self.target(file, &joined, hops + 1).or(Some(file)) };
        }
        let globs = facts.imports.iter().filter(|import| import.name == "*");
        let through_globs = globs.filter_map(|glob| {
            let module = self.target(file, &glob.path, hops + 1)?;
            (module != file && self.defines(module, name))
                .then(|| self.walk(module, names, hops + 1))
                .flatten()
        });
        through_globs.into_iter().next().or(Some(file))
    }

    fn defines(&self, file: usize, name: &str) -> bool {
        let facts = &self.facts[file];
        facts.items.contains(name)
            || facts.children.contains(name)
            || facts.imports.iter().any(|import| import.name == name)
    }

    /// Strongly connected components of two or more of these files.
    fn components(&self, files: &BTreeSet<usize>) -> Vec<BTreeSet<usize>> {
        let reach: BTreeMap<usize, BTreeSet<usize>> =
            files.iter().map(|file| (*file, self.reachable(*file, files))).collect();
        let mut found: Vec<BTreeSet<usize>> = Vec::new();
        for file in files {
            if found.iter().any(|group| group.contains(file)) {
                continue;
            }
            let group: BTreeSet<usize> =
                reach[file].iter().copied().filter(|other| reach[other].contains(file)).collect();
            if group.len() > 1 {
                found.push(group);
            }
        }
        found
    }

    /// Files reachable from `start` within `files`; includes `start` if it is in a cycle.
    fn reachable(&self, start: usize, files: &BTreeSet<usize>) -> BTreeSet<usize> {
        let mut seen = BTreeSet::new();
        let mut pending = vec![start];
        while let Some(file) = pending.pop() {
            for to in self.edges[file].intersection(files) {
                if seen.insert(*to) {
                    pending.push(*to);
                }
            }
        }
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::super::{imports, lexer};
    use super::*;

    fn graph(files: &[(&str, &str)]) -> FileGraph {
        FileGraph::new(files.iter().map(|(module, source)| {
            let module = module.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
            (module, imports::facts(&lexer::tokens(source)))
        }))
    }

    /// Cycles of a crate, names joined by spaces.
    fn cycles(files: &[(&str, &str)]) -> Vec<String> {
        names(&graph(files))
    }

    fn names(graph: &FileGraph) -> Vec<String> {
        let name =
            |group: Vec<usize>| group.into_iter().map(|file| graph.name(file)).collect::<Vec<_>>().join(" ");
        graph.cycles().into_iter().map(name).collect()
    }

    #[test]
    fn two_files_that_use_each_other_are_a_cycle() {
        let root = "mod a; mod b; pub use a::A; pub use b::B;";
        let one_way = [("", root), ("a", "use crate::B; pub struct A(B);"), ("b", "pub struct B;")];
        assert!(cycles(&one_way).is_empty());
        let both = [("", root), ("a", "use crate::B; pub struct A(B);"), ("b", "pub struct B(super::A);")];
        assert_eq!(cycles(&both), ["a b"]);
    }

    #[test]
    fn names_lead_to_where_they_are_defined() {
        // Without the re-export in `a`, `c` and `a` would be a cycle.
        let root = "mod a; mod c; use a::Deep;";
        let a = "mod deep; mod user; pub use deep::Deep;";
        let user = "use crate::c::C;";
        let files = [
            ("", root),
            ("a", a),
            ("a/deep", "pub struct Deep;"),
            ("a/user", user),
            ("c", "use crate::Deep; pub struct C(Deep);"),
        ];
        assert!(cycles(&files).is_empty());
        let mut globs = files;
        globs[1].1 = "mod deep; mod user; pub use deep::*;";
        assert!(cycles(&globs).is_empty());
        let mut own = files;
        own[1].1 = "mod user; pub struct Deep; use user::u;";
        assert_eq!(cycles(&own), ["a a::user c"]);
    }

    #[test]
    fn a_module_and_its_own_submodules_are_one_concept() {
        let root = "mod a; mod b;";
        let a = "mod x; mod y; pub struct A; fn f() { x::g(); y::g(); }";
        let files = [("", root), ("a", a), ("a/x", "use super::A;"), ("a/y", "use super::A;"), ("b", "")];
        assert!(cycles(&files).is_empty());
        let mut siblings = files;
        siblings[2].1 = "use super::{A, y::h}; fn g() {}";
        siblings[3].1 = "use super::A; fn h() { super::x::g() }";
        assert_eq!(cycles(&siblings), ["a::x a::y"]);
    }

    #[test]
    fn the_uses_of_a_table_make_no_cycle() {
        let table = "use crate::a::f; pub struct T; fn g() { f() }";
        let files =
            [("", "mod a; mod table;"), ("a", "use crate::table::T; pub fn f() {}"), ("table", table)];
        let mut table = graph(&files);
        assert_eq!(names(&table), ["a table"]);
        table.forget_uses(&["table".to_owned()]);
        assert!(names(&table).is_empty());
    }

    #[test]
    fn tests_may_use_anything() {
        let a = "#[cfg(test)]\nmod tests { use crate::b::B; }";
        assert!(cycles(&[("", "mod a; mod b;"), ("a", a), ("b", "use crate::a::A;")]).is_empty());
        let files = [
            ("", "#[cfg(test)]\nmod tests;"),
            ("tests", "mod x; mod y;"),
            ("tests/x", "use super::y::Y; pub struct X;"),
            ("tests/y", "use super::x::X; pub struct Y;"),
        ];
        assert!(cycles(&files).is_empty());
    }
}
