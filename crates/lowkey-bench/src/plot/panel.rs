//! One panel of a drawing: a title, two axes, lines with their names beside.

use std::fmt::Write as _;

pub(super) const WIDTH: f64 = 720.0;
pub(super) const HEIGHT: f64 = 300.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 40.0;
/// Told apart by most eyes, also without colours by their order.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"];
/// Into how many parts an axis that counts evenly is divided.
const PARTS: f64 = 4.0;

/// What is drawn in one panel.
pub(super) struct Panel {
    pub(super) title: String,
    /// Marks of the horizontal axis: where, from 0 to 1, and what is written there.
    pub(super) marks: Vec<(f64, String)>,
    pub(super) vertical: Vertical,
    pub(super) unit: &'static str,
    pub(super) lines: Vec<PlotLine>,
}

/// Points have their place on the horizontal axis, from 0 to 1, and a value.
pub(super) struct PlotLine {
    pub(super) system: String,
    pub(super) nodes: usize,
    pub(super) points: Vec<(f64, f64)>,
}

/// How the vertical axis counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Vertical {
    /// By powers of ten, from the largest below all values to the smallest above them.
    Tens,
    /// Evenly, from nothing.
    Even,
}

/// Where values are on the vertical axis.
struct Axis {
    top: f64,
    vertical: Vertical,
    low: f64,
    high: f64,
}

impl Axis {
    fn new(top: f64, vertical: Vertical, lines: &[PlotLine]) -> Self {
        let values = lines.iter().flat_map(|line| line.points.iter().map(|(_, value)| *value));
        let (least, most) = values
            .filter(|value| *value > 0.0)
            .fold((f64::MAX, f64::MIN), |(least, most), value| (least.min(value), most.max(value)));
        let (low, high) = match vertical {
            _ if least > most => (0.0, 1.0),
            Vertical::Tens => (least.log10().floor(), most.log10().ceil()),
            Vertical::Even => (0.0, rounded_up(most)),
        };
        Self { top, vertical, low, high: if high > low { high } else { low + 1.0 } }
    }

    fn y(&self, value: f64) -> f64 {
        let value = if self.vertical == Vertical::Tens { value.log10() } else { value };
        let share = (value - self.low) / (self.high - self.low);
        self.top + HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share.clamp(0.0, 1.0)
    }

    fn marks(&self) -> Vec<f64> {
        match self.vertical {
            Vertical::Tens => {
                let powers = (self.high - self.low).round() as i32;
                (0..=powers).map(|power| 10_f64.powf(self.low + f64::from(power))).collect()
            }
            Vertical::Even => {
                let evenly = |part: i32| self.high * f64::from(part) / PARTS;
                // What is written there has no more digits than it needs.
                (0..=PARTS as i32).map(|part| (evenly(part) * 1e6).round() / 1e6).collect()
            }
        }
    }
}

/// To 1, 2, 4 or 8 of some power of ten.
fn rounded_up(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    [1.0, 2.0, 4.0, 8.0, 10.0]
        .into_iter()
        .map(|step| step * power)
        .find(|high| *high >= value)
        .unwrap_or(value)
}

fn x(share: f64) -> f64 {
    LEFT + (WIDTH - LEFT - RIGHT) * share.clamp(0.0, 1.0)
}

/// A colour for a system. On one node it is dashed.
fn strokes(lines: &[PlotLine]) -> Vec<String> {
    let mut systems: Vec<&str> = Vec::new();
    let mut strokes = Vec::new();
    for PlotLine { system, nodes, .. } in lines {
        let known = systems.iter().position(|known| known == system).unwrap_or_else(|| {
            systems.push(system);
            systems.len() - 1
        });
        let dashes = if *nodes == 1 { r#" stroke-dasharray="6 3""# } else { "" };
        strokes.push(format!(r#"stroke="{}" stroke-width="2"{dashes}"#, COLOURS[known % COLOURS.len()]));
    }
    strokes
}

impl Panel {
    /// Draws it, so far from the top.
    pub(super) fn draw(&self, svg: &mut String, top: f64) {
        let axis = Axis::new(top, self.vertical, &self.lines);
        let (right, bottom, title) = (WIDTH - RIGHT, top + HEIGHT - BOTTOM, escaped(&self.title));
        let baseline = top + TOP - 14.0;
        let _ = writeln!(svg, r#"<text x="{LEFT}" y="{baseline:.0}" font-weight="bold">{title}</text>"#);
        for (share, label) in &self.marks {
            let (x, from, below) = (x(*share), top + TOP, bottom + 16.0);
            let _ = writeln!(
                svg,
                r##"<line x1="{x:.1}" y1="{from:.1}" x2="{x:.1}" y2="{bottom:.1}" stroke="#dddddd"/><text x="{x:.1}" y="{below:.1}" text-anchor="middle">{label}</text>"##
            );
        }
        for value in axis.marks() {
            let (y, beside, unit) = (axis.y(value), LEFT - 6.0, self.unit);
            let _ = writeln!(
                svg,
                r##"<line x1="{LEFT}" y1="{y:.1}" x2="{right}" y2="{y:.1}" stroke="#dddddd"/><text x="{beside:.1}" y="{:.1}" text-anchor="end">{value} {unit}</text>"##,
                y + 4.0
            );
        }
        for (number, (line, stroke)) in self.lines.iter().zip(strokes(&self.lines)).enumerate() {
            let points = line.points.iter().filter(|(_, value)| *value > 0.0);
            let points: Vec<String> =
                points.map(|(share, value)| format!("{:.1},{:.1}", x(*share), axis.y(*value))).collect();
            let _ = writeln!(svg, r#"<polyline points="{}" fill="none" {stroke}/>"#, points.join(" "));
            let y = top + TOP + 14.0 + 18.0 * number as f64;
            let plural = if line.nodes == 1 { "" } else { "s" };
            let _ = writeln!(
                svg,
                r#"<line x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}" {stroke}/><text x="{:.1}" y="{y:.1}">{}, {} node{plural}</text>"#,
                right + 10.0,
                y - 4.0,
                right + 30.0,
                y - 4.0,
                right + 36.0,
                escaped(&line.system),
                line.nodes
            );
        }
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(system: &str, nodes: usize, values: &[f64]) -> PlotLine {
        let points = values.iter().map(|value| (0.5, *value)).collect();
        PlotLine { system: system.to_owned(), nodes, points }
    }

    #[test]
    fn the_larger_is_further_up() {
        for vertical in [Vertical::Tens, Vertical::Even] {
            let axis = Axis::new(0.0, vertical, &[line("a", 1, &[0.3, 20.0])]);
            assert!(axis.y(20.0) < axis.y(0.3), "{vertical:?}");
            assert!(axis.marks().iter().all(|mark| (TOP..=HEIGHT).contains(&axis.y(*mark))), "{vertical:?}");
        }
    }

    #[test]
    fn an_axis_ends_at_a_round_number() {
        let found = [0.9, 1.0, 3.0, 70.0, 90.0].map(rounded_up);
        assert_eq!(found, [1.0, 1.0, 4.0, 80.0, 100.0]);
        let axis = Axis::new(0.0, Vertical::Even, &[line("a", 1, &[0.7])]);
        assert_eq!(axis.marks(), [0.0, 0.2, 0.4, 0.6, 0.8]);
    }

    #[test]
    fn a_system_has_one_colour_and_is_dashed_on_one_node() {
        let strokes = strokes(&[line("a", 1, &[]), line("b", 1, &[]), line("a", 3, &[])]);
        assert!(strokes[0].starts_with(&strokes[2]) && strokes[0].contains("dash"));
        assert_ne!(strokes[0], strokes[1]);
    }
}
