//! Picture of a terminal with the README's session, which a test of the program runs.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::style::{self, BLUE, GREEN, ORANGE, VERMILLION};
use super::tables::Page;
use crate::{Error, Result};

/// Colours of a terminal, the same on light and dark pages.
const SCREEN: RGBColor = RGBColor(0x16, 0x1B, 0x22);
const TEXT: RGBColor = RGBColor(0xE6, 0xE8, 0xEA);
const COMMAND: RGBColor = RGBColor(0x56, 0xB4, 0xE9);

/// Columns of the terminal.
const COLUMNS: usize = 96;
const LINE_PX: i32 = 18;

/// The `console` block of a page as a picture.
///
/// # Errors
/// [`Error::NoFigure`] if the page has none.
pub(super) fn session(page: &Page) -> Result<String> {
    let block = page.fenced("console").ok_or_else(|| Error::NoFigure {
        place: page.path().to_owned(),
        figure: "block of `console`".to_owned(),
    })?;
    let lines: Vec<&str> = block.lines().flat_map(cut).collect();
    let height = 56 + LINE_PX * lines.len() as i32;
    let width = 760;
    style::drawing("A session with ruvllm in a terminal", (width, height as u32), |root| {
        root.draw(&Rectangle::new([(0, 0), (width as i32, height)], SCREEN.filled()))?;
        for (index, color) in [VERMILLION, ORANGE, GREEN].into_iter().enumerate() {
            root.draw(&Circle::new((20 + 20 * index as i32, 18), 6, color.filled()))?;
        }
        root.draw(&PathElement::new([(0, 36), (width as i32, 36)], BLUE.stroke_width(1)))?;
        for (index, line) in lines.iter().enumerate() {
            let is_command = line.starts_with("$ ") || line.starts_with("> ");
            let color = if is_command { COMMAND } else { TEXT };
            let look = ("monospace", 16).into_font().color(&color).pos(Pos::new(HPos::Left, VPos::Center));
            // SVG collapses repeated spaces, but not non-breaking ones.
            let text = line.replace(' ', "\u{a0}");
            root.draw(&Text::new(text, (14, 50 + LINE_PX * index as i32), look))?;
        }
        Ok(())
    })
}

/// Wraps a line at the terminal's last column.
fn cut(line: &str) -> Vec<&str> {
    let mut rest = line;
    let mut parts = Vec::new();
    while let Some((at, _)) = rest.char_indices().nth(COLUMNS) {
        parts.push(&rest[..at]);
        rest = &rest[at..];
    }
    parts.push(rest);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_at_the_last_column() {
        assert_eq!(cut(""), [""]);
        let line = "é".repeat(COLUMNS + 1);
        assert_eq!(cut(&line).iter().map(|part| part.chars().count()).collect::<Vec<_>>(), [COLUMNS, 1]);
    }
}
