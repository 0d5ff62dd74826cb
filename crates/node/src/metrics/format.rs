//! Exposition formats: `OpenMetrics`, which `prometheus_client` writes, and the classic text format of all scrapers.
//!
//! <https://github.com/prometheus/OpenMetrics/blob/v1.0.0/specification/OpenMetrics.md>,
//! <https://prometheus.io/docs/instrumenting/exposition_formats>

use std::fmt::{self, Write as _};

use prometheus_client::{encoding::text, registry::Registry};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    OpenMetrics,
    /// Text format 0.0.4.
    Classic,
}

const OPENMETRICS: &str = "application/openmetrics-text";

// === impl Format ===

impl Format {
    /// Format for an `Accept` header: `OpenMetrics` if the header lists it with at least the weight of `text/plain`,
    /// else the classic format. All other types, `*/*` included, are ignored.
    pub(crate) fn negotiate(header: &str) -> Self {
        let weight_of = |kind: &str| {
            let weights = header.split(',').filter_map(|range| {
                let mut parts = range.split(';').map(str::trim);
                parts.next()?.eq_ignore_ascii_case(kind).then_some(())?;
                let weight = parts.find_map(|part| part.strip_prefix("q="));
                Some(weight.and_then(|weight| weight.parse().ok()).unwrap_or(1.0))
            });
            weights.fold(0.0_f64, f64::max)
        };
        let openmetrics_weight = weight_of(OPENMETRICS);
        if openmetrics_weight > 0.0 && openmetrics_weight >= weight_of("text/plain") {
            Self::OpenMetrics
        } else {
            Self::Classic
        }
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    pub(crate) fn encode(self, registry: &Registry) -> Result<String, fmt::Error> {
        let mut page = String::new();
        text::encode(&mut page, registry)?;
        match self {
            Self::OpenMetrics => Ok(page),
            Self::Classic => classic(&page),
        }
    }
}

/// Converts `OpenMetrics` to the classic format. There, counters have `_total` in the name of their family; infos,
/// units and the end marker do not exist; help texts escape backslashes and line ends only.
fn classic(openmetrics: &str) -> Result<String, fmt::Error> {
    let (mut page, mut help) = (String::with_capacity(openmetrics.len()), "");
    for line in openmetrics.lines() {
        let words: Vec<_> = line.splitn(4, ' ').collect();
        match words.as_slice() {
            // The type on the next line determines the family's name.
            ["#", "HELP", _, text] => help = text,
            ["#", "TYPE", family, kind] => {
                let (suffix, kind) = match *kind {
                    "counter" => ("_total", "counter"),
                    "info" => ("_info", "gauge"),
                    "unknown" => ("", "untyped"),
                    kind => ("", kind),
                };
                let help = help.replace(r#"\""#, "\"");
                writeln!(page, "# HELP {family}{suffix} {help}")?;
                writeln!(page, "# TYPE {family}{suffix} {kind}")?;
            }
            ["#", ..] => {}
            _ => writeln!(page, "{line}")?,
        }
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use prometheus_client::{
        metrics::{counter::Counter, gauge::Gauge, histogram::Histogram, info::Info},
        registry::Unit,
    };

    use super::*;

    #[test]
    fn a_client_gets_the_accepted_format_and_by_default_the_classic_one() {
        let check = |header, expected| assert_eq!(Format::negotiate(header), expected, "{header}");
        // Prometheus 3, Prometheus with protobuf, curl, a browser.
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
            application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,\
            text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        check(prometheus, Format::OpenMetrics);
        let protobuf = "application/vnd.google.protobuf;encoding=delimited;q=0.6,\
            application/openmetrics-text; version=1.0.0; q=0.5, text/plain;q=0.3";
        check(protobuf, Format::OpenMetrics);
        check("*/*", Format::Classic);
        check("text/html,application/xhtml+xml,*/*;q=0.8", Format::Classic);
        check("", Format::Classic);
        check("text/plain;version=0.0.4", Format::Classic);
        check("Application/OpenMetrics-Text", Format::OpenMetrics);
        check("application/openmetrics-text;q=0", Format::Classic);
        check("application/openmetrics-text;q=0.2,text/plain;q=0.9", Format::Classic);
        check("application/openmetrics-text-2", Format::Classic);
    }

    #[test]
    fn the_classic_format_has_the_same_values() {
        let mut registry = Registry::with_prefix("w");
        registry.register(
            "build",
            "A \\\"version\\\"",
            Info::new(vec![("version", "a \"b\" # TYPE c")]),
        );
        let counter = Counter::<u64>::default();
        counter.inc();
        registry.register("calls", "How many", counter);
        let histogram = Histogram::new([0.5]);
        histogram.observe(0.25);
        registry.register_with_unit("time", "How long", Unit::Seconds, histogram);
        registry.register("things", "Some", Gauge::<i64>::default());
        let text = Format::Classic.encode(&registry).expect("written");
        insta::assert_snapshot!(text, @r##"
        # HELP w_build_info A "version".
        # TYPE w_build_info gauge
        w_build_info{version="a \"b\" # TYPE c"} 1
        # HELP w_calls_total How many.
        # TYPE w_calls_total counter
        w_calls_total 1
        # HELP w_time_seconds How long.
        # TYPE w_time_seconds histogram
        w_time_seconds_sum 0.25
        w_time_seconds_count 1
        w_time_seconds_bucket{le="0.5"} 1
        w_time_seconds_bucket{le="+Inf"} 1
        # HELP w_things Some.
        # TYPE w_things gauge
        w_things 0
        "##);
        assert!(Format::OpenMetrics.encode(&registry).expect("written").ends_with("# EOF\n"));
    }
}
