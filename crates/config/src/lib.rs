//! What the agent is told: every path, time limit and rule, as plain values.
//!
//! Places and limits are fixed when the agent starts; the [`Policy`] may be replaced while it runs.

mod choice;
pub mod danger;
mod delivery;
mod disclosed;
pub mod document;
mod dra;
mod families;
pub mod file;
mod handover;
mod mistake;
mod mps;
mod nics;
mod policy;
pub mod profile;
mod questions;
pub mod rules;
mod selector;
mod share_rule;
mod sharing;
mod shipped;
pub mod source;
mod specimen;

use std::{collections::BTreeSet, net::SocketAddr, path::PathBuf, time::Duration};

use windlass_host::{DriverPlaces, Host, Roots};

pub use choice::{ConfigDir, LabelMemory, LabelValue};
pub use delivery::{
    AnnotationPrefix, Delivery, DeviceIds, DeviceNodes, Feature, Hooks, Imex, InvalidPrefix,
    MissingChannel, Strategy,
};
pub use disclosed::Disclosed;
pub use document::Remark;
pub use dra::{
    DraMigMode, DraOffer, DraPartitions, DraPolicy, DraTaints, DriverName, InvalidDriverName,
};
pub use families::{AmdNaming, AmdRules, Families, FpgaMode, FpgaRules, FpgaUnit, IntelRules};
pub use file::{ConfigFile, address, schema, to_yaml};
pub use handover::HandoverLimits;
pub use mistake::{ConfigError, Mistakes};
pub use mps::{MpsSettings, MpsUsers};
pub use nics::{MissingNodes, NicIds, NicPolicy, RdmaNode};
pub use policy::{
    HealthPolicy, LabelOutput, LabelPolicy, MigStrategy, Policy, ResourceRule, Resources,
    UnlistedXids, Unmatched,
};
pub use selector::Selector;
pub use share_rule::{ShareLimits, ShareManner, ShareMethod, ShareRule};
pub use sharing::{
    InvalidReplicas, PerContainer, Pooled, Replicas, Shared, Sharing, SharingMethod,
};
pub use shipped::{DeviceProfile, UnknownProfile};
pub use source::{
    Find, Give, GivenMount, GivenNode, Handover, Link, Memory, Probe, Processes, Reset, SourceRule,
    Step, StepAction, Test, USUAL_MEMORY, Unit,
};

/// Everything the agent needs to know, checked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// Where everything lies on the machine.
    pub places: Places,
    /// How MPS daemons are run.
    pub mps: MpsSettings,
    /// Where health and metrics are served; `None` serves neither.
    pub listen: Option<SocketAddr>,
    /// The socket on which probes are answered besides; `None` has none.
    pub probe_socket: Option<PathBuf>,
    /// What pages tell of pods and boards.
    pub disclose: BTreeSet<Disclosed>,
    /// How the API server is reached.
    pub cluster: ClusterAccess,
    /// The name of the driver for Dynamic Resource Allocation.
    pub dra_driver: DriverName,
    /// Time limits of the conversation with the kubelet.
    pub session: SessionLimits,
    /// How patient hand-overs between containers are.
    pub handover: HandoverLimits,
    /// What is offered, how it is handed out, and when it is trusted.
    pub policy: Policy,
}

/// Where everything lies on the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// The kubelet's folder; its sockets lie in `device-plugins` below.
    pub kubelet_dir: PathBuf,
    /// Where the host's `/sys`, `/proc`, `/dev` and driver are found.
    pub host_root: PathBuf,
    /// What the container runtime calls `host_root`: `/`, unless the machine is simulated.
    pub host_root_on_node: PathBuf,
    /// Where the driver's installation lies.
    pub driver: DriverPlaces,
    /// Where CDI documents are written.
    pub cdi_dir: PathBuf,
    /// Where the agent keeps what must outlive it.
    pub state_dir: PathBuf,
    /// Where MPS daemons have their pipes and logs, as the host names it.
    pub mps_dir: PathBuf,
    /// Where CNI plugins look for what is known of a network device, as the host names it.
    pub device_info_dir: PathBuf,
}

/// How the API server is reached, and as which node. Nothing is asked of it unless a part needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterAccess {
    /// A kubeconfig; `None` is the pod's own account.
    pub kubeconfig: Option<PathBuf>,
    /// The name of this node's object.
    pub node_name: Option<String>,
    /// The namespace of objects that are not the cluster's.
    pub namespace: Option<String>,
    /// The pod that the agent runs in.
    pub pod: Option<PodIdentity>,
    /// Whether changes of health become events of the node's object.
    pub events: bool,
}

/// The pod that the agent runs in; what the agent writes for itself goes when it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodIdentity {
    /// Its namespace: what another namespace holds cannot belong to it.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its unique id.
    pub uid: String,
}

/// Time limits of the conversation with the kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// How long Register may take: the kubelet dials back for up to ten seconds within it.
    pub register_deadline: Duration,
    /// How long after a registration the kubelet may take to ask for the device list.
    pub stream_deadline: Duration,
    /// The first wait before registering again; it doubles.
    pub retry_first: Duration,
    /// The longest wait before registering again.
    pub retry_most: Duration,
    /// How long after an answer to Allocate the kubelet's record may still lack it: a device that a
    /// new policy moves is given to no one for so long.
    pub handover: Duration,
    /// How long the preparing or the releasing of a claim may take before the kubelet is told to ask again.
    pub claim_deadline: Duration,
    /// How long a claim waits for another to let go of a device. Containers of a pod that was deleted by force are
    /// given two seconds to end (`minimumGracePeriodInSeconds` of the kubelet's runtime manager); the rest is for
    /// a busy machine. Well within `claim_deadline`.
    pub claim_patience: Duration,
    /// How often sockets are looked at without a reason, should a notice have been lost.
    pub look_interval: Duration,
}

// === impl Places ===

impl Places {
    /// The host's files.
    pub fn host(&self) -> Host {
        Host::new(&self.host_root, &self.host_root_on_node)
    }

    /// The trees that a device's files lie in.
    pub fn roots(&self) -> Roots {
        Roots::new(self.host(), &self.driver)
    }
}

impl Default for Places {
    fn default() -> Self {
        Self {
            kubelet_dir: "/var/lib/kubelet".into(),
            host_root: "/".into(),
            host_root_on_node: "/".into(),
            driver: DriverPlaces::default(),
            cdi_dir: "/var/run/cdi".into(),
            state_dir: "/var/lib/windlass".into(),
            mps_dir: "/run/windlass/mps".into(),
            device_info_dir: "/var/run/k8s.cni.cncf.io/devinfo/dp".into(),
        }
    }
}

impl Default for SessionLimits {
    fn default() -> Self {
        Self {
            register_deadline: Duration::from_secs(15),
            stream_deadline: Duration::from_secs(5),
            retry_first: Duration::from_millis(50),
            retry_most: Duration::from_secs(10),
            // The kubelet writes its record before it starts the container, in a few milliseconds.
            handover: Duration::from_secs(2),
            // The kubelet waits 45 seconds for all claims of a pod, and takes an answer that says nothing of
            // a claim for a failure of all.
            claim_deadline: Duration::from_secs(40),
            claim_patience: Duration::from_secs(10),
            look_interval: Duration::from_secs(10),
        }
    }
}
