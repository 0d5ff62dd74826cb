//! The file's keys for families of devices that are built in: `amd`, `intel`, `fpga`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{AmdNaming, AmdRules, FpgaMode, FpgaRules, FpgaUnit, IntelRules};

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

impl From<FpgaEntry> for FpgaRules {
    fn from(entry: FpgaEntry) -> Self {
        let FpgaEntry { mode, unit, management_nodes } = entry;
        Self { mode: mode.unwrap_or_default(), unit: unit.unwrap_or_default(), management_nodes }
    }
}

impl FpgaEntry {
    pub(super) fn of(rules: &FpgaRules) -> Option<Self> {
        let usual = FpgaRules::default();
        (*rules != usual).then_some(Self {
            mode: Some(rules.mode).filter(|mode| *mode != usual.mode),
            unit: Some(rules.unit).filter(|unit| *unit != usual.unit),
            management_nodes: rules.management_nodes,
        })
    }
}
