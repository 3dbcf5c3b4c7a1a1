//! Widths of prose: comments and Markdown outside of tables, code and what a measurement writes.
//! Openings of comments: nouns and verbs, no clauses.

use super::lexer::{self, Kind};

/// Most characters of a line of prose, its indentation and slashes included.
pub(super) const MAX_COLUMNS: usize = 100;

/// First words of clauses that stand in place of a noun: "How fast it runs" for "Speed".
const CLAUSE_WORDS: [&str; 4] = ["What", "Whether", "How", "Those"];

/// One line of prose.
#[derive(Clone, Copy, Debug)]
struct Line<'a> {
    /// In the file, from 0.
    index: usize,
    /// Indentation and comment marker, such as `    /// `.
    prefix: &'a str,
    body: &'a str,
    /// Part of a table, of code, a heading: its end of line has a meaning.
    is_fixed: bool,
}

/// Numbers of the lines of prose that are too wide. A single long word, such as an address, cannot
/// be broken.
pub(super) fn wide_lines(path: &str, text: &str) -> Vec<usize> {
    let mut wide: Vec<usize> = lines(path, text)
        .into_iter()
        .filter(|line| !line.is_fixed && line.is_wide() && line.body.trim().contains(' '))
        .map(|line| line.index + 1)
        .collect();
    if path.ends_with(".rs") {
        wide.extend(wide_trailing_comments(text));
    }
    wide.sort_unstable();
    wide
}

/// Comments of Rust source that begin with a clause: line number and first word. Counts headings,
/// items of lists, and the first line of each paragraph.
pub(super) fn clause_openings(text: &str) -> Vec<(usize, &'static str)> {
    let lines = lines("a.rs", text);
    let headings = lines.iter().filter(|line| line.is_fixed && line.body.trim_start().starts_with('#'));
    let openings = paragraphs(&lines).into_iter().map(|paragraph| &paragraph[0]).chain(headings);
    let openings = openings.map(|line| (line.index + 1, line.body));
    let mut found: Vec<_> = openings
        .chain(trailing_comments(text))
        .filter_map(|(line, body)| Some((line, clause_word(body)?)))
        .collect();
    found.sort_unstable();
    found
}

/// The clause word that `body` begins with, markers of lists, headings and emphasis left out.
fn clause_word(body: &str) -> Option<&'static str> {
    let words = body.trim_start();
    let words = words[marker(words)..].trim_start_matches(['#', '*', '_', '/', '!', ' ']);
    let first = words.split(|c: char| !c.is_alphanumeric()).next()?;
    CLAUSE_WORDS.into_iter().find(|word| word.eq_ignore_ascii_case(first))
}

/// The same text with every paragraph wrapped anew that has a line too wide; comments behind code
/// stay as they are.
pub(super) fn wrapped(path: &str, text: &str) -> String {
    let mut out: Vec<String> = text.lines().map(str::to_owned).collect();
    let lines = lines(path, text);
    // From the end, so that the indices before stay right.
    for paragraph in paragraphs(&lines).into_iter().rev() {
        if paragraph.iter().any(Line::is_wide) && !paragraph.iter().any(|line| line.body.ends_with("  ")) {
            let first = paragraph[0].index;
            out.splice(first..first + paragraph.len(), wrap(paragraph));
        }
    }
    let mut joined = out.join("\n");
    if text.ends_with('\n') {
        joined.push('\n');
    }
    joined
}

impl Line<'_> {
    fn is_wide(&self) -> bool {
        self.prefix.chars().count() + self.body.chars().count() > MAX_COLUMNS
    }

    /// Columns of white space before the first word, and those of a list's marker.
    fn indent(&self) -> (usize, usize) {
        let words = self.body.trim_start();
        let blanks = self.body.len() - words.len();
        (blanks, marker(words))
    }
}

/// The length of `- `, `* ` or `12. ` at the beginning of a list's item.
fn marker(words: &str) -> usize {
    let digits = words.find(|c: char| !c.is_ascii_digit()).unwrap_or(0);
    let bullet = words.starts_with("- ") || words.starts_with("* ") || words.starts_with("+ ");
    match digits {
        0 if bullet => 2,
        0 => 0,
        n if words[n..].starts_with(". ") => n + 2,
        _ => 0,
    }
}

/// The lines of prose of a file: whole-line comments of source, all of Markdown.
fn lines<'a>(path: &str, text: &'a str) -> Vec<Line<'a>> {
    let split: Vec<(usize, &str, &str)> = if path.ends_with(".rs") {
        let source: Vec<&str> = text.lines().collect();
        let comments = lexer::tokens(text).into_iter().filter_map(|token| match token.kind {
            Kind::Comment(comment) if comment.starts_with("//") => Some((token.line - 1, comment)),
            _ => None,
        });
        comments
            .filter(|(index, comment)| source[*index].trim_start() == *comment)
            .map(|(index, comment)| {
                let slashes = comment.find(|c| c != '/' && c != '!').unwrap_or(comment.len());
                let blank = usize::from(comment[slashes..].starts_with(' '));
                let cut = source[index].len() - comment.len() + slashes + blank;
                (index, &source[index][..cut], &source[index][cut..])
            })
            .collect()
    } else if path.ends_with(".md") {
        text.lines().enumerate().map(|(index, line)| (index, "", line)).collect()
    } else {
        // Comments of manifests and scripts.
        let comments = text.lines().enumerate().filter(|(_, line)| line.trim_start().starts_with("# "));
        comments
            .map(|(index, line)| {
                let cut = line.len() - line.trim_start().len() + 2;
                (index, &line[..cut], &line[cut..])
            })
            .collect()
    };
    fixed_marked(path, split)
}

/// Tells lines whose ends have a meaning from those of paragraphs.
fn fixed_marked<'a>(path: &str, split: Vec<(usize, &'a str, &'a str)>) -> Vec<Line<'a>> {
    let (mut in_code, mut is_written) = (false, false);
    // The front matter of a record.
    let mut in_front = path.ends_with(".md") && split.first().is_some_and(|(_, _, body)| *body == "---");
    let mut previous = None;
    let mut lines = Vec::new();
    for (index, prefix, body) in split {
        let words = body.trim_start();
        // An empty comment line within code has no blank behind its marker.
        let comment = prefix.trim_end();
        if previous != Some((index.wrapping_sub(1), comment)) && !prefix.is_empty() {
            in_code = false;
        }
        previous = Some((index, comment));
        let is_fence = words.starts_with("```") || words.starts_with("~~~");
        is_written |= words.starts_with("<!-- ") && words.ends_with(":begin -->");
        let is_fixed = in_code
            || is_fence
            || in_front
            || is_written
            || words.is_empty()
            || words.starts_with(['|', '#', '>', '<'])
            || (words.starts_with('[') && words.contains("]: "));
        in_code ^= is_fence;
        in_front &= !(body == "---" && index > 0);
        is_written &= !(words.starts_with("<!-- ") && words.ends_with(":end -->"));
        lines.push(Line { index, prefix, body, is_fixed });
    }
    lines
}

/// Runs of lines that are one paragraph or one item of a list.
fn paragraphs<'l, 'a>(lines: &'l [Line<'a>]) -> Vec<&'l [Line<'a>]> {
    let goes_on = |before: &Line<'_>, line: &Line<'_>, hang: usize| {
        let (blanks, marker) = line.indent();
        !before.is_fixed
            && !line.is_fixed
            && line.index == before.index + 1
            && line.prefix == before.prefix
            && marker == 0
            && blanks == hang
    };
    let mut found = Vec::new();
    let mut start = 0;
    for end in 1..=lines.len() {
        let (blanks, marker) = lines[start].indent();
        if lines.get(end).is_none_or(|line| !goes_on(&lines[end - 1], line, blanks + marker)) {
            if !lines[start].is_fixed {
                found.push(&lines[start..end]);
            }
            start = end;
        }
    }
    found
}

/// A paragraph's words in lines of at most [`MAX_COLUMNS`].
fn wrap(paragraph: &[Line<'_>]) -> Vec<String> {
    let (blanks, marker) = paragraph[0].indent();
    let prefix = paragraph[0].prefix;
    let hang = format!("{prefix}{}", " ".repeat(blanks + marker));
    let mut current = format!("{prefix}{}", &paragraph[0].body[..blanks + marker]);
    let mut is_empty = true;
    let mut lines = Vec::new();
    for unit in units(paragraph, blanks + marker) {
        if !is_empty && current.chars().count() + 1 + unit.chars().count() > MAX_COLUMNS {
            lines.push(std::mem::replace(&mut current, hang.clone()));
            is_empty = true;
        }
        if !is_empty {
            current.push(' ');
        }
        current.push_str(&unit);
        is_empty = false;
    }
    lines.push(current);
    lines
}

/// A paragraph's words without the first `skip` bytes; one that Markdown would take for a marker at
/// the beginning of a line stays with the word before it.
fn units(paragraph: &[Line<'_>], skip: usize) -> Vec<String> {
    let mut units: Vec<String> = Vec::new();
    let first = paragraph[0].body[skip..].split_whitespace();
    for word in first.chain(paragraph[1..].iter().flat_map(|line| line.body.split_whitespace())) {
        let is_marker =
            matches!(word, "-" | "*" | "+") || word.starts_with(['#', '>', '|', '<']) || is_number(word);
        match units.last_mut() {
            Some(last) if is_marker => {
                last.push(' ');
                last.push_str(word);
            }
            _ => units.push(word.to_owned()),
        }
    }
    units
}

/// `12.`, which would begin a list.
fn is_number(word: &str) -> bool {
    word.strip_suffix('.').is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Numbers of the lines of code with a comment behind it that are too wide.
fn wide_trailing_comments(text: &str) -> Vec<usize> {
    let source: Vec<&str> = text.lines().collect();
    trailing_comments(text)
        .map(|(line, _)| line)
        .filter(|line| source[line - 1].chars().count() > MAX_COLUMNS)
        .collect()
}

/// Comments behind code, with their slashes and line numbers.
fn trailing_comments(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let source: Vec<&str> = text.lines().collect();
    lexer::tokens(text).into_iter().filter_map(move |token| match token.kind {
        Kind::Comment(comment)
            if comment.starts_with("//") && source[token.line - 1].trim_start() != comment =>
        {
            Some((token.line, comment))
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long(words: usize) -> String {
        vec!["prose"; words].join(" ")
    }

    #[test]
    fn prose_is_measured_and_code_is_not() {
        let wide = long(20);
        let source = format!(
            "/// {wide}\nlet x = \"// {wide}\";\n/// ```\n/// {wide}\n/// ```\n/// | {wide}\nlet y = 1; // {wide}\n"
        );
        assert_eq!(wide_lines("a.rs", &source), [1, 7]);
        let page = format!(
            "{wide}\n| {wide} |\n```sh\n{wide}\n```\n<!-- bench:x:begin -->\n{wide}\n<!-- bench:x:end -->\n{wide}\n"
        );
        assert_eq!(wide_lines("a.md", &page), [1, 9]);
        assert_eq!(wide_lines("a.toml", &format!("# {wide}\nname = \"{wide}\"\n")), [1]);
        let address = format!("https://{}\n", "a".repeat(120));
        assert!(wide_lines("a.md", &address).is_empty(), "one word cannot be broken");
    }

    #[test]
    fn comments_that_begin_with_a_clause_are_found() {
        let source = [
            "//! What it does.",
            "/// The speed,",
            "/// How is not said.",
            "///",
            "/// Whether it is fast.",
            "/// # Errors",
            "/// Those of the file.",
            "/// - **How:** a list's item",
            "fn a() {} // what follows",
            "    // How fast",
            "let s = \"// What is data\"; // However",
            "/// # What can be relied on",
            "//",
            "// Whatever, Howe and Whats are other words.",
        ];
        let found =
            [(1, "What"), (5, "Whether"), (7, "Those"), (8, "How"), (9, "What"), (10, "How"), (12, "What")];
        assert_eq!(clause_openings(&source.join("\n")), found);
        assert!(clause_openings("/// Speed in tokens per second.\nfn speed() {}\n").is_empty());
    }

    #[test]
    fn code_behind_an_empty_line_is_code() {
        let source = format!("/// ```\n/// use a;\n///\n/// {};\n/// next();\n/// ```\n", long(20));
        assert_eq!(wrapped("a.rs", &source), source);
    }

    #[test]
    fn wide_paragraphs_are_wrapped_anew_and_others_stay() {
        let source = format!("    /// {}\n    /// end.\n    ///\n    /// short\n    /// lines\n", long(20));
        let fixed = wrapped("a.rs", &source);
        assert_eq!(
            fixed,
            format!(
                "    /// {}\n    /// {} end.\n    ///\n    /// short\n    /// lines\n",
                long(15),
                long(5)
            )
        );
        assert!(wide_lines("a.rs", &fixed).is_empty());
    }

    #[test]
    fn items_of_lists_hang() {
        let page = format!("- {}\n  end\n- next\n", long(20));
        assert_eq!(wrapped("a.md", &page), format!("- {}\n  {} end\n- next\n", long(16), long(4)));
    }

    #[test]
    fn no_line_begins_like_a_list() {
        let page = format!("{} - 1. # end of it\n", long(16));
        assert_eq!(wrapped("a.md", &page), format!("{}\nprose - 1. # end of it\n", long(15)));
    }
}
