//! Horizontal bars in pairs: prefill and decode of one engine relative to another.

use plotters::element::{EmptyElement, PathElement};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::style::{self, Axis, BLUE, GREY, INK, ORANGE, TEXT_PX};
use crate::Result;

const COLORS: [RGBColor; 2] = [BLUE, ORANGE];
const ROW_PX: u32 = 46;

/// One row: a name at the left, a bar and a note per series.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) bars: [(f64, String); 2],
}

/// Bars of ratios with a line at 1, the point of equal speed.
pub(super) fn ratios(title: &str, x_name: &str, series: [&str; 2], rows: &[Row]) -> Result<String> {
    let height = 34 + 10 + 56 + ROW_PX * rows.len() as u32;
    style::svg(title, (760, height), |root| {
        let max = rows.iter().flat_map(|row| &row.bars).map(|bar| bar.0).fold(1.0, f64::max);
        // Room for the notes after the longest bar.
        let area = root.margin(0, 0, 110, 0);
        let x = Axis { name: x_name, range: (0.0, max * 1.45), ticks: 10, label: &|x| format!("{x}x") };
        let y = Axis { name: "", range: (rows.len() as f64, 0.0), ticks: 0, label: &|_| String::new() };
        let mut chart = style::chart(&area, &x, &y)?;
        for (index, (name, color)) in series.into_iter().zip(COLORS).enumerate() {
            let bar = |(at, row): (usize, &Row)| {
                let top = at as f64 + 0.12 + 0.38 * index as f64;
                Rectangle::new([(0.0, top), (row.bars[index].0, top + 0.36)], color.filled())
            };
            chart
                .draw_series(rows.iter().enumerate().map(bar))?
                .label(name)
                .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], color.filled()));
            let note = |(at, row): (usize, &Row)| {
                let (value, note) = &row.bars[index];
                // Right of the line of equal speed, which would cross the text.
                EmptyElement::at((value.max(1.0), at as f64 + 0.30 + 0.38 * index as f64))
                    + Text::new(note.clone(), (6, 0), style::text(TEXT_PX, HPos::Left, VPos::Center))
            };
            chart.draw_series(rows.iter().enumerate().map(note))?;
        }
        let name = |(at, row): (usize, &Row)| {
            EmptyElement::at((0.0, at as f64 + 0.5))
                + Text::new(row.name.clone(), (-8, 0), style::text(TEXT_PX, HPos::Right, VPos::Center))
        };
        chart.draw_series(rows.iter().enumerate().map(name))?;
        let equal = PathElement::new([(1.0, 0.0), (1.0, rows.len() as f64)], INK.stroke_width(1));
        chart.draw_series([equal])?;
        let zero = PathElement::new([(0.0, 0.0), (0.0, rows.len() as f64)], GREY.stroke_width(1));
        chart.draw_series([zero])?;
        style::legend(&mut chart, SeriesLabelPosition::LowerRight)
    })
}
