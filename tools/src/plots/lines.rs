//! Lines with marked points.

use plotters::prelude::*;

use super::style::{self, Axis, GREY, Labels, Side};
use crate::Result;

/// A line of a plot.
pub(super) struct Line {
    pub(super) name: String,
    pub(super) color: RGBColor,
    /// Coordinates (logarithms on logarithmic axes) and label of each point; empty = no label.
    pub(super) points: Vec<(f64, f64, String)>,
}

/// Plots labelled lines over grey context lines.
pub(super) fn plot(
    title: &str,
    (x, y): (&Axis<'_>, &Axis<'_>),
    lines: &[Line],
    (others, other_lines): (&str, &[Line]),
    position: SeriesLabelPosition,
) -> Result<String> {
    style::svg(title, (760, 400), |root| {
        let mut chart = style::chart(root, x, y)?;
        let place = |line: &Line| line.points.iter().map(|point| (point.0, point.1)).collect::<Vec<_>>();
        for (index, line) in other_lines.iter().enumerate() {
            let drawn = chart.draw_series(LineSeries::new(place(line), GREY.stroke_width(1)))?;
            if index == 0 {
                drawn.label(others).legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], GREY));
            }
        }
        let mut labels = Labels::within(chart.plotting_area());
        for line in lines {
            let color = line.color;
            chart
                .draw_series(LineSeries::new(place(line), color.stroke_width(2)))?
                .label(&line.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(3)));
            let dot = |point| Circle::new(point, 4, color.filled());
            chart.draw_series(place(line).into_iter().map(dot))?;
            place(line).iter().for_each(|point| labels.avoid(chart.backend_coord(point), 5));
        }
        style::legend(&mut chart, position)?;
        for (line, side) in lines.iter().zip([Side::Above].into_iter().chain(std::iter::repeat(Side::Below)))
        {
            for (x, y, label) in line.points.iter().filter(|point| !point.2.is_empty()) {
                labels.draw(root, chart.backend_coord(&(*x, *y)), label, side)?;
            }
        }
        Ok(())
    })
}
