//! Diagnosis of a configured source: its verdict on every candidate. Runs on request only.

use serde::Serialize;
use windlass_config::{DiscoveryRule, HostPaths, SourceRule};
use windlass_core::device::DeviceId;
use windlass_host::usb::Serials;

use super::{
    builder::DeviceBuilder,
    file_attributes::FileAttributes,
    find::{self, Candidate, FindResult},
    identity::id,
    nodes::Nodes,
    unit,
};

/// Diagnosis of a source.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceDiagnosis {
    /// Searched locations.
    pub places: Vec<String>,
    /// Skipped entries and other notes.
    pub notes: Vec<String>,
    /// Verdict on each candidate.
    pub candidates: Vec<CandidateVerdict>,
}

/// Verdict on a candidate.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CandidateVerdict {
    /// Origin: sysfs folder, node, file or address.
    pub found: String,
    /// Name of the candidate at its origin, such as its name on the bus.
    pub name: String,
    /// The device that it forms or belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceId>,
    /// Reason why the candidate forms no device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Scans once, as the source does, and returns a verdict on every candidate. Blocks.
///
/// # Errors
///
/// Fails if the scan fails, such as for a folder with too many entries.
pub fn diagnose(paths: &HostPaths, rule: &SourceRule) -> Result<SourceDiagnosis, String> {
    let host = paths.host();
    let mut serials = Serials::default();
    serials.refresh(&host);
    let FindResult { mut candidates, mut notes } = find::find(rule, &host, &serials)?;
    FileAttributes::default().add_to(&host, rule, &mut candidates);
    let nodes = Nodes::new(&host, &serials);
    let builder =
        DeviceBuilder { host: &host, rule, kubelet_dir: &paths.kubelet_dir, nodes: &nodes };
    let (mut verdicts, mut selected) = (Vec::new(), Vec::new());
    for (index, candidate) in (0..).zip(candidates) {
        let reason = rule.expression.as_ref();
        let reason = reason.and_then(|expression| {
            expression.explain_mismatch(&builder.preview(index, &candidate))
        });
        match reason {
            Some(reason) => verdicts.push(CandidateVerdict::without_device(&candidate, reason)),
            None => selected.push(candidate),
        }
    }
    let (devices, leftover) = group_verdicts(rule, selected);
    notes.extend(leftover);
    let candidates = devices.into_iter().chain(verdicts).collect();
    Ok(SourceDiagnosis { places: search_targets(&rule.find), notes, candidates })
}

/// Verdicts on selected candidates, and a diagnostic about leftovers.
fn group_verdicts(
    rule: &SourceRule,
    selected: Vec<Candidate>,
) -> (Vec<CandidateVerdict>, Option<String>) {
    let blank_verdicts: Vec<_> = selected.iter().map(Candidate::blank_verdict).collect();
    let (groups, leftover) = unit::groups(rule, selected);
    let (mut verdicts, mut ids) = (Vec::new(), Vec::new());
    for group in groups {
        let id = id(&rule.name, &group.identity);
        let is_first = !ids.contains(&id);
        for member in &group.members {
            verdicts.push(if is_first {
                CandidateVerdict { device: Some(id.clone()), ..member.blank_verdict() }
            } else {
                CandidateVerdict::without_device(
                    member,
                    format!("another device has the name {id}"),
                )
            });
        }
        ids.push(id);
    }
    if verdicts.is_empty() {
        let without_partner =
            |verdict| CandidateVerdict { reason: Some(NO_PARTNER.to_owned()), ..verdict };
        verdicts = blank_verdicts.into_iter().map(without_partner).collect();
    }
    (verdicts, leftover)
}

const NO_PARTNER: &str = "a device needs a match of every pattern, and another pattern has none";

/// Searched locations.
fn search_targets(find: &DiscoveryRule) -> Vec<String> {
    match find {
        DiscoveryRule::Bus(name) => vec![format!("/sys/bus/{name}/devices")],
        DiscoveryRule::Class(name) => vec![format!("/sys/class/{name}")],
        DiscoveryRule::Nodes(patterns) => patterns.clone(),
        DiscoveryRule::Files(folder) => vec![folder.display().to_string()],
        DiscoveryRule::Endpoints(endpoints) => endpoints.clone(),
    }
}

// === impl Candidate ===

impl Candidate {
    /// A verdict with origin and name only. The caller adds the device or the reason.
    fn blank_verdict(&self) -> CandidateVerdict {
        let name = self.text("name").unwrap_or(&self.identity).to_owned();
        CandidateVerdict { found: self.origin.clone(), name, device: None, reason: None }
    }
}

// === impl CandidateVerdict ===

impl CandidateVerdict {
    fn without_device(candidate: &Candidate, reason: String) -> Self {
        Self { reason: Some(reason), ..candidate.blank_verdict() }
    }
}
