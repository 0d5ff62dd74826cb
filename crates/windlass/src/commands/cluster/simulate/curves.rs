//! The curves of a simulation as an SVG image.

use std::fmt::Write as _;

use windlass_sched::policy::Policy;

use super::report::FillingReport;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 560.0;
/// Room for the axes' labels, and on the right for the names of the policies.
const LEFT: f64 = 64.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 48.0;
const BOTTOM: f64 = 56.0;

/// Fixed colour of each policy, from a palette that is safe for colour blindness (Okabe and Ito, "Color Universal
/// Design").
const COLOURS: [&str; Policy::ALL.len()] =
    ["#999999", "#000000", "#56b4e9", "#e69f00", "#cc79a7", "#009e73", "#0072b2", "#d55e00"];

/// Horizontal axis, from zero to `max_percent`.
struct Scale {
    max_percent: f64,
}

/// Draws allocated over requested GPUs, a curve for each policy.
pub(super) fn draw(report: &FillingReport) -> String {
    let points = report.policies.iter().flat_map(|filling| &filling.allocated);
    let max = points.map(|point| point.requested_percent).max().unwrap_or(100);
    let scale = Scale { max_percent: f64::from(max.div_ceil(10).max(1) * 10) };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"13\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    scale.axes(&mut svg, &report.setting.pods);
    for (n, filling) in (0_u32..).zip(&report.policies) {
        let position = Policy::ALL.iter().position(|policy| policy.name() == filling.policy);
        let colour = COLOURS[position.unwrap_or(0)];
        let points: Vec<String> = filling
            .allocated
            .iter()
            .map(|point| {
                let x = scale.x(f64::from(point.requested_percent));
                format!("{x:.1},{:.1}", y(point.mean_percent))
            })
            .collect();
        let last = filling.allocated.last().map_or(0.0, |point| point.mean_percent);
        let below = TOP + 20.0 * f64::from(n);
        let (x, name) = (WIDTH - RIGHT + 16.0, filling.policy);
        let _ = write!(
            svg,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>\n\
             <text x=\"{x}\" y=\"{below}\" fill=\"{colour}\">{name} {last:.2}</text>\n",
            points.join(" "),
        );
    }
    svg.push_str("</svg>\n");
    svg
}

impl Scale {
    fn x(&self, requested: f64) -> f64 {
        LEFT + requested / self.max_percent * (WIDTH - LEFT - RIGHT)
    }

    fn axes(&self, svg: &mut String, pods: &str) {
        let mut tick = 0.0;
        while tick <= self.max_percent {
            let x = self.x(tick);
            let _ = write!(
                svg,
                "<line x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{:.1}\" stroke=\"#dddddd\"/>\n\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{tick}</text>\n",
                y(0.0),
                y(100.0),
                y(0.0) + 18.0,
            );
            if tick <= 100.0 {
                let level = y(tick);
                let _ = write!(
                    svg,
                    "<line x1=\"{LEFT}\" y1=\"{level:.1}\" x2=\"{:.1}\" y2=\"{level:.1}\" stroke=\"#dddddd\"/>\n\
                     <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{tick}</text>\n",
                    self.x(self.max_percent),
                    LEFT - 8.0,
                    level + 4.0,
                );
            }
            tick += 10.0;
        }
        let _ = write!(
            svg,
            "<text x=\"{LEFT}\" y=\"24\" font-size=\"16\">GPUs allocated over GPUs requested, in percent of the \
             cluster's ({})</text>\n<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">requested</text>\n",
            // The name of the table is part of a file name, so XML needs escapes.
            pods.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;"),
            f64::midpoint(LEFT, WIDTH - RIGHT),
            HEIGHT - 14.0,
        );
    }
}

fn y(allocated: f64) -> f64 {
    HEIGHT - BOTTOM - allocated / 100.0 * (HEIGHT - TOP - BOTTOM)
}
