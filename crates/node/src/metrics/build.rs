//! Which build runs.

use prometheus_client::{metrics::info::Info, registry::Registry};

pub(super) fn register(registry: &mut Registry) {
    let version = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("build", "The agent's version", version);
}
