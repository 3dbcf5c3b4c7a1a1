//! Dependency graph from `cargo metadata`: packages, edges, root files.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;

use serde::Deserialize;

use crate::process::CommandLine;
use crate::{Error, Result, Workspace};

/// The resolved graph of a workspace with default features.
///
/// Edges are normal and build dependencies; dev-dependencies do not reach users.
#[derive(Debug)]
pub struct Graph {
    packages: Vec<Package>,
    edges: Vec<Vec<usize>>,
    members: Vec<usize>,
}

/// One package of the graph.
#[derive(Debug)]
pub struct Package {
    /// The package's name.
    pub name: String,
    /// Cargo's identity of the package.
    pub id: String,
    /// The folder of its manifest.
    pub dir: PathBuf,
    /// The root files of its library and binaries.
    pub roots: Vec<PathBuf>,
}

#[derive(Deserialize)]
struct Document {
    packages: Vec<RawPackage>,
    workspace_members: Vec<String>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct RawPackage {
    name: String,
    id: String,
    manifest_path: PathBuf,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    src_path: PathBuf,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Deserialize)]
struct DependencyKind {
    /// `None` is a normal dependency.
    kind: Option<String>,
}

impl Graph {
    /// Loads the graph of `workspace` for this platform. The graph of all platforms would need
    /// packages that no build here has downloaded.
    ///
    /// # Errors
    /// If cargo or rustc fails or the output cannot be parsed.
    pub fn load(workspace: &Workspace) -> Result<Self> {
        let version = CommandLine::new("rustc", workspace.root()).args(["-vV"]);
        let version_text = version.output()?;
        let host = version_text.lines().find_map(|line| line.strip_prefix("host: ")).ok_or_else(|| {
            Error::MissingField { command: version.display(), field: "host line".to_owned() }
        })?;
        let command = CommandLine::cargo(workspace).args([
            "metadata",
            "--format-version",
            "1",
            "--filter-platform",
            host,
        ]);
        Self::parse(&command.output()?).map_err(|source| Error::Json { command: command.display(), source })
    }

    /// Parses the output of `cargo metadata --format-version 1`.
    ///
    /// # Errors
    /// If `json` is not such a document.
    pub fn parse(json: &str) -> Result<Self, serde_json::Error> {
        let document: Document = serde_json::from_str(json)?;
        let packages: Vec<Package> = document.packages.into_iter().map(Package::from).collect();
        let index: BTreeMap<&str, usize> =
            packages.iter().enumerate().map(|(i, package)| (package.id.as_str(), i)).collect();
        let mut edges = vec![Vec::new(); packages.len()];
        for node in &document.resolve.nodes {
            let Some(&from) = index.get(node.id.as_str()) else { continue };
            let shipped = node.deps.iter().filter(|dep| dep.dep_kinds.iter().any(DependencyKind::is_shipped));
            edges[from] = shipped.filter_map(|dep| index.get(dep.pkg.as_str()).copied()).collect();
        }
        let members = document.workspace_members.iter();
        let members = members.filter_map(|id| index.get(id.as_str()).copied()).collect();
        Ok(Self { packages, edges, members })
    }

    /// The packages of the workspace itself.
    pub fn members(&self) -> impl Iterator<Item = &Package> {
        self.members.iter().map(|&i| &self.packages[i])
    }

    /// The workspace's own package of this name.
    #[must_use]
    pub fn member(&self, name: &str) -> Option<&Package> {
        self.members().find(|package| package.name == name)
    }

    /// Names of the direct normal and build dependencies of a member; `None` if it does not exist.
    #[must_use]
    pub fn direct(&self, member: &str) -> Option<BTreeSet<&str>> {
        let from = self.index(member)?;
        Some(self.edges[from].iter().map(|&i| self.packages[i].name.as_str()).collect())
    }

    /// Names of all transitive dependencies of a member; `None` if it does not exist.
    #[must_use]
    pub fn reachable(&self, member: &str) -> Option<BTreeSet<&str>> {
        let start = self.index(member)?;
        let mut seen = BTreeSet::from([start]);
        let mut queue = vec![start];
        while let Some(at) = queue.pop() {
            queue.extend(self.edges[at].iter().copied().filter(|&next| seen.insert(next)));
        }
        seen.remove(&start);
        Some(seen.into_iter().map(|i| self.packages[i].name.as_str()).collect())
    }

    /// Shortest dependency path from a member to a package named `to`, if any.
    #[must_use]
    pub fn path(&self, member: &str, to: &str) -> Option<Vec<&str>> {
        let start = self.index(member)?;
        let mut came_from: BTreeMap<usize, usize> = BTreeMap::new();
        let mut queue = VecDeque::from([start]);
        while let Some(at) = queue.pop_front() {
            for &next in &self.edges[at] {
                if next == start || came_from.contains_key(&next) {
                    continue;
                }
                came_from.insert(next, at);
                if self.packages[next].name == to {
                    return Some(self.chain(start, next, &came_from));
                }
                queue.push_back(next);
            }
        }
        None
    }

    fn chain(&self, start: usize, end: usize, came_from: &BTreeMap<usize, usize>) -> Vec<&str> {
        let mut chain = vec![end];
        let mut at = end;
        while at != start {
            at = came_from[&at];
            chain.push(at);
        }
        chain.iter().rev().map(|&i| self.packages[i].name.as_str()).collect()
    }

    fn index(&self, member: &str) -> Option<usize> {
        self.members.iter().copied().find(|&i| self.packages[i].name == member)
    }
}

impl From<RawPackage> for Package {
    fn from(raw: RawPackage) -> Self {
        let is_root = |target: &Target| {
            target.kind.iter().any(|kind| matches!(kind.as_str(), "lib" | "bin" | "proc-macro"))
        };
        let roots = raw.targets.into_iter().filter(is_root).map(|target| target.src_path).collect();
        let dir = raw.manifest_path.parent().map(PathBuf::from).unwrap_or_default();
        Self { name: raw.name, id: raw.id, dir, roots }
    }
}

impl DependencyKind {
    fn is_shipped(&self) -> bool {
        self.kind.as_deref() != Some("dev")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `top` -> `middle` -> `bottom`, and `bottom` -(dev)-> `top`.
    fn sample() -> Graph {
        let package = |name: &str| {
            format!(
                r#"{{"name":"{name}","id":"{name}#1","manifest_path":"/w/{name}/Cargo.toml",
                    "targets":[{{"kind":["lib"],"src_path":"/w/{name}/src/lib.rs"}},
                               {{"kind":["test"],"src_path":"/w/{name}/tests/t.rs"}}]}}"#
            )
        };
        let node = |name: &str, to: &str, kind: &str| {
            format!(r#"{{"id":"{name}#1","deps":[{{"pkg":"{to}#1","dep_kinds":[{{"kind":{kind}}}]}}]}}"#)
        };
        let json = format!(
            r#"{{"packages":[{},{},{}],"workspace_members":["top#1","middle#1","bottom#1"],
                "resolve":{{"nodes":[{},{},{}]}}}}"#,
            package("top"),
            package("middle"),
            package("bottom"),
            node("top", "middle", "null"),
            node("middle", "bottom", "\"build\""),
            node("bottom", "top", "\"dev\""),
        );
        Graph::parse(&json).expect("a metadata document")
    }

    #[test]
    fn paths_follow_normal_and_build_edges_only() {
        let graph = sample();
        assert_eq!(graph.path("top", "bottom"), Some(vec!["top", "middle", "bottom"]));
        assert_eq!(graph.path("bottom", "top"), None, "a dev-dependency is no edge");
        assert_eq!(graph.path("absent", "top"), None);
        assert_eq!(graph.direct("top"), Some(BTreeSet::from(["middle"])));
        assert_eq!(graph.direct("absent"), None);
        assert_eq!(graph.reachable("top"), Some(BTreeSet::from(["middle", "bottom"])));
        assert_eq!(graph.reachable("bottom"), Some(BTreeSet::new()));
        assert_eq!(graph.reachable("absent"), None);
    }

    #[test]
    fn only_libraries_and_binaries_are_roots() {
        let graph = sample();
        assert_eq!(graph.member("top").expect("a member").roots, [PathBuf::from("/w/top/src/lib.rs")]);
        assert_eq!(graph.members().count(), 3);
    }
}
