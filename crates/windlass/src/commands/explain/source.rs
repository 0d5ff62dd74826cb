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
    screen::{Paint, Style, Table, pluralized, print_line},
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

/// Candidate with its verdict and offer.
#[derive(Serialize)]
struct ExplainedCandidate {
    #[serde(flatten)]
    verdict: CandidateVerdict,
    #[serde(flatten)]
    offer: Option<DeviceOffer>,
}

pub(super) async fn run(config: Config, name: &str, output: OutputArg) -> Result<()> {
    let rule = source_rule(&config, name)?.clone();
    let node = agent::scan_host(&config, clock()).await;
    let diagnosis = tokio::task::spawn_blocking(move || {
        diagnose(&config.places, &rule).map(|diagnosis| (diagnosis, rule))
    });
    let (diagnosis, rule) = diagnosis
        .await?
        .map_err(|reason| anyhow!(reason))
        .with_context(|| format!("source {name}"))?;
    let SourceDiagnosis { places, notes, candidates } = diagnosis;
    let mut candidates: Vec<_> =
        candidates.into_iter().map(|verdict| ExplainedCandidate::of(&node, verdict)).collect();
    let left_out = candidates.len().saturating_sub(MAX_CANDIDATES);
    candidates.truncate(MAX_CANDIDATES);
    let document = SourceDocument {
        origin: Origin::of(&node.inventory),
        source: name,
        state: node.inventory.sources.get(name),
        examined: &places,
        expression: rule.expression.as_ref().map(DeviceExpression::as_str),
        notes: &notes,
        candidates: &candidates,
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
    let mut inventory = node.inventory.clone();
    inventory.sources.retain(|name, _| name == document.source);
    source_lines(&inventory, paint).into_iter().try_for_each(print_line)?;
    print_line(paint.styled(Style::Muted, format!("examined {}", document.examined.join(", "))))?;
    for note in document.notes {
        print_line(paint.styled(Style::Warning, format!("note: {note}")))?;
    }
    print_line("")?;
    if document.candidates.is_empty() {
        return Ok(print_line("no candidates")?);
    }
    let mut table = Table::new(["FOUND", "DEVICE", "RESOURCE", "WHY"]);
    document.candidates.iter().for_each(|candidate| table.add_row(candidate.cells()));
    table.print()?;
    if document.left_out > 0 {
        print_line(format!("and {}", pluralized(document.left_out, "more candidate")))?;
    }
    Ok(())
}

// === impl ExplainedCandidate ===

impl ExplainedCandidate {
    /// Adds the offer of the candidate's device.
    fn of(node: &NodeState, mut verdict: CandidateVerdict) -> Self {
        let device = verdict.device.as_ref();
        let offer = device.and_then(|id| node.device_offers().remove(id));
        let is_known = device.is_some_and(|id| node.inventory.get(id.as_str()).is_some());
        if device.is_some() && offer.is_none() {
            let reason = if is_known { NO_RESOURCE } else { "changed during the scan: run again" };
            verdict.reason = Some(reason.to_owned());
        }
        Self { verdict, offer }
    }

    fn cells(&self) -> [String; 4] {
        let Self { verdict: CandidateVerdict { found, name, device, reason }, offer } = self;
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let found = if found.starts_with("/sys/") { name } else { found };
        let resource = offer.as_ref().and_then(|offer| offer.resource.as_ref());
        let obstacle = offer.as_ref().and_then(|offer| offer.obstacle.clone());
        let explanation = match (reason, obstacle) {
            (Some(reason), _) => reason.clone(),
            (None, Some(obstacle)) => format!("withheld: {obstacle}"),
            (None, None) => "offered".to_owned(),
        };
        let device = or_none(device.as_ref().map(ToString::to_string));
        [found.clone(), device, or_none(resource.map(ToString::to_string)), explanation]
    }
}

const NO_RESOURCE: &str = "no resource: add `resource` to the source, or a rule to `resources`";
