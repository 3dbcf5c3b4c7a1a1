//! Common look of the plots: the colour-blind safe palette of Okabe and Ito, text and ground that
//! follow the reader's light or dark preference, labels that do not overlap.

use plotters::coord::types::RangedCoordf64;
use plotters::coord::{CoordTranslate, Shift};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::Result;

/// A drawing area of a plot.
pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Axes of a plot; logarithmic ones hold logarithms.
pub(super) type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Okabe and Ito, "Color Universal Design" (2008), without black and yellow, which lack contrast on
/// dark and light backgrounds.
pub(super) const BLUE: RGBColor = RGBColor(0x00, 0x72, 0xB2);
pub(super) const ORANGE: RGBColor = RGBColor(0xE6, 0x9F, 0x00);
pub(super) const GREEN: RGBColor = RGBColor(0x00, 0x9E, 0x73);
pub(super) const VERMILLION: RGBColor = RGBColor(0xD5, 0x5E, 0x00);
pub(super) const SKY: RGBColor = RGBColor(0x56, 0xB4, 0xE9);
pub(super) const PURPLE: RGBColor = RGBColor(0xCC, 0x79, 0xA7);
/// Readable on both backgrounds.
pub(super) const GREY: RGBColor = RGBColor(0x8C, 0x95, 0x9F);

const GROUND: RGBColor = RGBColor(0xFF, 0xFF, 0xFF);
pub(super) const INK: RGBColor = RGBColor(0x1F, 0x23, 0x28);
const GRID: RGBColor = RGBColor(0xD0, 0xD7, 0xDE);

/// Overrides of the three colours above in dark mode.
const DARK: &str = "<style>@media (prefers-color-scheme: dark) { [fill=\"#FFFFFF\"] { fill: #0D1117 } \
    [fill=\"#1F2328\"] { fill: #E6EDF3 } [stroke=\"#1F2328\"] { stroke: #E6EDF3 } \
    [stroke=\"#D0D7DE\"] { stroke: #30363D } }</style>";

pub(super) const TEXT_PX: i32 = 14;
const TITLE_PX: i32 = 18;

/// Text of a plot, anchored at a point.
pub(super) fn text(size: i32, h: HPos, v: VPos) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK).pos(Pos::new(h, v))
}

/// A plot: a title, and below it an area for `paint`.
pub(super) fn svg(
    title: &str,
    size: (u32, u32),
    paint: impl FnOnce(&Area<'_>) -> Result<()>,
) -> Result<String> {
    drawing(title, size, |root| {
        root.fill(&GROUND)?;
        let left = text(TITLE_PX, HPos::Left, VPos::Center);
        root.draw(&Text::new(title.to_owned(), (16, 18), left))?;
        paint(&root.margin(34, 10, 12, 16))
    })
}

/// Draws with `paint` on an empty area of `size` pixels; screen readers say `title`.
pub(super) fn drawing(
    title: &str,
    size: (u32, u32),
    paint: impl FnOnce(&Area<'_>) -> Result<()>,
) -> Result<String> {
    let mut out = String::new();
    {
        let root = SVGBackend::with_string(&mut out, size).into_drawing_area();
        paint(&root)?;
        root.present()?;
    }
    Ok(with_style(&out, title))
}

/// Adds the dark-mode rules and the title to the opening tag.
fn with_style(svg: &str, title: &str) -> String {
    let title = title.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;");
    let label = format!("<svg role=\"img\" aria-label=\"{title}\" ");
    let svg = svg.replacen("<svg ", &label, 1);
    let Some(end) = svg.find(">\n") else { return svg };
    format!("{}>\n{DARK}\n{}\n", &svg[..end], svg[end + 2..].trim_end())
}

/// Range, name and tick labels of an axis.
pub(super) struct Axis<'a> {
    pub(super) name: &'a str,
    pub(super) range: (f64, f64),
    /// Maximum number of ticks.
    pub(super) ticks: usize,
    pub(super) label: &'a dyn Fn(&f64) -> String,
}

/// Axes with grid and labels.
pub(super) fn chart<'a, 'b>(area: &'a Area<'b>, x: &Axis<'_>, y: &Axis<'_>) -> Result<Chart<'a, 'b>> {
    let mut chart = ChartBuilder::on(area)
        .set_label_area_size(LabelAreaPosition::Left, 58)
        .set_label_area_size(LabelAreaPosition::Bottom, 44)
        .build_cartesian_2d(x.range.0..x.range.1, y.range.0..y.range.1)?;
    let label = ("sans-serif", TEXT_PX).into_font().color(&INK);
    chart
        .configure_mesh()
        .x_desc(x.name)
        .y_desc(y.name)
        .x_labels(x.ticks)
        .y_labels(y.ticks)
        .x_label_formatter(&x.label)
        .y_label_formatter(&y.label)
        .label_style(label.clone())
        .axis_desc_style(label)
        .axis_style(GRID)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .draw()?;
    Ok(chart)
}

/// Draws the legend of all series that have a label, inside the plot.
pub(super) fn legend<'a, 'b: 'a>(chart: &mut Chart<'a, 'b>, position: SeriesLabelPosition) -> Result<()> {
    chart
        .configure_series_labels()
        .position(position)
        .margin(12)
        .background_style(GROUND)
        .border_style(GRID)
        .label_font(("sans-serif", TEXT_PX).into_font().color(&INK))
        .draw()?;
    Ok(())
}

/// Formats a number in decimal: `1e3` is 1000, `0.5` is 0.5.
pub(super) fn plain(value: f64) -> String {
    format!("{}", (value * 1000.0).round() / 1000.0)
}

/// A rectangle of pixels: left, top, right, bottom.
type Box4 = (i32, i32, i32, i32);

/// Preferred side of a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// For single points.
    Beside,
    /// For points of lines, which mostly continue to the right.
    Above,
    /// As `Above`, for the lower line.
    Below,
}

/// Placement of labels without overlap, within the axes.
#[derive(Debug)]
pub(super) struct Labels {
    /// Left, top, right and bottom of the plotting area.
    bounds: Box4,
    taken: Vec<Box4>,
}

impl Labels {
    pub(super) fn within(area: &DrawingArea<SVGBackend<'_>, impl CoordTranslate>) -> Self {
        let (x, y) = area.get_pixel_range();
        Self { bounds: (x.start, y.start, x.end, y.end), taken: Vec::new() }
    }

    /// Reserves `radius` pixels around a point's mark.
    pub(super) fn avoid(&mut self, (x, y): (i32, i32), radius: i32) {
        self.taken.push((x - radius, y - radius, x + radius, y + radius));
    }

    /// Draws `label` near a point; false if there is no room.
    pub(super) fn draw(
        &mut self,
        root: &Area<'_>,
        (x, y): (i32, i32),
        label: &str,
        side: Side,
    ) -> Result<bool> {
        const PX: i32 = 13;
        // Plotters divides sizes by 1.24; sans-serif glyphs are 0.6 of the height at most on
        // average.
        let (width, half) = (label.chars().count() as i32 * PX / 2, PX / 2);
        let mut places = [
            (x + 8, y, HPos::Left),
            (x - 8, y, HPos::Right),
            (x, y - 13, HPos::Center),
            (x, y + 13, HPos::Center),
            (x + 7, y - 11, HPos::Left),
            (x + 7, y + 11, HPos::Left),
            (x - 7, y - 11, HPos::Right),
            (x - 7, y + 11, HPos::Right),
        ];
        match side {
            Side::Beside => {}
            Side::Above => places.rotate_left(2),
            Side::Below => places.rotate_left(3),
        }
        let (root_x, root_y) = root.get_pixel_range();
        let bounds = self.bounds;
        for (x, y, h) in places {
            let left = match h {
                HPos::Left => x,
                HPos::Right => x - width,
                HPos::Center => x - width / 2,
            };
            let place = (left, y - half, left + width, y + half);
            let inside =
                place.0 >= bounds.0 && place.1 >= bounds.1 && place.2 <= bounds.2 && place.3 <= bounds.3;
            if inside && self.taken.iter().all(|other| !overlap(*other, place)) {
                self.taken.push(place);
                let at = (x - root_x.start, y - root_y.start);
                root.draw(&Text::new(label.to_owned(), at, text(PX, h, VPos::Center)))?;
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn overlap(a: Box4, b: Box4) -> bool {
    a.0 < b.2 && b.0 < a.2 && a.1 < b.3 && b.1 < a.3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawings_have_a_name_and_rules_for_dark_pages() {
        let drawn = svg("a & \"b\"", (200, 100), |_| Ok(())).expect("a drawing");
        assert!(drawn.starts_with("<svg role=\"img\" aria-label=\"a &amp; &quot;b&quot;\" "), "{drawn}");
        assert!(drawn.contains("prefers-color-scheme: dark") && drawn.ends_with("</svg>\n"), "{drawn}");
    }

    #[test]
    fn labels_do_not_overlap_and_say_when_there_is_no_room() {
        svg("t", (200, 100), |area| {
            let mut labels = Labels::within(area);
            let placed: Vec<bool> = (0..20)
                .map(|_| labels.draw(area, (100, 60), "ten signs!", Side::Beside))
                .collect::<Result<_>>()?;
            assert!(placed[0] && !placed[19]);
            for (index, a) in labels.taken.iter().enumerate() {
                assert!(labels.taken[..index].iter().all(|b| !overlap(*a, *b)));
            }
            Ok(())
        })
        .expect("a drawing");
    }
}
