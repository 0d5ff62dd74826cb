//! A node in a cluster: the agent, the embedded kubelet and the embedded API server with its scheduler. What
//! claims and containers have is in one hand at a time, and nothing is left of it, whatever happens.

mod chance;
mod hands;
mod in_a_pod;
mod moving;
mod random;
mod record;
mod restarts;
mod switching;
mod trouble;
mod walk;
mod ways;
mod wish;
mod world;
