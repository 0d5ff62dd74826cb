//! The stop of an agent with open connections of any kind.

use tokio::net::UnixStream;
use tracing::Level;
use windlass_testkit::Said;

use crate::dra::world::World;

/// Number of repetitions: the fault occurred in two of three runs.
const OFTEN: usize = 12;

/// Log messages about a failed driver or an incomplete stop.
fn of_failures(said: &Said) -> Vec<String> {
    let words = ["not served", "parts still running"];
    let lines = said.lines().into_iter();
    lines.filter(|line| words.iter().any(|word| line.contains(word))).collect()
}

#[tokio::test]
async fn an_agent_that_is_stopped_logs_no_failure() {
    let world = World::new();
    for _ in 0..OFTEN {
        let (agent, kubelet) = world.serving().await;
        let said = Said::from(Level::WARN);
        drop(kubelet);
        agent.stop().await;
        assert_eq!(of_failures(&said), [""; 0]);
    }
}

#[tokio::test]
async fn silent_connections_do_not_delay_an_agents_stop() {
    let world = World::new();
    let (agent, _kubelet) = world.serving().await;
    let one = UnixStream::connect(world.endpoint()).await.expect("connected");
    let other = UnixStream::connect(world.registration()).await.expect("connected");
    let said = Said::from(Level::WARN);
    agent.stop().await;
    assert_eq!(of_failures(&said), [""; 0]);
    drop((one, other));
}
