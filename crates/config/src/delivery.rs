//! What a container gets for its devices, and how it is told.

use std::{collections::BTreeSet, path::PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a container gets for its devices, and how it is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The ways in which devices are named to the runtime; more than one may be used at once.
    pub strategies: BTreeSet<Strategy>,
    /// What devices are called there.
    pub ids: DeviceIds,
    /// Whether device nodes are passed through the kubelet as well, for its CPU manager.
    pub nodes: DeviceNodes,
    /// What the keys of CDI annotations begin with.
    pub annotation_prefix: AnnotationPrefix,
    /// Which of the NVIDIA container toolkit's hooks CDI documents ask for.
    pub hooks: Hooks,
    /// What every container of an NVIDIA resource gets besides.
    pub features: BTreeSet<Feature>,
    /// Channels for memory that is exported between nodes.
    pub imex: Imex,
}

/// A way in which devices are named to the runtime. The names are NVIDIA's.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// `cdi-cri`: CDI names in the kubelet's message to the runtime.
    #[serde(alias = "cdi")]
    CdiCri,
    /// `cdi-annotations`: CDI names in annotations, for a kubelet that does not pass names on.
    CdiAnnotations,
    /// `envvar`: `NVIDIA_VISIBLE_DEVICES`, which NVIDIA's container runtime resolves.
    Envvar,
    /// `volume-mounts`: mounts of `/dev/null` with telling names, which NVIDIA's container runtime
    /// resolves and an unprivileged pod cannot write by itself.
    VolumeMounts,
}

/// What devices are called towards a runtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DeviceIds {
    /// By UUID.
    #[default]
    Uuid,
    /// By position: `0`, and `0:1` for a MIG instance.
    Index,
}

/// Whether device nodes are passed through the kubelet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceNodes {
    /// The runtime finds them.
    #[default]
    ByRuntime,
    /// Through the kubelet too: a static CPU manager makes runtimes forget nodes they found alone.
    ByKubelet,
}

/// What every container of an NVIDIA resource gets besides its devices.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Feature {
    /// `GPUDirect` Storage: `/dev/nvidia-fs*`, `/run/udev`, `/etc/cufile.json`.
    Gds,
    /// Mellanox OFED: `/dev/infiniband/uverbs*`, `/dev/infiniband/rdma_cm`.
    Mofed,
    /// `GDRCopy`: `/dev/gdrdrv`.
    Gdrcopy,
}

/// Which of the NVIDIA container toolkit's hooks CDI documents ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hooks {
    /// The toolkit's program, as the host names it; `None` looks where packages put it.
    pub program: Option<PathBuf>,
    /// Hooks that are left out, by the toolkit's names; `all` leaves out every one.
    pub disabled: BTreeSet<String>,
}

/// Channels for memory that is exported between nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imex {
    /// The channels that every container gets.
    pub channels: BTreeSet<u32>,
    /// What a channel that is missing on the node means.
    pub missing: MissingChannel,
}

/// What an IMEX channel that is missing on the node means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingChannel {
    /// Containers go without.
    #[default]
    Tolerated,
    /// GPUs are not handed out until it is there.
    Refused,
}

/// What the keys of CDI annotations begin with, `cdi.k8s.io/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnotationPrefix(String);

/// A text that cannot begin an annotation's key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} cannot begin an annotation's key: write a domain and a slash, such as cdi.k8s.io/")]
pub struct InvalidPrefix(String);

// === impl Delivery ===

impl Default for Delivery {
    fn default() -> Self {
        Self {
            strategies: BTreeSet::from([Strategy::CdiCri]),
            ids: DeviceIds::default(),
            nodes: DeviceNodes::default(),
            annotation_prefix: AnnotationPrefix::default(),
            hooks: Hooks::default(),
            features: BTreeSet::new(),
            imex: Imex::default(),
        }
    }
}

impl Delivery {
    /// Whether any way needs CDI documents.
    pub fn uses_cdi(&self) -> bool {
        self.strategies.contains(&Strategy::CdiCri)
            || self.strategies.contains(&Strategy::CdiAnnotations)
    }
}

// === impl AnnotationPrefix ===

impl AnnotationPrefix {
    /// The prefix as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for AnnotationPrefix {
    /// The prefix that runtimes look for (CDI specification, "Kubernetes").
    fn default() -> Self {
        Self("cdi.k8s.io/".to_owned())
    }
}

impl std::str::FromStr for AnnotationPrefix {
    type Err = InvalidPrefix;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_label = |label: &str| {
            !label.is_empty()
                && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        };
        let domain = text.strip_suffix('/').filter(|domain| domain.split('.').all(is_label));
        domain.map(|_| Self(text.to_owned())).ok_or_else(|| InvalidPrefix(text.to_owned()))
    }
}
