//! Calls that the caller cancels before the agent has read them, as many at once as the socket accepts.

use windlass_testkit::Caller;

use crate::agent::world::gpu_node;

const ALLOCATE: &str = "/v1beta1.DevicePlugin/Allocate";

/// Twice as many calls as the socket accepts at once.
const CALLS: usize = 4000;

#[tokio::test]
async fn calls_that_are_given_up_at_once_do_not_cost_the_connection() {
    let world = gpu_node("dgx-h100");
    let (_kubelet, agent) = world.serving(8).await;
    let mut caller = Caller::connect(&world.socket()).await;
    caller.give_up(ALLOCATE, CALLS).await;
    // The kubelet's own connection still works; the device list is on it too.
    caller.is_answered(ALLOCATE).await;
    agent.stop().await;
}
