//! Line plots as SVG: a logarithmic axis of sizes, a linear axis of rates, a legend. Readable on
//! light and dark pages, because text and axes take their color from the reader's preference and
//! the lines are of middling brightness.

use std::fmt::Write as _;

/// One panel of a figure.
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) lines: Vec<Line>,
}

/// One line of a panel; the same name has the same color in every panel.
pub(super) struct Line {
    pub(super) name: String,
    /// (size >= 1, rate >= 0), in ascending order of sizes.
    pub(super) points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 860.0;
const PANEL: f64 = 380.0;
/// The plotting area within a panel: left, top, width, height.
const AREA: (f64, f64, f64, f64) = (64.0, 34.0, 640.0, 290.0);
const COLORS: [&str; 8] =
    ["#2f7ed8", "#d9480f", "#2f9e44", "#d6336c", "#7950f2", "#1098ad", "#b08900", "#868e96"];
/// Up to so many points of a line are marked: with more, the line shows them.
const MARKED: usize = 5;
const DASHES: [&str; 3] = ["", "6 3", "2 3"];
const STYLE: &str = "text{font:12px sans-serif;fill:#57606a}.t{font-weight:bold}.e{text-anchor:end}\
    .m{text-anchor:middle}.g{stroke:#57606a;stroke-opacity:.2}.l{fill:none;stroke-width:1.6}\
    @media(prefers-color-scheme:dark){text{fill:#9da7b3}.g{stroke:#9da7b3}}";

/// The figure: panels below each other.
pub(super) fn figure(x_label: &str, y_label: &str, panels: &[Panel]) -> String {
    let names = names(panels);
    let height = PANEL * panels.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n<style>{STYLE}</style>\n"
    );
    for (index, panel) in panels.iter().enumerate() {
        let _ = writeln!(svg, "<g transform=\"translate(0 {})\">", PANEL * index as f64);
        add_panel(&mut svg, panel, &names, (x_label, y_label));
        svg.push_str("</g>\n");
    }
    svg.push_str("</svg>\n");
    svg
}

fn names(panels: &[Panel]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for line in panels.iter().flat_map(|panel| &panel.lines) {
        if !names.contains(&line.name.as_str()) {
            names.push(&line.name);
        }
    }
    names
}

fn add_panel(svg: &mut String, panel: &Panel, names: &[&str], labels: (&str, &str)) {
    let points = || panel.lines.iter().flat_map(|line| &line.points);
    let x_max = points().map(|p| p.0).fold(2.0, f64::max);
    let step = tick_step(points().map(|p| p.1).fold(0.0, f64::max));
    let y_max = step * (points().map(|p| p.1).fold(0.0, f64::max) / step).ceil().max(1.0);
    let (left, top, width, height) = AREA;
    // A power of two, so that the ticks are.
    let x_min =
        2f64.powf(points().map(|p| p.0).fold(x_max, f64::min).max(1.0).log2().floor()).min(x_max / 2.0);
    let x = |value: f64| left + width * (value.max(x_min) / x_min).log2() / (x_max / x_min).log2();
    let y = |value: f64| top + height * (1.0 - value / y_max);

    let (x_label, y_label) = (escape(labels.0), escape(labels.1));
    let _ = writeln!(svg, "<text class=\"t\" x=\"{left}\" y=\"20\">{}</text>", escape(&panel.title));
    let _ = writeln!(
        svg,
        "<text class=\"m\" x=\"{}\" y=\"{}\">{x_label}</text>\n\
         <text class=\"m\" transform=\"translate(16 {}) rotate(-90)\">{y_label}</text>",
        left + width / 2.0,
        top + height + 36.0,
        top + height / 2.0
    );
    let mut tick = x_min;
    while tick <= x_max {
        let at = x(tick);
        let _ = writeln!(
            svg,
            "<path class=\"g\" d=\"M{at:.1} {top}v{height}\"/><text class=\"m\" x=\"{at:.1}\" y=\"{}\">{tick}</text>",
            top + height + 18.0
        );
        tick *= 2.0;
    }
    for index in 0..=(y_max / step).round() as usize {
        let value = step * index as f64;
        let at = y(value);
        let _ = writeln!(
            svg,
            "<path class=\"g\" d=\"M{left} {at:.1}h{width}\"/><text class=\"e\" x=\"{}\" y=\"{:.1}\">{value}</text>",
            left - 8.0,
            at + 4.0
        );
    }
    for (index, line) in panel.lines.iter().enumerate() {
        add_line(svg, line, names, |p| (x(p.0), y(p.1)));
        add_legend(svg, line, names, (left + width + 16.0, top + 8.0 + 18.0 * index as f64));
    }
}

/// The color and dashes of a name.
fn look(name: &str, names: &[&str]) -> String {
    let index = names.iter().position(|other| *other == name).unwrap_or(0);
    let color = COLORS[index % COLORS.len()];
    match DASHES[index / COLORS.len() % DASHES.len()] {
        "" => format!("stroke=\"{color}\""),
        dashes => format!("stroke=\"{color}\" stroke-dasharray=\"{dashes}\""),
    }
}

fn add_line(svg: &mut String, line: &Line, names: &[&str], place: impl Fn((f64, f64)) -> (f64, f64)) {
    let _ = write!(svg, "<path class=\"l\" {} d=\"", look(&line.name, names));
    for (index, &point) in line.points.iter().enumerate() {
        let (x, y) = place(point);
        let _ = write!(svg, "{}{x:.1} {y:.1}", if index == 0 { 'M' } else { 'L' });
    }
    svg.push_str("\"/>\n");
    if line.points.len() <= MARKED {
        for &point in &line.points {
            let (x, y) = place(point);
            let _ = writeln!(
                svg,
                "<circle class=\"l\" {} cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>",
                look(&line.name, names)
            );
        }
    }
}

fn add_legend(svg: &mut String, line: &Line, names: &[&str], (x, y): (f64, f64)) {
    let last = line.points.last().map_or(0.0, |point| point.1);
    let digits = if last < 10.0 { 2 } else { 0 };
    let _ = writeln!(
        svg,
        "<path class=\"l\" {} d=\"M{x} {y}h22\"/><text x=\"{}\" y=\"{}\">{} ({last:.digits$})</text>",
        look(&line.name, names),
        x + 28.0,
        y + 4.0,
        escape(&line.name)
    );
}

/// 1, 2 or 5 times a power of ten, so that an axis up to `max` has five to ten ticks or so.
fn tick_step(max: f64) -> f64 {
    let raw = (max / 6.0).max(1e-3);
    let power = 10f64.powf(raw.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= raw).unwrap_or(10.0);
    factor * power
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(title: &str) -> Panel {
        let line = |name: &str, scale: f64| Line {
            name: name.to_owned(),
            points: (0..10).map(|i| (f64::from(1 << i), scale * f64::from(i))).collect(),
        };
        Panel {
            title: title.to_owned(),
            lines: (0..20).map(|i| line(&format!("f{i}"), f64::from(i + 1))).collect(),
        }
    }

    #[test]
    fn elements_are_closed_and_text_is_escaped() {
        let svg = figure("batch <tokens>", "GOP/s", &[panel("a & b"), panel("c")]);
        assert!(svg.contains("a &amp; b") && svg.contains("batch &lt;tokens&gt;"), "{svg}");
        // No text contains a bracket, so each `<` begins a tag.
        let mut open: Vec<&str> = Vec::new();
        for tag in svg.split('<').skip(1) {
            let inside = tag.split('>').next().expect("a tag ends");
            assert_eq!(inside.matches('"').count() % 2, 0, "{inside}");
            let name = inside.split([' ', '/']).find(|part| !part.is_empty()).expect("a name");
            if inside.starts_with('/') {
                assert_eq!(open.pop(), Some(name));
            } else if !inside.ends_with('/') {
                open.push(name);
            }
        }
        assert!(open.is_empty(), "{open:?}");
    }

    #[test]
    fn names_keep_their_look_and_no_two_share_one() {
        let panels = [panel("a"), panel("b")];
        let names = names(&panels);
        let looks: std::collections::BTreeSet<String> = names.iter().map(|name| look(name, &names)).collect();
        assert_eq!(looks.len(), 20);
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(
            [tick_step(6.0), tick_step(130.0), tick_step(900.0), tick_step(0.0)],
            [1.0, 50.0, 200.0, 0.001]
        );
    }

    #[test]
    fn no_points_give_an_empty_panel() {
        let svg = figure("x", "y", &[Panel { title: "t".to_owned(), lines: vec![] }]);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
