//! Every kind of conformance check, on a workspace that conforms and on one that does not.
//!
//! The workspace: `low` (layer 0), `high` (layer 1, uses `low`), `tool` (a side package, uses
//! `high`).

use std::fs;
use std::path::Path;

use tempfile::TempDir;
use xtask::Workspace;
use xtask::adr::{self, Depth};

/// A workspace on disk with one decision record.
struct Sample {
    dir: TempDir,
}

impl Sample {
    fn new() -> Self {
        let sample = Self { dir: tempfile::tempdir().expect("a temporary folder") };
        sample.put("Cargo.toml", "[workspace]\nresolver = \"3\"\nmembers = [\"low\", \"high\", \"tool\"]\n");
        sample.package("low", "");
        sample.package("high", "low = { path = \"../low\" }\n");
        sample.package("tool", "high = { path = \"../high\" }\n");
        sample.put(
            "low/src/lib.rs",
            "#![forbid(unsafe_code)]\n\
             // An unsafe { word } in a comment.\n\
             /// Limit.\n\
             pub const LIMIT: usize = 4_096;\n\
             #[test]\n\
             fn limit_holds() {}\n",
        );
        sample.put("docs/adr/README.md", "<!-- index:begin -->\n<!-- index:end -->\n");
        sample
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
        fs::write(path, text).expect("a file");
    }

    fn package(&self, name: &str, dependencies: &str) {
        let manifest = format!(
            "[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[dependencies]\n{dependencies}"
        );
        self.put(&format!("{name}/Cargo.toml"), &manifest);
        self.put(&format!("{name}/src/lib.rs"), "#![forbid(unsafe_code)]\n");
    }

    fn record(&self, number: u32, status: &str, check: &str) {
        let conformance =
            if check.is_empty() { "None.\n".to_owned() } else { format!("```toml\n{check}\n```\n") };
        let text = format!(
            "---\nstatus: {status}\ndate: 2026-01-01\n---\n# ADR-{number:04}: A rule\n## Context\nc\n\
             ## Options\no\n## Decision\nd\n## Consequences\nq\n## Conformance\n{conformance}"
        );
        self.put(&format!("docs/adr/{number:04}-a-rule.md"), &text);
    }

    fn workspace(&self) -> Workspace {
        Workspace::at(self.dir.path())
    }

    /// All violations, after an update of the index.
    fn violations(&self, depth: Depth) -> Vec<String> {
        let workspace = self.workspace();
        adr::list(&workspace, true).expect("an index");
        let outcomes = adr::outcomes(&workspace, depth).expect("checks that can be run");
        outcomes.into_iter().filter_map(|outcome| outcome.result.err()).flatten().collect()
    }

    /// Asserts that the record's only check passes.
    #[track_caller]
    fn holds(&self, check: &str) {
        self.record(1, "accepted", &format!("[[check]]\nid = \"rule\"\n{check}"));
        let violations = self.violations(Depth::Full);
        assert!(violations.is_empty(), "{check}\n{violations:#?}");
    }

    /// Asserts that the record's only check fails with a violation that contains `expected`.
    #[track_caller]
    fn breaks(&self, check: &str, expected: &str) {
        self.record(1, "accepted", &format!("[[check]]\nid = \"rule\"\n{check}"));
        let violations = self.violations(Depth::Full);
        assert!(violations.iter().any(|line| line.contains(expected)), "{check}\n{violations:#?}");
    }
}

const LAYERS: &str = "kind = \"layers\"\nlayers = [[\"low\"], [\"high\"]]\nside = [\"tool\"]";

#[test]
fn layers() {
    let sample = Sample::new();
    sample.holds(LAYERS);
    sample.breaks("kind = \"layers\"\nlayers = [[\"low\"], [\"high\"]]", "tool is in no layer");
    sample.breaks("kind = \"layers\"\nlayers = [[\"low\", \"high\"], [\"tool\"]]", "high -> low");
    sample.breaks(&LAYERS.replace("\"low\"", "\"low\", \"gone\""), "no package `gone`");
    sample.breaks(&LAYERS.replace("\"high\"", "\"high\", \"low\""), "low is named in two layers");
}

#[test]
fn a_lower_layer_that_uses_an_upper_one_is_found() {
    let sample = Sample::new();
    sample.package("high", "");
    sample.package("low", "high = { path = \"../high\" }\n");
    sample.breaks(LAYERS, "low -> high: not in a lower layer");
    sample.breaks("kind = \"no-dep\"\nfrom = [\"low\"]\nto = [\"high\"]", "low -> high");
}

#[test]
fn nothing_depends_on_a_side_package() {
    let sample = Sample::new();
    sample.package("tool", "");
    sample.package("high", "low = { path = \"../low\" }\ntool = { path = \"../tool\" }\n");
    sample.breaks(LAYERS, "high -> tool");
    let both = "kind = \"layers\"\nlayers = [[\"low\"], []]\nside = [\"tool\", \"high\"]";
    sample.holds(both);
    sample.breaks(&both.replace("\"tool\", \"high\"", "\"high\", \"tool\""), "high -> tool");
}

#[test]
fn dev_dependencies_do_not_count() {
    let sample = Sample::new();
    sample.package("high", "[dev-dependencies]\nlow = { path = \"../low\" }\n");
    sample.holds("kind = \"no-dep\"\nfrom = [\"high\"]\nto = [\"low\"]");
}

#[test]
fn no_dep_is_transitive() {
    let sample = Sample::new();
    sample.holds("kind = \"no-dep\"\nfrom = [\"low\", \"high\"]\nto = [\"tool\", \"tokio\"]");
    sample.breaks("kind = \"no-dep\"\nfrom = [\"tool\"]\nto = [\"low\"]", "tool -> high -> low");
    sample.breaks("kind = \"no-dep\"\nfrom = [\"gone\"]\nto = [\"low\"]", "no package `gone`");
    sample.breaks("kind = \"no-dep\"\nfrom = []\nto = [\"low\"]", "must not be empty");
}

#[test]
fn only_deps() {
    let sample = Sample::new();
    sample.holds("kind = \"only-deps\"\npackage = \"high\"\nallowed = [\"low\"]");
    sample.breaks("kind = \"only-deps\"\npackage = \"high\"\nallowed = []", "high -> low");
    sample.breaks("kind = \"only-deps\"\npackage = \"gone\"\nallowed = []", "no package `gone`");
}

#[test]
fn path_exists() {
    let sample = Sample::new();
    sample.holds("kind = \"path-exists\"\npaths = [\"low/src\", \"Cargo.toml\"]");
    sample.breaks("kind = \"path-exists\"\npaths = [\"low/src/gone.rs\"]", "does not exist");
    sample.breaks("kind = \"path-exists\"\npaths = []", "must not be empty");
}

#[test]
fn match_wants_the_pattern_in_every_file() {
    let sample = Sample::new();
    sample.holds("kind = \"match\"\npattern = 'forbid\\(unsafe_code\\)'\npaths = [\"*/src/lib.rs\"]");
    sample.breaks(
        "kind = \"match\"\npattern = 'LIMIT'\npaths = [\"*/src/lib.rs\"]",
        "high/src/lib.rs: no line matches",
    );
    sample.breaks("kind = \"match\"\npattern = 'x'\npaths = [\"gone/**\"]", "matches no file");
    sample.breaks("kind = \"match\"\npattern = '('\npaths = [\"Cargo.toml\"]", "no regular expression");
}

#[test]
fn no_match_names_file_and_line() {
    let sample = Sample::new();
    let check = "kind = \"no-match\"\npattern = 'unsafe \\{'\nexample = 'unsafe { x }'\npaths = [\"*/src/**/*.rs\"]\n";
    sample.holds(&format!("{check}skip_comments = true"));
    sample.holds(&format!("{check}except = [\"low/**\"]"));
    sample.breaks(check, "low/src/lib.rs:2: ");
    sample.breaks(
        "kind = \"no-match\"\npattern = 'x'\nexample = 'x'\npaths = [\"*/src/*.py\"]",
        "matches no file",
    );
}

#[test]
fn a_pattern_that_finds_nothing_is_found() {
    let sample = Sample::new();
    sample.breaks(
        "kind = \"no-match\"\npattern = 'unsaef'\nexample = 'unsafe { x }'\npaths = [\"*/src/**/*.rs\"]",
        "does not find its example",
    );
}

#[test]
fn alternatives_are_checks_of_their_own() {
    let sample = Sample::new();
    let check =
        |pattern: &str| format!("kind = \"match\"\npattern = '{pattern}'\npaths = [\"low/src/lib.rs\"]");
    sample.breaks(&check("LIMIT|GONE"), "has alternatives");
    sample.holds(&check("LIMIT: usize"));
}

#[test]
fn a_decision_that_is_rewritten_is_found() {
    let sample = Sample::new();
    let check = "[[check]]\nid = \"rule\"\nkind = \"path-exists\"\npaths = [\"Cargo.toml\"]";
    sample.record(1, "accepted", check);
    assert!(sample.violations(Depth::Fast).is_empty());
    let file = "docs/adr/0001-a-rule.md";
    let text = sample.workspace().read(file).expect("the record");
    sample.put(file, &text.replace("## Decision\nd\n", "## Decision\n\nd\n"));
    assert!(sample.violations(Depth::Fast).is_empty(), "line breaks do not count");
    sample.put(file, &text.replace("## Decision\nd\n", "## Decision\nanother\n"));
    assert!(sample.violations(Depth::Fast)[0].contains("write a record that supersedes it"));
    fs::remove_file(sample.dir.path().join(file)).expect("a removal");
    sample.record(2, "accepted", check);
    assert!(sample.violations(Depth::Fast)[0].contains("there is no such decision"));
}

#[test]
fn forbids_unsafe() {
    let sample = Sample::new();
    sample.holds("kind = \"forbids-unsafe\"\npackages = [\"low\", \"high\"]");
    sample.put("high/src/lib.rs", "//! No attribute.\n");
    sample.breaks("kind = \"forbids-unsafe\"\npackages = [\"low\", \"high\"]", "no #![forbid(unsafe_code)]");
    sample.breaks("kind = \"forbids-unsafe\"\npackages = []", "no root file");
}

#[test]
fn constant() {
    let sample = Sample::new();
    let check = |name: &str, value: &str| {
        format!("kind = \"constant\"\nfile = \"low/src/lib.rs\"\nname = \"{name}\"\nvalue = \"{value}\"")
    };
    sample.holds(&check("LIMIT", "4096"));
    sample.breaks(&check("LIMIT", "8192"), "LIMIT is 4096, 8192 is decided");
    sample.breaks(&check("OTHER", "1"), "has no constant OTHER");
    sample.breaks(&check("LIMIT", "4096").replace("lib.rs", "gone.rs"), "cannot read");
}

#[test]
fn max_lines() {
    let sample = Sample::new();
    sample.holds("kind = \"max-lines\"\nmax = 6\npaths = [\"*/src/**/*.rs\"]");
    sample.breaks(
        "kind = \"max-lines\"\nmax = 5\npaths = [\"*/src/**/*.rs\"]",
        "low/src/lib.rs: 6 lines, at most 5",
    );
}

#[test]
fn named_tests_exist_and_pass() {
    let sample = Sample::new();
    sample.holds("kind = \"test\"\npackage = \"low\"\nfilter = \"limit\"");
    sample.holds("kind = \"test\"\npackage = \"low\"\nnames = [\"limit_holds\"]");
    sample.breaks("kind = \"test\"\npackage = \"low\"\nfilter = \"limit\"\nmin_tests = 2", "1 tests contain");
    sample.breaks("kind = \"test\"\npackage = \"low\"\nnames = [\"limit\"]", "no test `limit`");
    sample.breaks("kind = \"test\"\npackage = \"gone\"\nfilter = \"limit\"", "0 tests contain");
    sample.breaks("kind = \"test\"\npackage = \"low\"", "needs `filter` or `names`");

    sample.put("low/src/lib.rs", "#[test]\nfn limit_holds() { panic!() }\n");
    sample.breaks("kind = \"test\"\npackage = \"low\"\nfilter = \"limit\"", "tests of low fail");
    assert!(sample.violations(Depth::Fast).is_empty(), "a fast run does not run tests");
}

#[test]
fn an_accepted_record_needs_a_check() {
    let sample = Sample::new();
    sample.record(1, "proposed", "");
    assert!(sample.violations(Depth::Fast).is_empty());
    sample.record(1, "accepted", "");
    assert!(sample.violations(Depth::Fast)[0].contains("at least one [[check]]"));
}

#[test]
fn code_refers_to_records_in_force() {
    let sample = Sample::new();
    let check = "[[check]]\nid = \"rule\"\nkind = \"path-exists\"\npaths = [\"Cargo.toml\"]";
    sample.record(1, "accepted", check);
    sample.put("crates/x/src/lib.rs", "// See ADR-0001.\n");
    assert!(sample.violations(Depth::Fast).is_empty());
    sample.put("crates/x/src/lib.rs", "\n// See ADR-0002.\n");
    assert_eq!(sample.violations(Depth::Fast), ["crates/x/src/lib.rs:2: ADR-0002 does not exist"]);
    sample.record(2, "superseded by ADR-0001", "");
    assert_eq!(sample.violations(Depth::Fast), ["crates/x/src/lib.rs:2: ADR-0002 is superseded by ADR-0001"]);
    sample.put("crates/x/src/lib.rs", "");
    sample.record(2, "superseded by ADR-0003", "");
    assert!(sample.violations(Depth::Fast)[0].contains("which is not accepted"));
}

#[test]
fn new_records_come_from_the_template_and_into_the_index() {
    let sample = Sample::new();
    let workspace = sample.workspace();
    let template = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/adr/template.md"))
        .expect("the project's template");
    sample.put("docs/adr/template.md", &template);
    let file = adr::new(&workspace, "KV tiers: hot & warm", "2026-02-03").expect("a record");
    assert_eq!(file, "docs/adr/0001-kv-tiers-hot-warm.md");
    let second = adr::new(&workspace, "Another", "2026-02-03").expect("a record");
    assert_eq!(second, "docs/adr/0002-another.md");
    let index = workspace.read("docs/adr/README.md").expect("the index");
    assert!(index.contains("| [ADR-0001](0001-kv-tiers-hot-warm.md) | proposed | KV tiers: hot & warm |"));
    assert!(sample.violations(Depth::Fast).is_empty());

    sample.put("docs/adr/README.md", "<!-- index:begin -->\nstale\n<!-- index:end -->\n");
    let outcomes = adr::outcomes(&workspace, Depth::Fast).expect("checks");
    assert!(outcomes.iter().any(|outcome| outcome.result.is_err()), "a stale index is found");
}

#[test]
fn a_malformed_record_is_a_violation() {
    let sample = Sample::new();
    sample.put("docs/adr/0001-a-rule.md", "# ADR-0001: No front matter\n");
    let outcomes = adr::outcomes(&sample.workspace(), Depth::Fast).expect("checks");
    assert!(outcomes.iter().any(|outcome| outcome.label == "0001-a-rule.md" && outcome.result.is_err()));
}
