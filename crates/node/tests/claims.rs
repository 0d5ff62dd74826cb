//! A node in a cluster: the agent, the embedded kubelet and the embedded API server with its scheduler. Under every
//! fault, each device of a claim or a container has one owner at a time, and is free afterwards.

mod claim_kinds;
mod kubelet_checkpoint;
mod migration;
mod objects;
mod owners;
mod pod_lifecycle;
mod random;
mod restarts;
mod rng;
mod shipped_mounts;
mod switching;
mod walk;
mod world;
