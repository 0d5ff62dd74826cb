//! What a source thought of everything that it looked at: made when a person asks for it, never at a look.

use serde::Serialize;
use windlass_config::{Find, Places, SourceRule};
use windlass_core::{device::DeviceId, selector::DeviceExpression};

use super::{
    find::{self, Candidate, Found},
    identity::id,
    make::Maker,
    nodes::Nodes,
    told::Told,
    unit,
    usb::Serials,
};

/// Everything that a source looked at.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Considered {
    /// Where it looked.
    pub places: Vec<String>,
    /// What it passed over, and what else there is to say.
    pub remarks: Vec<String>,
    /// Everything that is there.
    pub candidates: Vec<CandidateVerdict>,
}

/// Something that a source looked at, and what it made of it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CandidateVerdict {
    /// Where it is: a folder of sysfs, a node, a file, an address.
    pub found: String,
    /// What it is called there.
    pub name: String,
    /// The device that it is, or is a part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceId>,
    /// Why it is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Looks once, as the source does, and says of all that is there what becomes of it. May block.
///
/// # Errors
///
/// When the source could not look, such as at a folder with more entries than any machine has.
pub fn considered(places: &Places, rule: &SourceRule) -> Result<Considered, String> {
    let host = places.host();
    let mut serials = Serials::default();
    serials.look(&host);
    let Found { mut candidates, mut remarks } = find::find(rule, &host, &serials)?;
    Told::default().tell(&host, rule, &mut candidates);
    let nodes = Nodes::new(&host, &serials);
    let maker = Maker { host: &host, rule, kubelet_dir: &places.kubelet_dir, nodes: &nodes };
    let (mut verdicts, mut picked) = (Vec::new(), Vec::new());
    for (index, candidate) in (0..).zip(candidates) {
        let why = rule.expression.as_ref().and_then(|it| why_not(&maker, it, (index, &candidate)));
        match why {
            Some(why) => verdicts.push(CandidateVerdict::without_device(&candidate, why)),
            None => picked.push(candidate),
        }
    }
    let (devices, left) = grouped(rule, picked);
    remarks.extend(left);
    let candidates = devices.into_iter().chain(verdicts).collect();
    Ok(Considered { places: looked_at(&rule.find), remarks, candidates })
}

fn why_not(
    maker: &Maker<'_>,
    expression: &DeviceExpression,
    (index, candidate): (u32, &Candidate),
) -> Option<String> {
    expression.why_not(&maker.seen(index, candidate))
}

/// Which device each candidate is that is meant; and what is to be said of those that are none.
fn grouped(rule: &SourceRule, picked: Vec<Candidate>) -> (Vec<CandidateVerdict>, Option<String>) {
    let all: Vec<_> = picked.iter().map(Candidate::place_of_verdict).collect();
    let (groups, left) = unit::groups(rule, picked);
    let (mut verdicts, mut ids) = (Vec::new(), Vec::new());
    for group in groups {
        let id = id(&rule.name, &group.identity);
        let is_first = !ids.contains(&id);
        for member in &group.members {
            verdicts.push(if is_first {
                CandidateVerdict { device: Some(id.clone()), ..member.place_of_verdict() }
            } else {
                CandidateVerdict::without_device(member, format!("another goes by the name {id}"))
            });
        }
        ids.push(id);
    }
    if verdicts.is_empty() {
        let lone = |verdict| CandidateVerdict { reason: Some(NO_PARTNER.to_owned()), ..verdict };
        verdicts = all.into_iter().map(lone).collect();
    }
    (verdicts, left)
}

const NO_PARTNER: &str = "one device is a match of every pattern, and another pattern has none";

/// Where a source looks.
fn looked_at(find: &Find) -> Vec<String> {
    match find {
        Find::Bus(name) => vec![format!("/sys/bus/{name}/devices")],
        Find::Class(name) => vec![format!("/sys/class/{name}")],
        Find::Nodes(patterns) => patterns.clone(),
        Find::Files(folder) => vec![folder.display().to_string()],
        Find::Endpoints(endpoints) => endpoints.clone(),
    }
}

// === impl Candidate ===

impl Candidate {
    /// Where it is; what becomes of it is not known yet.
    fn place_of_verdict(&self) -> CandidateVerdict {
        let name = self.text("name").unwrap_or(&self.identity).to_owned();
        CandidateVerdict { found: self.origin.clone(), name, device: None, reason: None }
    }
}

// === impl CandidateVerdict ===

impl CandidateVerdict {
    fn without_device(candidate: &Candidate, why: String) -> Self {
        Self { reason: Some(why), ..candidate.place_of_verdict() }
    }
}
