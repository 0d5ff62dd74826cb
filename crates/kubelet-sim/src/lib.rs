//! The embedded kubelet: device manager and DRA manager as in a real kubelet, small enough to run in a test.
//!
//! ```text
//!  plugin ──Register──> registration ──┐
//!  plugin <─ListAndWatch── connection ─┤     one task owns the Manager;
//!  plugin <─Allocate────── admission ──┼──> manager_task (receives functions over a channel)
//!  tools  ──List─────────> podresources┤       │
//!  driver <─GetInfo, Notify── dra ─────┤       ├──> watch: NodeStatus
//!  driver <─(Un)Prepare────── dra ─────┘       ├──> log of Events
//!                                              ├──> kubelet_internal_checkpoint
//!                                              └──> dra_manager_state
//! ```
//!
//! The embedded kubelet answers as Kubernetes 1.36 does, with the same error texts. Tests can restart
//! it and inject faults. `tests/fidelity` compares it with transcripts of a real kubelet. Intended
//! differences from the real kubelet:
//!
//! - Node status changes at once. The real kubelet sends node status every 10 s, and checks for
//!   expired plugins at that time. Pod status follows each change; the real kubelet computes it when
//!   it syncs a pod.
//! - Resources, devices and choices are sorted by name, so that a failing test fails again in the
//!   same way. Go iterates over its maps in random order.
//! - A pod rejected after a reboot frees its devices at once. The real kubelet counts the pod as
//!   active until it has cleaned up the pod's former containers.
//! - A nil dereference in the real kubelet becomes [`KubeletState::Panicked`] and [`Event::Panicked`].
//!   The embedded kubelet then stops serving, and the test continues.
//! - There is no container runtime, no scheduler, no CPU manager and no memory manager. Topology
//!   hints come from devices alone, and [`Kubelet::start_container`] starts containers.
//! - The first attempts to dial a registering plugin follow each other faster than in gRPC. Later
//!   attempts come every second, as in gRPC.
//! - A health change syncs the affected pods at once. The real kubelet queues them in a channel of
//!   100 and drops the excess.
//! - A pod brings its claims, because there is no API server. So the kubelet cannot check that a
//!   claim is allocated, reserved for the pod and owned by it.
//! - The start of a pod's first container prepares the pod's claims, or [`Kubelet::sync_pod`] does.
//!   After a failure, the next such call tries again.
//! - A deleted pod is removed at once, even with unreleased claims. A finished pod stays until its
//!   claims are released.
//! - The kubelet reads the `plugins_registry` folder when it changes; the real kubelet reads it once
//!   a second. A renamed socket is deregistered here, and stays registered there. Only DRA drivers
//!   register.
//! - The next call or health stream restores a DRA driver's lost connection; gRPC reconnects about
//!   once a second. The error of a failed call has tonic's text.
//! - `ResourceSlices` are not deleted, because there is no API server: [`Event::SlicesWiped`]
//!   announces the deletion.
//! - A restart loses the health of DRA devices. The real kubelet restores it from `dra_health_state`.
//! - Left out: CSI plugins, pod resources `v1alpha1`, in-place resize, the topology
//!   manager's policy options, the retry of a failed container start.
//! - The error text of a stopped endpoint has the resource's name; Go prints a struct with addresses.
//! - [`Release::From1_37`] follows the merged change that keys plugins by name and socket. Further
//!   details of that release are deduced.

pub mod authority;
pub mod grant;
pub mod pod;
pub mod topology;

mod admission;
mod checkpoint;
mod config;
mod device;
mod directory;
mod dra;
mod event;
mod fault;
mod incoming;
mod kubelet;
mod manager;
mod manager_task;
mod plugin;
mod podresources;
mod registration;
mod start;
mod status;

pub use admission::{
    Admission, ContainerAdmission, ContainerAllocation, PreferredAllocationCall, Rejection,
    RejectionReason,
};
pub use checkpoint::ClaimsFileError;
pub use config::{Config, PluginDirCleanup, Release};
pub use device::{Device, DeviceIds};
pub use directory::DirectoryError;
pub use dra::{
    ClaimCall, ClaimDeviceHealth, ClaimId, ClaimOrigin, ClaimStatus, ClaimUse, DraLimits,
    DraService, DriverStatus, PodClaim, PreparedDevice, ResourceHealthStatus,
};
pub use event::{Event, EventReader};
pub use fault::{ClaimFault, Faults, PodSourceFault, RegistrationFault, StreamFault};
pub use grant::RunContainerOptions;
pub use kubelet::{Kubelet, KubeletError, SyncError, WaitTimeout};
pub use pod::{Container, InitContainer, InitRole, Pod};
pub use start::StartError;
pub use status::{
    ContainerStatus, Health, KubeletState, NodeStatus, PluginOptions, PluginStatus, PodPhase,
    PodStatus, ResourceStatus,
};
pub use topology::{TopologyPolicy, TopologyScope};
