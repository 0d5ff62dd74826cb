//! Calls that a caller gives up before the agent has looked at them, as many at once as the socket lets through.

use windlass_testkit::Caller;

use crate::agent::world::gpu_node;

const ALLOCATE: &str = "/v1beta1.DevicePlugin/Allocate";

/// Twice as many as the socket takes at once.
const CALLS: usize = 4000;

#[tokio::test]
async fn calls_that_are_given_up_at_once_do_not_cost_the_connection() {
    let world = gpu_node("dgx-h100");
    let (_kubelet, agent) = world.serving(8).await;
    let mut caller = Caller::connect(&world.socket()).await;
    caller.give_up(ALLOCATE, CALLS).await;
    // The device list is on such a connection, too.
    caller.is_answered(ALLOCATE).await;
    agent.stop().await;
}
