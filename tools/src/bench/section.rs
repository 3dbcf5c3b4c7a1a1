//! Generated sections of the pages in `docs/`, between two markers.

use std::fs;

use xtask::Workspace;

use super::machine::Machine;
use crate::{Error, Result};

/// Folder of the measurements of speed, one page per machine.
const PERFORMANCE: &str = "docs/performance";

/// Writes `block` into section `name` of the page of `machine`: the page with its processor in a
/// line `<!-- machine: CPU -->`. Creates a missing page.
///
/// # Errors
/// As [`record`]; if the folder cannot be read.
pub(super) fn record_speed(workspace: &Workspace, machine: &Machine, name: &str, block: &str) -> Result<()> {
    let marker = format!("<!-- machine: {} -->", machine.cpu_name());
    let folder = workspace.path(PERFORMANCE);
    let mut pages = Vec::new();
    for entry in fs::read_dir(&folder).map_err(Error::io("read", &folder))? {
        let entry = entry.map_err(Error::io("read", &folder))?;
        pages.push(format!("{PERFORMANCE}/{}", entry.file_name().to_string_lossy()));
    }
    pages.sort();
    for page in pages.iter().filter(|page| page.ends_with(".md")) {
        if workspace.read(page)?.lines().any(|line| line == marker) {
            return record(workspace, page, name, block);
        }
    }
    let page = format!("{PERFORMANCE}/{}.md", slug(machine.cpu_name()));
    let (begin, end) = (format!("<!-- bench:{name}:begin -->"), format!("<!-- bench:{name}:end -->"));
    let text = format!(
        "# {}\n\n{marker}\n\nMethod and summary: [performance.md](../performance.md).\n\n## {}\n\n{begin}\n{block}{end}\n",
        machine.cpu_name(),
        name.replace('-', " ")
    );
    let path = workspace.path(&page);
    fs::write(&path, text).map_err(Error::io("write", path))?;
    println!("recorded in the new page {page}; docs/performance.md has no line for it yet");
    Ok(())
}

/// A processor's name as a file name: `Intel(R) Xeon(R)` is `intel-r-xeon-r`.
fn slug(name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_ascii_lowercase).collect::<Vec<_>>().join("-")
}

/// Writes `block` between the markers of section `name` of a page. A missing section is added after
/// the last one.
///
/// # Errors
/// [`Error::NoMarker`] if the document has no section at all or only half of this one;
/// [`Error::Io`].
pub(crate) fn record(workspace: &Workspace, page: &str, name: &str, block: &str) -> Result<()> {
    let path = workspace.path(page);
    let text = workspace.read(page)?;
    let new = replaced(&text, name, block)
        .ok_or_else(|| Error::NoMarker { path: path.clone(), marker: format!("bench:{name}") })?;
    fs::write(&path, new).map_err(Error::io("write", path))?;
    println!("recorded in {page}, section {name}");
    Ok(())
}

/// Content of section `name` of a page.
///
/// # Errors
/// [`Error::NoMarker`], [`Error::Io`].
pub(super) fn recorded(workspace: &Workspace, page: &str, name: &str) -> Result<String> {
    let text = workspace.read(page)?;
    let [begin, end] = ["begin", "end"].map(|side| format!("<!-- bench:{name}:{side} -->"));
    let section = text.split_once(&format!("{begin}\n")).and_then(|(_, rest)| rest.split_once(&end));
    let (section, _) = section
        .ok_or_else(|| Error::NoMarker { path: workspace.path(page), marker: format!("bench:{name}") })?;
    Ok(section.to_owned())
}

/// Parses a section's name: lower-case letters, digits, dashes and underscores.
pub(super) fn parse_name(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
    if !text.is_empty() && text.chars().all(is_plain) {
        Ok(text.to_owned())
    } else {
        Err("a section's name is made of lower-case letters, digits, dashes and underscores".to_owned())
    }
}

/// Command line of this program without folders, so that it can be repeated anywhere.
pub(crate) fn this_command() -> String {
    let words = std::env::args().skip(1).map(|word| without_folders(&word));
    std::iter::once("cargo xtask".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

/// `NAME=/a/b/c` becomes `NAME=c`, `/a/b.gguf` becomes `b.gguf`.
fn without_folders(word: &str) -> String {
    let (name, path) = word.split_once('=').map_or(("", word), |(name, path)| (name, path));
    let file = path.rsplit('/').next().unwrap_or(path);
    if name.is_empty() { file.to_owned() } else { format!("{name}={file}") }
}

fn replaced(text: &str, name: &str, block: &str) -> Option<String> {
    let (begin, end) = (format!("<!-- bench:{name}:begin -->\n"), format!("<!-- bench:{name}:end -->"));
    if let Some(at) = text.find(&begin) {
        let start = at + begin.len();
        let stop = start + text[start..].find(&end)?;
        return Some(format!("{}{block}{}", &text[..start], &text[stop..]));
    }
    if text.contains(&end) {
        return None;
    }
    const ANY_END: &str = ":end -->\n";
    let last = text.rfind(ANY_END)? + ANY_END.len();
    let title = name.replace('-', " ");
    Some(format!("{}\n### {title}\n\n{begin}{block}{end}\n{}", &text[..last], &text[last..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "head\n<!-- bench:a:begin -->\nold\n<!-- bench:a:end -->\ntail\n";

    #[test]
    fn only_the_named_section_changes() {
        let new = replaced(TEXT, "a", "new\n").expect("a section");
        assert_eq!(new, TEXT.replace("old", "new"));
        assert_eq!(replaced(&new, "a", "new\n"), Some(new.clone()), "twice is as once");
    }

    #[test]
    fn a_new_section_follows_the_last_one() {
        let new = replaced(TEXT, "b-c", "x\n").expect("a place");
        let added = "\n### b c\n\n<!-- bench:b-c:begin -->\nx\n<!-- bench:b-c:end -->\n";
        assert_eq!(new, TEXT.replace("tail", &format!("{added}tail")));
    }

    #[test]
    fn half_a_section_is_not_written_to() {
        assert_eq!(replaced("no markers", "a", "x"), None);
        assert_eq!(replaced("<!-- bench:a:begin -->\n", "a", "x"), None);
        assert_eq!(replaced("<!-- bench:a:end -->\n", "a", "x"), None);
    }

    #[test]
    fn speed_goes_to_the_page_of_the_machine_and_to_no_other() {
        let folder = tempfile::tempdir().expect("a folder");
        let workspace = Workspace::at(folder.path());
        let pages = folder.path().join(PERFORMANCE);
        fs::create_dir_all(&pages).expect("the folder of pages");
        let other = "<!-- machine: Other -->\n<!-- bench:a:begin -->\n<!-- bench:a:end -->\n";
        fs::write(pages.join("other.md"), other).expect("a page");
        let machine = Machine::for_tests();
        for block in ["one\n", "two\n"] {
            record_speed(&workspace, &machine, "a", block).expect("recorded");
        }
        let read = |name: &str| fs::read_to_string(pages.join(name)).expect("a page");
        assert_eq!(read("other.md"), other);
        let page = read("an-unnamed-processor.md");
        assert!(page.contains("<!-- bench:a:begin -->\ntwo\n<!-- bench:a:end -->\n"), "{page}");
        assert!(!page.contains("one\n"), "{page}");
    }

    #[test]
    fn the_pages_of_this_project_name_their_machine() {
        let workspace = Workspace::find().expect("the workspace");
        for (page, cpu) in [("amd-epyc-zen5", "AMD EPYC"), ("intel-xeon", "Intel(R) Xeon(R) Processor")] {
            let text = workspace.read(&format!("{PERFORMANCE}/{page}.md")).expect("a page");
            assert!(text.contains(&format!("\n<!-- machine: {cpu} -->\n")), "{page}");
            assert!(text.contains(&format!(" cores of {cpu};")), "{page}");
            let others = text.lines().filter(|line| line.contains(" cores of ") && line.contains("; load "));
            assert!(others.into_iter().all(|line| line.contains(&format!(" cores of {cpu};"))), "{page}");
        }
    }

    #[test]
    fn commands_are_shown_without_folders() {
        let words = ["--peer", "lbench=/tmp/x/lbench", "models/m.gguf", "0,4096"];
        assert_eq!(words.map(without_folders), ["--peer", "lbench=lbench", "m.gguf", "0,4096"]);
    }

    #[test]
    fn names_are_plain() {
        assert_eq!(parse_name("7b-deep"), Ok("7b-deep".to_owned()));
        assert!(["", "a b", "A", "-->"].iter().all(|name| parse_name(name).is_err()));
    }
}
