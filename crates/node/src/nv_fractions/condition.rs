//! The node condition that KAI's scheduler waits for before it places fractions on a node.

use windlass_cluster::node_condition::{ConditionStatus, NodeCondition};
use windlass_nri::NriState;
use windlass_resources::NodeState;

/// Type of the condition.
pub(super) const KIND: &str = "gpu-fractioning.nvidia.com/Ready";

/// The condition; `None` while the agent starts.
pub(super) fn condition(nri: &NriState, state: &NodeState) -> Option<NodeCondition> {
    let not_ready =
        |reason, message: String| NodeCondition { status: ConditionStatus::False, reason, message };
    if !state.inventory.is_complete() {
        return None;
    }
    let runtime = match nri {
        NriState::Connected(runtime) => runtime,
        NriState::Disconnected(reason) => {
            let message =
                format!("no connection to NRI: {reason}; enable NRI in the container runtime");
            return Some(not_ready("NriNotConnected", message));
        }
    };
    if state.policy.memory_limits.hook.is_none() {
        let message = "memoryLimits.hook is not set: install windlass-hook and name its path";
        return Some(not_ready("HookNotConfigured", message.to_owned()));
    }
    Some(match &state.limit_support.driver {
        None => return None,
        Some(Err(error)) => not_ready("DriverLimitsNoMemory", error.to_string()),
        Some(Ok(_)) => NodeCondition {
            status: ConditionStatus::True,
            reason: "MemoryLimited",
            message: format!("windlass limits GPU memory of containers of {runtime} by the driver"),
        },
    })
}

/// The condition to write when the agent stops.
pub(super) fn final_condition() -> NodeCondition {
    NodeCondition {
        status: ConditionStatus::Unknown,
        reason: "AgentStopped",
        message: "windlass was stopped: containers that start now have no limits".to_owned(),
    }
}
