//! Report of all findings: totals, and `JUnit` for build servers.

use std::fmt::{self, Write as _};

use serde::Serialize;

use crate::case::{Finding, Verdict};

/// Findings, in the order of the catalogue.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// One finding for each case, or a single one about a program that never serves anything.
    pub findings: Vec<Finding>,
}

/// Number of cases by verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Totals {
    /// [`Verdict::Pass`].
    pub pass: usize,
    /// [`Verdict::Fail`].
    pub fail: usize,
    /// [`Verdict::NotApplicable`].
    pub not_applicable: usize,
}

/// Text escaped for XML. Control characters, which XML 1.0 cannot represent, become `?`.
struct Xml<'a>(&'a str);

// === impl Report ===

impl Report {
    /// Counts the cases by verdict.
    pub fn totals(&self) -> Totals {
        let count =
            |verdict| self.findings.iter().filter(|finding| finding.verdict == verdict).count();
        Totals {
            pass: count(Verdict::Pass),
            fail: count(Verdict::Fail),
            not_applicable: count(Verdict::NotApplicable),
        }
    }

    /// The findings as a `JUnit` document with this name of the test suite.
    pub fn junit(&self, name: &str) -> String {
        let Totals { fail, not_applicable, .. } = self.totals();
        let (count, name) = (self.findings.len(), Xml(name));
        let seconds: f64 = self.findings.iter().map(|finding| finding.took.as_secs_f64()).sum();
        let mut text = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"{name}\" \
             tests=\"{count}\" failures=\"{fail}\" skipped=\"{not_applicable}\" \
             time=\"{seconds:.3}\">\n"
        );
        for finding in &self.findings {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{}", finding.junit());
        }
        text + "</testsuite>\n"
    }
}

// === impl Finding ===

impl Finding {
    fn junit(&self) -> String {
        let (id, sentence, evidence) = (Xml(self.id), Xml(self.sentence), Xml(&self.evidence));
        let took = self.took.as_secs_f64();
        let case = format!("  <testcase classname=\"{id}\" name=\"{sentence}\" time=\"{took:.3}\"");
        match self.verdict {
            Verdict::Pass => format!("{case}><system-out>{evidence}</system-out></testcase>"),
            Verdict::NotApplicable => {
                format!("{case}><skipped message=\"{evidence}\"/></testcase>")
            }
            Verdict::Fail => {
                let lines = self.last_words.join("\n");
                let output = Xml(&lines);
                format!("{case}><failure message=\"{evidence}\">{output}</failure></testcase>")
            }
        }
    }
}

// === impl Xml ===

impl fmt::Display for Xml<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            '\n' | '\t' => f.write_char(c),
            c if c.is_control() => f.write_char('?'),
            c => f.write_char(c),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn finding(id: &'static str, verdict: Verdict, evidence: &str) -> Finding {
        Finding {
            id,
            sentence: "it does",
            source: "there",
            verdict,
            evidence: evidence.to_owned(),
            last_words: vec!["\u{1b}[31mwarn <x>".to_owned()],
            took: Duration::from_millis(1500),
        }
    }

    #[test]
    fn junit_counts_and_escapes() {
        let findings = vec![
            finding("A1", Verdict::Pass, "3 < 4"),
            finding("A2", Verdict::Fail, "says \"no\""),
            finding("A3", Verdict::NotApplicable, "none"),
        ];
        let text = Report { findings }.junit("a & b");
        assert!(text.contains("name=\"a &amp; b\" tests=\"3\" failures=\"1\" skipped=\"1\""));
        assert!(text.contains("<system-out>3 &lt; 4</system-out>"), "{text}");
        assert!(text.contains("message=\"says &quot;no&quot;\">?[31mwarn &lt;x&gt;<"), "{text}");
    }
}
