//! Clients of an MPS daemon: it terminates them before their processes are killed.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use windlass_config::{
    PerContainer, Policy, Resources, Shared, Sharing, SharingMethod, WatchdogAction,
};
use windlass_testkit::{GPU, until};

use crate::{
    agent::sharing::{SHARED, rule, shared},
    kernel::Program,
    mps::rig::send_command,
    watchdog::{WatchedNode, policy, uid},
};

/// A GPU of 80 GB that a daemon shares in replicas of 10 GiB.
struct Clients(WatchedNode);

// === impl Clients ===

impl Clients {
    /// Two pods, with a replica each.
    async fn new(action: WatchdogAction) -> Self {
        let Sharing::Shared(time_slicing) = shared(4, PerContainer::One) else {
            unreachable!("it is shared")
        };
        let replicas =
            Shared { method: SharingMethod::Mps, memory_mib: Some(10 << 10), ..time_slicing };
        let replicas = rule(SHARED, &[0], Sharing::Shared(replicas));
        let exclusive = rule(GPU, &[], Sharing::Exclusive);
        let policy =
            Policy { resources: Resources::Rules(vec![replicas, exclusive]), ..policy(action) };
        let clients = Self(Box::pin(WatchedNode::sharing(policy, 4, &[("a", 1), ("b", 1)])).await);
        clients.send_command("start_server -uid 0");
        clients
    }

    fn send_command(&self, command: &str) {
        send_command(&self.0.world.node.machine, &self.0.gpu, command);
    }

    /// Makes the programs clients of the daemon, which use this number of MiB each.
    fn connect(&self, programs: &[(&Program, u64)]) {
        self.0.set_use(programs);
        let clients: Vec<_> = programs.iter().map(|(program, _)| program.pid()).collect();
        let machine = &self.0.world.node.machine;
        machine.set_mps_clients(self.0.gpu.as_str(), &clients).expect("set");
    }

    /// Waits until the daemon has these clients and no others.
    async fn until_clients(&self, clients: &[&Program]) {
        let expected: Vec<_> = clients.iter().map(|program| program.pid()).collect();
        until("other clients", async || {
            let machine = &self.0.world.node.machine;
            let pids = machine.mps_clients(self.0.gpu.as_str()).expect("set");
            if pids == expected { Ok(()) } else { Err(pids) }
        })
        .await;
    }

    async fn end(self) {
        let WatchedNode { world, .. } = self.0;
        world.agent.stop().await;
        let config = &world.node.config;
        let stopped = windlass_lifecycle::mps::stop_all(&config.places, &config.mps).await;
        assert!(stopped.values().all(Result::is_ok), "{stopped:?}");
    }
}

#[tokio::test]
async fn the_daemon_terminates_a_client_before_the_watchdog_kills_it() {
    let clients = Box::pin(Clients::new(WatchdogAction::Kill)).await;
    let (mut greedy, mut modest) = (clients.0.program(Some("a")), clients.0.program(Some("b")));
    clients.connect(&[(&greedy, 11_000), (&modest, 10_000)]);
    let (action, _) = clients.0.event_of("a").await;
    assert_eq!(action, "Kill");
    assert!(!greedy.wait().success());
    clients.until_clients(&[&modest]).await;
    assert!(modest.is_running());
    clients.end().await;
}

#[tokio::test]
async fn the_daemon_terminates_the_clients_of_a_pod_before_the_kubelet_kills_them() {
    let clients = Box::pin(Clients::new(WatchdogAction::Observe)).await;
    let (mut deleted_client, other) = (clients.0.program(Some("a")), clients.0.program(Some("b")));
    clients.connect(&[(&deleted_client, 9000), (&other, 9000)]);
    let objects = clients.0.world.api.objects();
    let mark_deleted = |name: &str, grace: Duration| {
        let mut pod = clients.0.pod(name).expect("it is bound");
        pod.metadata.uid = Some(uid(name));
        pod.metadata.deletion_timestamp = Some(Time(Timestamp::now() + grace));
        objects.put(&pod);
    };
    // One pod ends in an hour, the other soon.
    mark_deleted("b", Duration::from_secs(3600));
    mark_deleted("a", Duration::from_secs(1));
    clients.until_clients(&[&other]).await;
    assert!(deleted_client.is_running(), "the kubelet ends it");
    clients.end().await;
}
