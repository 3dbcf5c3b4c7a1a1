//! Tables of the pages in `docs/`, the only source of the plots' numbers.

use xtask::Workspace;

use crate::{Error, Result};

/// A page of `docs/`.
#[derive(Debug)]
pub(super) struct Page {
    path: &'static str,
    text: String,
}

/// A Markdown table.
#[derive(Debug)]
pub(super) struct Table {
    /// Page and section, for errors.
    place: String,
    head: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

impl Page {
    pub(super) fn read(workspace: &Workspace, path: &'static str) -> Result<Self> {
        Ok(Self { path, text: workspace.read(path)? })
    }

    pub(super) fn path(&self) -> &'static str {
        self.path
    }

    /// First fenced block of a language.
    pub(super) fn fenced(&self, language: &str) -> Option<&str> {
        let (_, rest) = self.text.split_once(&format!("\n```{language}\n"))?;
        rest.split_once("```").map(|(block, _)| block)
    }

    /// Table number `index` (from 0) between the markers `<!-- MARKER:begin -->` and
    /// `<!-- MARKER:end -->`.
    ///
    /// # Errors
    /// [`Error::NoFigure`] if there is no such section or table.
    pub(super) fn table(&self, marker: &str, index: usize) -> Result<Table> {
        let place = format!("{}, section {marker}", self.path);
        let section = between(&self.text, marker)
            .ok_or_else(|| Error::NoFigure { place: place.clone(), figure: "end".to_owned() })?;
        let lines: Vec<&str> = section.lines().collect();
        let table = lines
            .split(|line| !line.starts_with('|'))
            .filter(|lines| lines.len() > 2)
            .nth(index)
            .ok_or_else(|| Error::NoFigure { place: place.clone(), figure: format!("table {index}") })?;
        let rows = table[2..].iter().map(|line| cells(line)).collect();
        Ok(Table { place, head: cells(table[0]), rows })
    }
}

impl Table {
    /// Number in `column` of the first row with the cells `keys`, given as (column, text).
    ///
    /// # Errors
    /// [`Error::NoFigure`] if there is no such row, column or number.
    pub(super) fn number(&self, keys: &[(&str, &str)], column: &str) -> Result<f64> {
        let missing = || {
            let keys: Vec<String> = keys.iter().map(|(name, value)| format!("{name} {value}")).collect();
            Error::NoFigure { place: self.place.clone(), figure: format!("{column} of {}", keys.join(", ")) }
        };
        let has = |row: &&Vec<String>| keys.iter().all(|(name, value)| self.cell(row, name) == Some(value));
        let row = self.rows.iter().find(has).ok_or_else(missing)?;
        self.cell(row, column).and_then(number).ok_or_else(missing)
    }

    /// Number in `column` of `row`.
    ///
    /// # Errors
    /// [`Error::NoFigure`] if there is none.
    pub(super) fn number_in(&self, row: &[String], column: &str) -> Result<f64> {
        self.cell(row, column).and_then(number).ok_or_else(|| Error::NoFigure {
            place: self.place.clone(),
            figure: format!("{column} of {}", row.first().map_or("", String::as_str)),
        })
    }

    /// Names of the columns.
    pub(super) fn head(&self) -> &[String] {
        &self.head
    }

    fn cell<'a>(&self, row: &'a [String], column: &str) -> Option<&'a str> {
        let index = self.head.iter().position(|name| name == column)?;
        row.get(index).map(String::as_str)
    }
}

/// Text between two markers, without the rest of the line of the first.
pub(super) fn between<'a>(text: &'a str, marker: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<!-- {marker}:begin -->\n"))?;
    rest.split_once(&format!("<!-- {marker}:end -->")).map(|(section, _)| section)
}

/// Cells of a row, without code and bold marks.
fn cells(line: &str) -> Vec<String> {
    let inside = line.trim().trim_start_matches('|').trim_end_matches('|');
    inside.split('|').map(|cell| cell.trim().trim_matches('`').to_owned()).collect()
}

/// First number of a cell: `**1.41** (1.36-2.08)` is 1.41, `+0.195 %` is 0.195.
fn number(cell: &str) -> Option<f64> {
    cell.trim_start_matches(['*', '+']).split([' ', '*']).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "a\n<!-- bench:x:begin -->\n| m | t | ratio | ratio |\n|---|---|---|---|\n\
        | `a` | 1 | **1.50** (1-2) | 9 |\n| `a` | 2 | +0.20 % | - |\n\n| n |\n|---|\n| 7 MB |\n\
        <!-- bench:x:end -->\n| no |\n";

    fn table(index: usize) -> Result<Table> {
        Page { path: "p.md", text: TEXT.to_owned() }.table("bench:x", index)
    }

    #[test]
    fn numbers_are_found_by_the_cells_of_their_row() {
        let first = table(0).expect("a table");
        assert_eq!(first.number(&[("m", "a"), ("t", "1")], "ratio").ok(), Some(1.5));
        assert_eq!(first.number(&[("m", "a"), ("t", "2")], "ratio").ok(), Some(0.2));
        assert_eq!(table(1).and_then(|table| table.number(&[], "n")).ok(), Some(7.0));
    }

    #[test]
    fn absent_numbers_are_errors_that_name_page_and_row() {
        let error = table(0).and_then(|table| table.number(&[("t", "3")], "ratio")).unwrap_err();
        assert_eq!(error.to_string(), "p.md, section bench:x has no ratio of t 3");
        assert!(table(2).is_err());
    }
}
