//! `windlass xids`: which errors of NVIDIA's driver make a GPU unhealthy, and why.

use anyhow::Result;
use serde::Serialize;
use windlass_core::health::{Action, Verdict, XidRule, judge_xid, xid_rules};

use super::answer;
use crate::{
    cli::XidsArgs,
    screen::{Table, line},
};

/// The policy for programs.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    xids: Vec<Entry>,
    /// The verdict on every other code.
    unlisted: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    xid: u64,
    verdict: &'static str,
    meaning: &'static str,
    action: Action,
    reason: &'static str,
}

/// A code that no driver reports.
const UNLISTED: u64 = u64::MAX;

/// What the three verdicts come to.
const LEGEND: &str = "\
critical makes a GPU unhealthy; application and informational do not. The action is what NVIDIA's
catalogue asks for first. Codes that are not listed are";

pub(super) fn run(args: &XidsArgs) -> Result<()> {
    let document = Document {
        xids: xid_rules().iter().map(Entry::of).collect(),
        unlisted: verdict(judge_xid(UNLISTED).0),
    };
    answer(args.output, &document, || table(&document))
}

fn table(document: &Document) -> Result<()> {
    let mut table = Table::new(["XID", "VERDICT", "MEANING", "ACTION", "REASON"]);
    for Entry { xid, verdict, meaning, action, reason } in &document.xids {
        let [verdict, meaning, reason] = [verdict, meaning, reason].map(|text| (*text).to_owned());
        table.row([xid.to_string(), verdict, meaning, action.to_string(), reason]);
    }
    table.lines("").into_iter().try_for_each(line)?;
    line(format!("\n{LEGEND} {}.", document.unlisted))?;
    Ok(line("ignoredXids and countedXids in the configuration overrule the table.")?)
}

impl Entry {
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
