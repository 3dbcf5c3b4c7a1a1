//! Checks over the dependency graph.

use std::collections::{BTreeMap, BTreeSet};

use super::{Verdict, verdict};
use crate::metadata::Graph;

/// No member in `from` reaches a package in `to`.
pub(super) fn no_dep(graph: &Graph, from: &[String], to: &[String]) -> Verdict {
    let mut violations = missing_members(graph, from);
    if from.is_empty() || to.is_empty() {
        violations.push("`from` and `to` must not be empty".to_owned());
    }
    for (from, to) in from.iter().flat_map(|from| to.iter().map(move |to| (from, to))) {
        if let Some(path) = graph.path(from, to) {
            violations.push(path.join(" -> "));
        }
    }
    verdict(violations, format!("{} packages", from.len()))
}

/// The direct dependencies of `package` are in `allowed`.
pub(super) fn only_deps(graph: &Graph, package: &str, allowed: &[String]) -> Verdict {
    let Some(direct) = graph.direct(package) else {
        return Err(vec![format!("the workspace has no package `{package}`")]);
    };
    let extra = direct.iter().filter(|name| !allowed.iter().any(|other| other == *name));
    let violations = extra.map(|name| format!("{package} -> {name}")).collect();
    verdict(violations, format!("{} dependencies", direct.len()))
}

/// Members depend only on members of lower layers; of `side`, each only on those before it and on
/// layers.
pub(super) fn layers(graph: &Graph, layers: &[Vec<String>], side: &[String]) -> Verdict {
    let named: Vec<String> = layers.iter().flatten().chain(side).cloned().collect();
    let mut violations = missing_members(graph, &named);
    // Each side package is a layer of its own above everything else.
    let mut level: BTreeMap<&str, usize> = BTreeMap::new();
    let alone = side.iter().map(std::slice::from_ref);
    for (i, layer) in layers.iter().map(Vec::as_slice).chain(alone).enumerate() {
        for name in layer {
            if level.insert(name, i).is_some() {
                violations.push(format!("{name} is named in two layers"));
            }
        }
    }
    let members: BTreeSet<&str> = graph.members().map(|package| package.name.as_str()).collect();
    for member in &members {
        let Some(from) = level.get(member) else {
            violations.push(format!("{member} is in no layer"));
            continue;
        };
        for dependency in graph.direct(member).into_iter().flatten().filter(|name| members.contains(name)) {
            if level.get(dependency).is_none_or(|to| to >= from) {
                violations.push(format!("{member} -> {dependency}: not in a lower layer"));
            }
        }
    }
    if layers.len() < 2 {
        violations.push("fewer than two layers order nothing".to_owned());
    }
    verdict(violations, format!("{} packages in {} layers", members.len(), layers.len()))
}

fn missing_members(graph: &Graph, names: &[String]) -> Vec<String> {
    let missing = names.iter().filter(|name| graph.member(name).is_none());
    missing.map(|name| format!("the workspace has no package `{name}`")).collect()
}
