//! The stop of an agent with open connections of any kind.

use tokio::net::UnixStream;
use tracing::Level;
use windlass_testkit::LogCapture;

use crate::dra::world::World;

/// Number of repetitions: the fault occurred in two of three runs.
const REPETITIONS: usize = 12;

/// Log messages about a failed driver or an incomplete stop.
fn failure_lines(log: &LogCapture) -> Vec<String> {
    let phrases = ["not served", "parts still running"];
    let lines = log.lines().into_iter();
    lines.filter(|line| phrases.iter().any(|phrase| line.contains(phrase))).collect()
}

#[tokio::test]
async fn an_agent_that_is_stopped_logs_no_failure() {
    let world = World::new();
    for _ in 0..REPETITIONS {
        let (agent, kubelet) = world.start_ready().await;
        let log = LogCapture::start(Level::WARN);
        drop(kubelet);
        agent.stop().await;
        assert_eq!(failure_lines(&log), [""; 0]);
    }
}

#[tokio::test]
async fn silent_connections_do_not_delay_an_agents_stop() {
    let (world, agent, _kubelet) = World::start().await;
    let one = UnixStream::connect(world.endpoint()).await.expect("connected");
    let other = UnixStream::connect(world.registration()).await.expect("connected");
    let log = LogCapture::start(Level::WARN);
    agent.stop().await;
    assert_eq!(failure_lines(&log), [""; 0]);
    drop((one, other));
}
