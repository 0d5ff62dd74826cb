//! A claim whose device another claim still has: its call waits for a short time, because the kubelet repeats the call
//! only a minute later.

use std::time::Duration;

use tokio::{task::JoinSet, time::timeout};
use tracing::Level;
use windlass_cluster_sim::api::{Effect, Fault};
use windlass_kubelet_api::dra::v1::Device;
use windlass_testkit::{LogCapture, RunningAgent, TIMEOUT};

use crate::dra::{
    kubelet::Kubelet,
    world::{FIRST_GPU, World},
};

/// Delay of the read of a claim that is released during the read.
const READ_DELAY: Duration = Duration::from_secs(1);

impl World {
    /// A world in which claims wait for as long as a test may take.
    fn with_long_wait() -> Self {
        let mut world = Self::new();
        world.config.kubelet_limits.claim_wait = TIMEOUT;
        world
    }

    /// Begins the preparation of a claim. Returns once the API server has the request for the claim.
    async fn prepare_until_read(&self, kubelet: &Kubelet, name: &'static str) -> JoinSet<Answer> {
        let (mut kubelet, mut call) = (kubelet.clone(), JoinSet::new());
        call.spawn(async move { kubelet.prepare(name).await });
        let is_read = || self.api.objects().requests().iter().any(|it| it.path.ends_with(name));
        self.until_requests(is_read).await;
        call
    }

    /// Begins the preparation of a claim. Returns once it waits for a device that another claim has.
    async fn prepare_until_waiting(
        &self,
        kubelet: &Kubelet,
        name: &'static str,
    ) -> JoinSet<Answer> {
        let log = LogCapture::start(Level::INFO);
        let mut call = self.prepare_until_read(kubelet, name).await;
        log.until(1, "claim waits").await;
        assert!(call.try_join_next().is_none(), "it waits");
        call
    }
}

type Answer = Result<Vec<Device>, String>;

/// A world with a long wait, and with the claims `one` and `two` of one device, which `one` has.
async fn world_with_conflict() -> (World, RunningAgent, Kubelet, Vec<Device>) {
    let world = World::with_long_wait();
    let (agent, mut kubelet) = world.start_ready().await;
    world.claim(&agent, "one", &[FIRST_GPU]);
    world.claim(&agent, "two", &[FIRST_GPU]);
    let first = kubelet.prepare("one").await.expect("prepared");
    (world, agent, kubelet, first)
}

async fn answer_of(mut call: JoinSet<Answer>) -> Answer {
    answer_in_time(call.join_next()).await.expect("a call").expect("no panic")
}

async fn answer_in_time<T>(answer: impl Future<Output = T>) -> T {
    timeout(TIMEOUT / 2, answer).await.expect("at once")
}

#[tokio::test]
async fn a_waiting_claim_gets_the_device_that_another_releases() {
    let (world, agent, mut kubelet, first) = world_with_conflict().await;
    let second = world.prepare_until_waiting(&kubelet, "two").await;
    kubelet.unprepare("one").await.expect("released");
    let second = answer_of(second).await.expect("prepared");
    assert_eq!(second[0].device_name, first[0].device_name);
    agent.stop().await;
}

#[tokio::test]
async fn a_claim_that_is_released_while_it_waits_is_answered_and_has_no_device() {
    let (world, agent, mut kubelet, _) = world_with_conflict().await;
    let second = world.prepare_until_waiting(&kubelet, "two").await;
    answer_in_time(kubelet.unprepare("two")).await.expect("released");
    let error = answer_of(second).await.expect_err("released");
    assert_eq!(error, "released before it was prepared");
    kubelet.unprepare("one").await.expect("released");
    world.claim(&agent, "three", &[FIRST_GPU]);
    answer_in_time(kubelet.prepare("three")).await.expect("nobody has it");
    agent.stop().await;
}

#[tokio::test]
async fn a_claim_that_is_released_while_it_is_read_does_not_wait() {
    let (world, agent, mut kubelet, _) = world_with_conflict().await;
    world.api.inject(Fault::at("resourceclaims/two", Effect::Delay(READ_DELAY)).for_method("GET"));
    let second = world.prepare_until_read(&kubelet, "two").await;
    answer_in_time(kubelet.unprepare("two")).await.expect("released");
    let error = answer_of(second).await.expect_err("another has it");
    assert!(error.ends_with("is held by another claim"), "{error}");
    agent.stop().await;
}

#[tokio::test]
async fn a_claim_that_is_deleted_while_it_waits_gets_no_device() {
    let (world, agent, mut kubelet, _) = world_with_conflict().await;
    let second = world.prepare_until_waiting(&kubelet, "two").await;
    world.remove("two");
    kubelet.unprepare("one").await.expect("released");
    answer_of(second).await.expect_err("the claim is deleted");
    world.claim(&agent, "three", &[FIRST_GPU]);
    answer_in_time(kubelet.prepare("three")).await.expect("nobody has it");
    agent.stop().await;
}
