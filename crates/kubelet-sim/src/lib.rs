//! The embedded kubelet: device manager and DRA manager of a real one, small enough to live in a test.
//!
//! ```text
//!  plugin ──Register──> registration ──┐
//!  plugin <─ListAndWatch── connection ─┤     one task owns the Manager;
//!  plugin <─Allocate────── admission ──┼──> manager_task (functions sent over a channel)
//!  tools  <─List────────── podresources┤       │
//!  driver <─GetInfo, Notify── dra ─────┤       ├──> watch: NodeStatus
//!  driver <─(Un)Prepare────── dra ─────┘       ├──> log of Events
//!                                              ├──> kubelet_internal_checkpoint
//!                                              └──> dra_manager_state
//! ```
//!
//! The crate answers as Kubernetes 1.36 does, error texts included, and can be restarted and made to
//! misbehave. `tests/fidelity` compares it with transcripts of a real kubelet. Intended differences
//! from the real one:
//!
//! - Node status is visible at once. The real one sends it every 10 s, and looks for expired
//!   plugins then. Pod status follows each change; the real one computes it when it syncs a pod.
//! - Go walks its maps in random order. Here resources, devices and choices are sorted by name, so
//!   that a test fails twice the same way.
//! - A pod rejected after a reboot frees its devices at once. The real one counts the pod as active
//!   a moment longer, until it has cleaned up the pod's former containers.
//! - A nil dereference in the real kubelet is [`Condition::Panicked`] and [`Event::Panicked`]. The
//!   kubelet stops serving as a dead process would, and the test continues.
//! - There is no container runtime, no scheduler, no CPU and memory manager. Topology hints come
//!   from devices alone, and [`Kubelet::start_container`] starts containers.
//! - While a plugin registers, the kubelet dials its socket every second, as gRPC does. The first
//!   attempts follow much sooner.
//! - A health change syncs its pods at once. The real one sends them to the pod workers through a
//!   channel of 100 and drops the excess. Here the pods are synced without a queue.
//! - Claims come with their pod, for want of an API server. So the kubelet cannot check that a
//!   claim is allocated, reserved for the pod and owned by it. The start of a pod's first container
//!   prepares its claims, or [`Kubelet::sync_pod`] does. After a failure, the next such call tries
//!   again. A deleted pod is gone at once, even with unreleased claims. A finished pod stays until
//!   its claims are released.
//! - The folder of registrations is read when it changes; the real one reads it once a second. A
//!   socket renamed away is gone here, and stays registered there. Only DRA drivers register.
//! - The next call or health stream restores a DRA driver's lost connection; gRPC tries about once
//!   a second. The error of such a call has the words of tonic.
//! - `ResourceSlices` stay, for want of an API server: [`Event::SlicesWiped`] announces the deletion.
//! - The health of devices is lost in a restart (the real one has `dra_health_state`).
//! - Left out: CSI plugins, pod resources `v1alpha1`, in-place resize, the topology
//!   manager's policy options, the retry of a failed container start.
//! - The text of a stopped endpoint has the resource's name where Go prints a struct with addresses.
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
mod kubelet;
mod manager;
mod manager_task;
mod plugin;
mod podresources;
mod registration;
mod severable;
mod start;
mod status;

pub use admission::{Admission, Allotment, ContainerAdmission, Question, Reason, Rejection};
pub use checkpoint::ClaimsFileError;
pub use config::{Cleanup, Config, Release};
pub use device::{Device, DeviceIds};
pub use directory::DirectoryError;
pub use dra::{
    ClaimCall, ClaimDeviceHealth, ClaimId, ClaimOrigin, ClaimStatus, ClaimUse, DraLimits,
    DriverStatus, HealthWord, PodClaim, PreparedDevice, Service,
};
pub use event::{Event, EventReader};
pub use fault::{ClaimFault, Misbehaviour, PodFault, RegistrationFault, StreamFault};
pub use grant::Grant;
pub use kubelet::{Kubelet, KubeletError, NotInTime, SyncError};
pub use pod::{Container, InitContainer, InitRole, Pod};
pub use start::StartError;
pub use status::{
    Condition, ContainerStatus, Health, NodeStatus, PluginOptions, PodPhase, PodStatus,
    Registration, ResourceStatus,
};
pub use topology::{TopologyPolicy, TopologyScope};
