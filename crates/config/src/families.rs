//! Rules for the built-in families: NVIDIA's, AMD's and Intel's GPUs, FPGAs.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::device::SourceName;

use crate::{
    denylist,
    document::OneOrMany,
    source,
    steps::{CleanupSteps, HasSteps, with_steps},
};

/// Rules for the built-in families.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Families {
    /// Steps on NVIDIA's GPUs between containers.
    pub gpu: CleanupSteps,
    /// AMD's GPUs.
    pub amd: AmdRules,
    /// Intel's GPUs.
    pub intel: IntelRules,
    /// FPGAs.
    #[serde(deserialize_with = "with_steps")]
    pub fpga: FpgaRules,
}

/// Rules for AMD's GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AmdRules {
    /// Resource names of GPUs and their partitions.
    pub naming: AmdNaming,
}

/// Resource names of AMD's GPUs and their partitions. The words are those of AMD's plugin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AmdNaming {
    /// Both whole GPUs and partitions as `amd.com/gpu`.
    #[default]
    Single,
    /// By partition profile, `amd.com/cpx_nps4`.
    Mixed,
}

/// Rules for Intel's GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct IntelRules {
    /// Names the render node `/dev/dri/renderD128` in a container. Many video programs use only this path.
    #[serde(rename = "renderAs128")]
    pub render_as_128: bool,
}

/// Rules for FPGAs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct FpgaRules {
    /// The part of a board with Linux' DFL or Intel's OPAE driver that is one device.
    pub mode: FpgaMode,
    /// The part of Alveo boards that is one device.
    pub unit: FpgaUnit,
    /// Also gives a container the node of an Alveo board's management function. With it a container can reprogram the
    /// board, and reset it while other containers use it.
    pub management_nodes: bool,
    /// Temperature limit of an Alveo board's FPGA, in degrees Celsius. Most boards have no limit of their own.
    #[serde(rename = "hottest")]
    pub hottest_celsius: Option<u32>,
    /// Patterns of device nodes of the logic programmed into a system on a chip. The kernel may list them elsewhere
    /// than below the region.
    #[serde(with = "OneOrMany::<String>")]
    pub nodes: Vec<String>,
    /// Steps on an FPGA between containers, such as programming it. After `prepare` the FPGA must report the attributes
    /// with which it was offered.
    #[serde(flatten, skip_deserializing)]
    #[schemars(!skip_deserializing)]
    pub cleanup: CleanupSteps,
    /// Attributes that an FPGA must report after `prepare`, by name. Default: the attributes with which it was offered.
    pub expect: BTreeMap<String, String>,
}

/// The part of a board with regions that is one device. The words are those of Intel's plugin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FpgaMode {
    /// Each accelerator function that is programmed into a region. Resources are named by interface and function.
    #[default]
    Af,
    /// Each region, with any function. Resources are named by interface.
    Region,
    /// Each region, with the node that programs it.
    RegionDevel,
}

/// The part of Alveo boards that is one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FpgaUnit {
    /// Each FPGA.
    #[default]
    Board,
    /// All FPGAs with one serial number: a U30 has two.
    Card,
}

/// Plausible temperature limits of an FPGA.
const CELSIUS: std::ops::RangeInclusive<u32> = 30..=150;

// === impl Families ===

impl Families {
    /// Errors in the section `gpu`.
    pub(crate) fn validate_gpu(&self) -> Vec<String> {
        source::step_errors(SourceName::NVIDIA, &self.gpu)
    }
}

// === impl FpgaRules ===

impl FpgaRules {
    /// Errors that the types do not exclude.
    pub(crate) fn validate(&self) -> Vec<String> {
        let node_error =
            |node: &String| denylist::node_path_error(node).or_else(|| denylist::node_danger(node));
        let mut errors: Vec<_> = self.nodes.iter().filter_map(node_error).collect();
        if let Some(hottest) = self.hottest_celsius.filter(|celsius| !CELSIUS.contains(celsius)) {
            errors.push(format!("hottest: {hottest} °C is not between 30 and 150 °C"));
        }
        let programming_errors = source::programming_errors(&self.cleanup, &self.expect);
        errors.extend(programming_errors.into_iter().map(|text| format!("fpga: {text}")));
        if self.unit == FpgaUnit::Card && !self.cleanup.prepare.is_empty() {
            errors.push(PREPARE_WITH_CARDS.to_owned());
        }
        errors
    }
}

const PREPARE_WITH_CARDS: &str =
    "fpga: prepare programs one FPGA, and with unit: card a device has several";

impl HasSteps for FpgaRules {
    fn set_steps(&mut self, steps: CleanupSteps) {
        self.cleanup = steps;
    }
}
