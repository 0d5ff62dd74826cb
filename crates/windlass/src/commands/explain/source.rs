//! `windlass explain --source`: verdicts of a configured source on everything it examined.

use anyhow::{Context as _, Result, anyhow};
use serde::Serialize;
use windlass_config::{Config, SourceRule};
use windlass_core::{device::SourceName, inventory::SourceState, selector::DeviceExpression};
use windlass_discovery::{CandidateVerdict, SourceDiagnosis, diagnose};
use windlass_node::agent;
use windlass_resources::{DeviceOffer, NodeState};

use crate::{
    cli::OutputArg,
    commands::{Origin, clock, print_origin_notice, print_output, require_sources, source_lines},
    exit::UsageError,
    screen::{Paint, Style, Table, line, pluralized},
};

/// Maximum number of candidates in the output; a bus may have thousands.
const MAX_CANDIDATES: usize = 200;

/// Output in JSON and YAML.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SourceDocument<'a> {
    #[serde(flatten)]
    origin: Origin<'a>,
    source: &'a str,
    state: Option<&'a SourceState>,
    examined: &'a [String],
    #[serde(rename = "match", skip_serializing_if = "Option::is_none")]
    expression: Option<&'a str>,
    notes: &'a [String],
    candidates: &'a [ExplainedCandidate],
    /// Number of omitted candidates. Candidates that became devices are shown first.
    left_out: usize,
}

/// Candidate with its verdict and offering.
#[derive(Serialize)]
struct ExplainedCandidate {
    #[serde(flatten)]
    verdict: CandidateVerdict,
    #[serde(flatten)]
    offering: Option<DeviceOffer>,
}

pub(super) async fn run(config: Config, name: &str, output: OutputArg) -> Result<()> {
    let rule = source_rule(&config, name)?.clone();
    let node = agent::scan_host(&config, clock()).await;
    let diagnosis =
        tokio::task::spawn_blocking(move || diagnose(&config.places, &rule).map(|it| (it, rule)));
    let (found, rule) =
        diagnosis.await?.map_err(|why| anyhow!(why)).with_context(|| format!("source {name}"))?;
    let SourceDiagnosis { places, notes, candidates } = found;
    let mut explained: Vec<_> =
        candidates.into_iter().map(|it| ExplainedCandidate::of(&node, it)).collect();
    let left_out = explained.len().saturating_sub(MAX_CANDIDATES);
    explained.truncate(MAX_CANDIDATES);
    let document = SourceDocument {
        origin: Origin::of(&node.inventory),
        source: name,
        state: node.inventory.sources.get(name),
        examined: &places,
        expression: rule.expression.as_ref().map(DeviceExpression::as_str),
        notes: &notes,
        candidates: &explained,
        left_out,
    };
    print_output(output, &document, || show(&node, &document))?;
    require_sources(&node.inventory)
}

/// Rule of a configured source.
fn source_rule<'a>(config: &'a Config, name: &str) -> Result<&'a SourceRule> {
    let sources = &config.policy.sources;
    if let Some(rule) = sources.iter().find(|rule| rule.name.as_str() == name) {
        return Ok(rule);
    }
    let names: Vec<_> = sources.iter().map(|rule| rule.name.as_str()).collect();
    let problem = if name.parse().is_ok_and(|name: SourceName| name.is_built_in()) {
        anyhow!(
            "--source: {name} is built in: `windlass devices --source {name}` shows its devices"
        )
    } else if names.is_empty() {
        anyhow!("--source: the configuration has no sources: name its file with --config")
    } else {
        let names = names.join(", ");
        anyhow!("--source: the configuration has no source {name:?}; known: {names}")
    };
    Err(UsageError(problem).into())
}

fn show(node: &NodeState, document: &SourceDocument<'_>) -> Result<()> {
    let paint = Paint::for_stdout();
    print_origin_notice(&node.inventory, paint)?;
    let mut alone = node.inventory.clone();
    alone.sources.retain(|name, _| name == document.source);
    source_lines(&alone, paint).into_iter().try_for_each(line)?;
    line(paint.styled(Style::Muted, format!("examined {}", document.examined.join(", "))))?;
    for note in document.notes {
        line(paint.styled(Style::Warning, format!("note: {note}")))?;
    }
    line("")?;
    if document.candidates.is_empty() {
        return Ok(line("no candidates")?);
    }
    let mut table = Table::new(["FOUND", "DEVICE", "RESOURCE", "WHY"]);
    document.candidates.iter().for_each(|it| table.row(it.cells()));
    table.print()?;
    if document.left_out > 0 {
        line(format!("and {}", pluralized(document.left_out, "more candidate")))?;
    }
    Ok(())
}

// === impl ExplainedCandidate ===

impl ExplainedCandidate {
    /// Adds the offering of the candidate's device.
    fn of(node: &NodeState, mut verdict: CandidateVerdict) -> Self {
        let device = verdict.device.as_ref();
        let offering = device.and_then(|id| node.device_offers().remove(id));
        let is_known = device.is_some_and(|id| node.inventory.get(id.as_str()).is_some());
        if device.is_some() && offering.is_none() {
            let why = if is_known { NO_RESOURCE } else { "changed during the scan: run again" };
            verdict.reason = Some(why.to_owned());
        }
        Self { verdict, offering }
    }

    fn cells(&self) -> [String; 4] {
        let Self { verdict: CandidateVerdict { found, name, device, reason }, offering } = self;
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let found = if found.starts_with("/sys/") { name } else { found };
        let resource = offering.as_ref().and_then(|it| it.resource.as_ref());
        let obstacle = offering.as_ref().and_then(|it| it.obstacle.clone());
        let why = match (reason, obstacle) {
            (Some(why), _) => why.clone(),
            (None, Some(why)) => format!("withheld: {why}"),
            (None, None) => "offered".to_owned(),
        };
        let device = or_none(device.as_ref().map(ToString::to_string));
        [found.clone(), device, or_none(resource.map(ToString::to_string)), why]
    }
}

const NO_RESOURCE: &str = "no resource: add `resource` to the source, or a rule to `resources`";
