//! `windlass xids`: errors of NVIDIA's driver with their effect on health.

use anyhow::Result;
use serde::Serialize;
use windlass_core::health::{Verdict, XidRule, judge_xid, xid_rules};

use super::print_output;
use crate::{
    cli::XidsArgs,
    screen::{Table, print_line},
};

/// Output in JSON and YAML.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct XidDocument {
    xids: &'static [XidRule],
    /// Verdict for unlisted codes.
    unlisted: Verdict,
}

/// A code that no driver reports.
const UNLISTED: u64 = u64::MAX;

/// Meaning of the verdicts.
const LEGEND: &str = "\
critical makes a GPU unhealthy; application and informational do not. The action is the first one in
NVIDIA's catalogue. Unlisted codes are";

pub(crate) fn run(args: &XidsArgs) -> Result<()> {
    let document = XidDocument { xids: xid_rules(), unlisted: judge_xid(UNLISTED).0 };
    print_output(args.output, &document, || table(&document))
}

fn table(document: &XidDocument) -> Result<()> {
    let mut table = Table::new(["XID", "VERDICT", "MEANING", "ACTION", "REASON"]);
    for rule in document.xids {
        let [verdict, meaning, reason] =
            [verdict(rule.verdict), rule.meaning, rule.reason].map(str::to_owned);
        table.add_row([rule.code.to_string(), verdict, meaning, rule.action.to_string(), reason]);
    }
    table.print()?;
    print_line(format!("\n{LEGEND} {}.", verdict(document.unlisted)))?;
    Ok(print_line("ignoredXids and countedXids in the configuration override the table.")?)
}

fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Application => "application",
        Verdict::Informational => "informational",
        Verdict::Critical => "critical",
    }
}
