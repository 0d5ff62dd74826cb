//! Calls that the caller cancels before the agent has read them, as many at once as the socket accepts.

use windlass_testkit::Caller;

use crate::agent::world::gpu_node;

const ALLOCATE: &str = "/v1beta1.DevicePlugin/Allocate";

/// Twice as many calls as the socket accepts at once.
const CALLS: usize = 4000;

#[tokio::test]
async fn calls_that_are_cancelled_at_once_do_not_end_the_connection() {
    let world = gpu_node("dgx-h100");
    let (_kubelet, agent) = world.start_ready(8).await;
    let mut caller = Caller::connect(&world.socket()).await;
    caller.send_cancelled_calls(ALLOCATE, CALLS).await;
    // The connection still works.
    caller.call(ALLOCATE).await;
    agent.stop().await;
}
