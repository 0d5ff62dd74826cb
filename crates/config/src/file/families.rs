//! The file's keys for families of devices that are built in: `gpu`, `amd`, `intel`, `fpga`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::device::SourceName;

use super::steps::{self, StepEntry};
use crate::{
    AmdNaming, AmdRules, FpgaMode, FpgaRules, FpgaUnit, Handover, IntelRules, danger,
    document::{Lined, Many, Remark},
    source,
};

/// NVIDIA's GPUs.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct GpuEntry {
    /// What is done before a container starts with a GPU.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    prepare: Vec<Lined<StepEntry>>,
    /// What is done after the last container has let go of a GPU.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    release: Vec<Lined<StepEntry>>,
}

/// AMD's GPUs.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct AmdEntry {
    /// What GPUs and their partitions are offered as.
    #[serde(skip_serializing_if = "Option::is_none")]
    naming: Option<AmdNaming>,
}

/// Intel's GPUs.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct IntelEntry {
    /// Whether a container finds its GPU's render node as `/dev/dri/renderD128`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    render_as128: bool,
}

/// FPGAs.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct FpgaEntry {
    /// What of a board that Linux' DFL or Intel's OPAE driver serves is one device.
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<FpgaMode>,
    /// What of Alveo boards is one device.
    #[serde(skip_serializing_if = "Option::is_none")]
    unit: Option<FpgaUnit>,
    /// Whether a container gets the node of an Alveo board's management function too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    management_nodes: bool,
    /// The temperature of an Alveo board's FPGA from which on it is too hot, in degrees Celsius.
    #[serde(skip_serializing_if = "Option::is_none")]
    hottest: Option<u32>,
    /// Where the logic of a system on a chip has its nodes, by pattern.
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<Many<String>>,
    /// What is done before a container starts with an FPGA, such as programming it. Afterwards the FPGA has
    /// to say that it is what it was offered as.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    prepare: Vec<Lined<StepEntry>>,
    /// What is done after the last container has let go of an FPGA, and at once where `prepare` failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    release: Vec<Lined<StepEntry>>,
    /// What an FPGA has to say of itself after `prepare`, by the names of attributes; left out, what it is
    /// offered as.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    expect: BTreeMap<String, String>,
}

/// Limits that an FPGA's temperature may have: below, it is never, and above, it is dead.
const CELSIUS: std::ops::RangeInclusive<u32> = 30..=150;

// === impl GpuEntry ===

impl GpuEntry {
    pub(super) fn into_handover(self, line: u64, wrong: &mut Vec<Remark>) -> Handover {
        steps::builtin((SourceName::NVIDIA, line), (self.prepare, self.release), wrong)
    }

    pub(super) fn of(handover: &Handover) -> Option<Self> {
        let Handover { prepare, release } = handover;
        (*handover != Handover::default())
            .then(|| Self { prepare: steps::written(prepare), release: steps::written(release) })
    }
}

// === impl AmdEntry ===

impl From<AmdEntry> for AmdRules {
    fn from(entry: AmdEntry) -> Self {
        Self { naming: entry.naming.unwrap_or_default() }
    }
}

impl AmdEntry {
    pub(super) fn of(rules: &AmdRules) -> Option<Self> {
        let differs = *rules != AmdRules::default();
        differs.then_some(Self { naming: Some(rules.naming) })
    }
}

// === impl IntelEntry ===

impl From<IntelEntry> for IntelRules {
    fn from(entry: IntelEntry) -> Self {
        Self { render_as_128: entry.render_as128 }
    }
}

impl IntelEntry {
    pub(super) fn of(rules: &IntelRules) -> Option<Self> {
        let differs = *rules != IntelRules::default();
        differs.then_some(Self { render_as128: rules.render_as_128 })
    }
}

// === impl FpgaEntry ===

impl FpgaEntry {
    pub(super) fn into_rules(self, line: u64, wrong: &mut Vec<Remark>) -> FpgaRules {
        let nodes = self.nodes.map(|nodes| nodes.0).unwrap_or_default();
        let why = |pattern: &String| danger::no_node(pattern).or_else(|| danger::of_nodes(pattern));
        wrong.extend(nodes.iter().filter_map(why).map(|why| Remark::new(line, why)));
        let is_odd = |hottest: &u32| !CELSIUS.contains(hottest);
        let why = |hottest| format!("hottest: {hottest} °C is not between 30 and 150 °C");
        wrong.extend(self.hottest.filter(is_odd).map(why).map(|why| Remark::new(line, why)));
        let rules = FpgaRules {
            mode: self.mode.unwrap_or_default(),
            unit: self.unit.unwrap_or_default(),
            management_nodes: self.management_nodes,
            hottest_celsius: self.hottest,
            nodes,
            handover: steps::handover(self.prepare, self.release, wrong),
            expect: self.expect,
        };
        let problems = source::wrong_programming(&rules).into_iter();
        wrong.extend(problems.map(|problem| Remark::new(line, problem)));
        rules
    }

    pub(super) fn of(rules: &FpgaRules) -> Option<Self> {
        let usual = FpgaRules::default();
        (*rules != usual).then_some(Self {
            mode: Some(rules.mode).filter(|mode| *mode != usual.mode),
            unit: Some(rules.unit).filter(|unit| *unit != usual.unit),
            management_nodes: rules.management_nodes,
            hottest: rules.hottest_celsius,
            nodes: Some(rules.nodes.clone()).filter(|nodes| !nodes.is_empty()).map(Many),
            prepare: steps::written(&rules.handover.prepare),
            release: steps::written(&rules.handover.release),
            expect: rules.expect.clone(),
        })
    }
}
