//! Configuration of the agent: every path, time limit and rule, as checked values.
//!
//! Each key of the file is a field of one struct, which has its type, default, check, documentation and schema. Paths
//! and limits are fixed when the agent starts; the [`Policy`] may be replaced while it runs.

mod delivery;
pub mod denylist;
mod disclosed;
pub mod document;
mod dra;
mod families;
pub mod family_attributes;
mod file;
mod health;
mod labels;
mod limits;
mod lint;
mod memory_limits;
pub mod mig_profile;
mod mistake;
mod mps;
mod nics;
mod node_config;
mod nv_fractions;
mod places;
mod policy;
pub mod rules;
mod sample_device;
mod scalar;
mod selector;
mod shares;
mod sharing;
mod shipped;
pub mod source;
mod steps;
mod watchdog;

use std::{collections::BTreeSet, net::SocketAddr, path::PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use delivery::{
    AnnotationPrefix, Delivery, DeviceIdStrategy, DeviceListStrategy, Feature, Hooks, Imex,
    InvalidPrefix,
};
pub use disclosed::Disclosed;
pub use document::Diagnostic;
pub use dra::{
    DraMigMode, DraOffer, DraPartitions, DraPolicy, DraTaints, DriverName, InvalidDriverName,
    ShareLimits, ShareMethod, ShareRule, ShareSettings,
};
pub use families::{AmdNaming, AmdRules, Families, FpgaMode, FpgaRules, FpgaUnit, IntelRules};
pub use file::{schema, to_yaml};
pub use health::{HealthPolicy, UnlistedXids};
pub use labels::{LabelOutput, LabelPolicy};
pub use limits::{CleanupLimits, KubeletLimits};
pub use memory_limits::{MemoryLimitPolicy, RequiredLimit};
pub use mistake::{ConfigError, InvalidConfig};
pub use mps::{MpsSettings, MpsUsers};
pub use nics::{MissingNodes, NicIds, NicPolicy, RdmaNode};
pub use node_config::{ConfigDir, LabelFile, LabelValue};
pub use nv_fractions::NvFractions;
pub use places::{ClusterAccess, DriverRoots, HostPaths, PodIdentity};
pub use policy::{MigStrategy, Policy, ResourceRule, Resources, Unmatched};
pub use scalar::address;
pub use selector::Selector;
pub use shares::ShareResources;
pub use sharing::{
    InvalidReplicas, PerContainer, Pooled, Replicas, Shared, Sharing, SharingMethod,
    mps_clients_error,
};
pub use shipped::{DeviceProfile, UnknownDeviceProfile};
pub use source::{
    DiscoveryRule, EditTemplates, Grouping, MountTemplate, NodeTemplate, Probe, ProbeTest,
    SourceRule,
};
pub use steps::{
    CleanupSteps, IDLE_MEMORY_BYTES, Link, Memory, Processes, Reset, Step, StepAction,
};
pub use watchdog::{WatchdogAction, WatchdogPolicy};

use scalar::Text;

/// Configuration of `windlass node`. Every key is optional; an unknown key is an error.
///
/// [`Config::parse`] reads a whole file. Deserialized alone, it reads the keys that are its own fields.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[schemars(title = "Configuration of windlass node")]
pub struct Config {
    /// Paths on the machine.
    #[serde(flatten, skip_deserializing)]
    #[schemars(!skip_deserializing)]
    pub places: HostPaths,
    /// Settings of MPS daemons.
    pub mps: MpsSettings,
    /// Address of health and metrics over HTTP. Default: neither is served.
    #[serde(with = "Text::<SocketAddr>")]
    pub listen: Option<SocketAddr>,
    /// Unix socket to which `windlass probe` connects. Default: none.
    pub probe_socket: Option<PathBuf>,
    /// Facts that `/metrics` and `/devices` show to every client: names of pods, serial numbers.
    pub disclose: BTreeSet<Disclosed>,
    /// Access to the API server.
    pub cluster: ClusterAccess,
    /// GPU fractions by KAI's annotations, which the agent enforces at the container runtime.
    pub nv_fractions: NvFractions,
    /// Time limits of calls to and from the kubelet.
    #[serde(skip)]
    pub kubelet_limits: KubeletLimits,
    /// Time limits of cleanup between containers.
    #[serde(skip)]
    pub cleanup_limits: CleanupLimits,
    /// The part that may change while the agent runs.
    #[serde(flatten, skip_deserializing)]
    #[schemars(!skip_deserializing)]
    pub policy: Policy,
}
