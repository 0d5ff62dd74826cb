//! Scheduling core of the cluster half: chooses the node and the GPUs for a pod.
//!
//! A [`ClusterView`](view::ClusterView) holds the free and used devices of every node. A
//! [`Scheduler`](scheduler::Scheduler) ranks the nodes for a [`Request`](request::Request) by its
//! [`Policy`](policy::Policy). A [simulation](simulation::Simulation) runs the pods of a [trace] through the same
//! scheduler.
//!
//! For Dynamic Resource Allocation, the [allocator] chooses the devices of a node for a pod's claims as kube-scheduler
//! does.
//!
//! Pure: no files, clock, async or Kubernetes client, only Kubernetes' types. Time and randomness are arguments, and
//! equal inputs give equal answers.

pub mod allocator;
pub mod blocks;
pub mod fit;
pub mod forecast;
pub mod fragmentation;
pub mod gang;
pub mod gpu;
pub mod knowledge;
pub mod node;
pub mod policy;
pub mod prices;
pub mod random;
pub mod request;
pub mod scarcity;
pub mod scheduler;
pub mod simulation;
pub mod stranding;
pub mod trace;
pub mod victims;
pub mod view;
