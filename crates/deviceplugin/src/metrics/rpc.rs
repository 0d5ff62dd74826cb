//! RPC latency by method and allocations by outcome.

use std::fmt;

use prometheus_client::{
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::{Registry, Unit},
};
use tokio::time::Instant;
use windlass_core::resource::ResourceName;
use windlass_host::counters::{CounterFamily, Labels};

/// Unary methods. `ListAndWatch` is a long-lived stream and has no latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// `GetDevicePluginOptions`.
    Options,
    /// `GetPreferredAllocation`.
    Prefer,
    /// `Allocate`.
    Allocate,
    /// `PreStartContainer`.
    PreStart,
}

/// Metrics of one resource, resolved in advance: a call reads the clock twice and takes one short lock.
#[derive(Clone, Debug)]
pub(crate) struct RpcMetrics {
    seconds: [Histogram; Method::ALL.len()],
    granted: Counter,
    refused: Counter,
}

/// RPC in progress. A call that the kubelet cancels is not counted.
pub(crate) struct Call<'a> {
    metrics: &'a RpcMetrics,
    method: Method,
    started_at: Instant,
}

#[derive(Clone)]
pub(super) struct RpcFamilies {
    seconds: Family<Labels, Histogram, fn() -> Histogram>,
    allocations: CounterFamily,
}

/// Histogram bounds, from an empty call to the kubelet's timeout.
const BOUNDS_SECONDS: [f64; 11] =
    [0.000_01, 0.000_05, 0.000_1, 0.000_5, 0.001, 0.005, 0.01, 0.05, 0.1, 1.0, 10.0];

// === impl Method ===

impl Method {
    const ALL: [Self; 4] = [Self::Options, Self::Prefer, Self::Allocate, Self::PreStart];

    /// Name in the protocol.
    fn name(self) -> &'static str {
        match self {
            Self::Options => "GetDevicePluginOptions",
            Self::Prefer => "GetPreferredAllocation",
            Self::Allocate => "Allocate",
            Self::PreStart => "PreStartContainer",
        }
    }
}

// === impl RpcFamilies ===

impl RpcFamilies {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let seconds =
            Family::new_with_constructor((|| Histogram::new(BOUNDS_SECONDS)) as fn() -> Histogram);
        let allocations = CounterFamily::default();
        let help = "Time to answer the kubelet's calls";
        registry.register_with_unit("rpc", help, Unit::Seconds, seconds.clone());
        let help = "Requests to allocate devices, by outcome";
        registry.register("allocations", help, allocations.clone());
        Self { seconds, allocations }
    }

    pub(super) fn for_resource(&self, resource: &ResourceName) -> RpcMetrics {
        let seconds = |method: Method| {
            let labels =
                vec![("method", method.name().to_owned()), ("resource", resource.to_string())];
            self.seconds.get_or_create_owned(&labels)
        };
        let allocations = |result: &str| {
            let labels = vec![("resource", resource.to_string()), ("result", result.to_owned())];
            self.allocations.get_or_create_owned(&labels)
        };
        RpcMetrics {
            seconds: Method::ALL.map(seconds),
            granted: allocations("granted"),
            refused: allocations("refused"),
        }
    }
}

impl fmt::Debug for RpcFamilies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RpcFamilies").finish_non_exhaustive()
    }
}

// === impl RpcMetrics ===

impl RpcMetrics {
    /// Starts the timer of a call.
    pub(crate) fn start_timer(&self, method: Method) -> Call<'_> {
        Call { metrics: self, method, started_at: Instant::now() }
    }
}

// === impl Call ===

impl Call<'_> {
    /// Observes the latency and returns the result.
    pub(crate) fn observe<T, E>(self, result: Result<T, E>) -> Result<T, E> {
        let seconds = self.started_at.elapsed().as_secs_f64();
        self.metrics.seconds[self.method as usize].observe(seconds);
        match (self.method, &result) {
            (Method::Allocate, Ok(_)) => drop(self.metrics.granted.inc()),
            (Method::Allocate, Err(_)) => drop(self.metrics.refused.inc()),
            _ => {}
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_methods_number_is_its_index() {
        for (index, method) in Method::ALL.into_iter().enumerate() {
            assert_eq!(method as usize, index);
        }
    }

    #[test]
    fn an_allocation_is_counted_by_its_outcome() {
        let mut registry = Registry::default();
        let families = RpcFamilies::register(&mut registry);
        let metrics = families.for_resource(&"nvidia.com/gpu".parse().expect("valid"));
        let result = metrics.start_timer(Method::Allocate).observe::<_, ()>(Ok(7));
        assert_eq!(result, Ok(7));
        assert_eq!(metrics.start_timer(Method::Allocate).observe::<(), _>(Err("no")), Err("no"));
        assert_eq!(metrics.start_timer(Method::Prefer).observe::<_, ()>(Ok(())), Ok(()));
        assert_eq!((metrics.granted.get(), metrics.refused.get()), (1, 1));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("written");
        for (method, calls) in [("Allocate", 2), ("GetPreferredAllocation", 1)] {
            let count = format!(r#"{{method="{method}",resource="nvidia.com/gpu"}} {calls}"#);
            assert!(text.contains(&format!("rpc_seconds_count{count}")), "{text}");
        }
    }
}
