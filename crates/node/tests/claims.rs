//! A node in a cluster: the agent, the embedded kubelet and the embedded API server with its scheduler. Under every
//! fault, each device of a claim or a container has one owner at a time, and is free afterwards.

mod in_a_pod;
mod migration;
mod owners;
mod random;
mod record;
mod restarts;
mod rng;
mod switching;
mod trouble;
mod walk;
mod ways;
mod wish;
mod world;
