//! Build information and role of the agent.

use prometheus_client::{
    metrics::{gauge::Gauge, info::Info},
    registry::Registry,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Serving,
    StandingBy,
}

pub(super) fn register(registry: &mut Registry, role: Role) {
    let version = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("build", "The agent's version", version);
    let standing_by = Gauge::<i64>::default();
    standing_by.set((role == Role::StandingBy).into());
    let help = "1 while the agent waits for its kubelet or for another agent to end";
    registry.register("standing_by", help, standing_by);
}
