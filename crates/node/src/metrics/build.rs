//! Which build runs, and whether it serves yet.

use prometheus_client::{
    metrics::{gauge::Gauge, info::Info},
    registry::Registry,
};

/// What an agent does with its node.
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
    let help = "Whether the agent waits for its kubelet or for another agent's end";
    registry.register("standing_by", help, standing_by);
}
