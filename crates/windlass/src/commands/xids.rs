//! `windlass xids`: errors of NVIDIA's driver with their effect on health.

use anyhow::Result;
use serde::Serialize;
use windlass_core::health::{Action, Verdict, XidRule, judge_xid, xid_rules};

use super::answer;
use crate::{
    cli::XidsArgs,
    screen::{Table, line},
};

/// Output in JSON and YAML.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct XidDocument {
    xids: Vec<XidEntry>,
    /// Verdict for unlisted codes.
    unlisted: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct XidEntry {
    xid: u64,
    verdict: &'static str,
    meaning: &'static str,
    action: Action,
    reason: &'static str,
}

/// A code that no driver reports.
const UNLISTED: u64 = u64::MAX;

/// Meaning of the verdicts.
const LEGEND: &str = "\
critical makes a GPU unhealthy; application and informational do not. The action is the first one in
NVIDIA's catalogue. Unlisted codes are";

pub(super) fn run(args: &XidsArgs) -> Result<()> {
    let document = XidDocument {
        xids: xid_rules().iter().map(XidEntry::of).collect(),
        unlisted: verdict(judge_xid(UNLISTED).0),
    };
    answer(args.output, &document, || table(&document))
}

fn table(document: &XidDocument) -> Result<()> {
    let mut table = Table::new(["XID", "VERDICT", "MEANING", "ACTION", "REASON"]);
    for XidEntry { xid, verdict, meaning, action, reason } in &document.xids {
        let [verdict, meaning, reason] = [verdict, meaning, reason].map(|text| (*text).to_owned());
        table.row([xid.to_string(), verdict, meaning, action.to_string(), reason]);
    }
    table.print()?;
    line(format!("\n{LEGEND} {}.", document.unlisted))?;
    Ok(line("ignoredXids and countedXids in the configuration override the table.")?)
}

impl XidEntry {
    fn of(rule: &XidRule) -> Self {
        let XidRule { code, meaning, reason, action, .. } = *rule;
        Self { xid: code, verdict: verdict(rule.verdict), meaning, action, reason }
    }
}

fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Application => "application",
        Verdict::Informational => "informational",
        Verdict::Critical => "critical",
    }
}
