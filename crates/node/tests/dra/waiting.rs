//! A claim whose device another claim still has: its call waits a little, because the kubelet asks again only a minute
//! later.

use std::time::Duration;

use tokio::{task::JoinSet, time::timeout};
use tracing::Level;
use windlass_cluster_sim::api::{Effect, Fault};
use windlass_kubelet_api::dra::v1::Device;
use windlass_testkit::{LIMIT, Running, Said};

use crate::dra::{
    kubelet::Kubelet,
    world::{Gets, World},
};

const A: Gets<'static> = Gets { request: "a", gpu: 0 };

/// Duration of the read of a claim that is released meanwhile.
const SLOWLY: Duration = Duration::from_secs(1);

impl World {
    /// A world in which claims wait for as long as a test may take.
    fn patient() -> Self {
        let mut world = Self::new();
        world.config.session.claim_patience = LIMIT;
        world
    }

    /// Asks for a claim to be prepared, until the API server is asked for it.
    async fn reading(&self, kubelet: &Kubelet, name: &'static str) -> JoinSet<Answer> {
        let (mut kubelet, mut asked) = (kubelet.clone(), JoinSet::new());
        asked.spawn(async move { kubelet.prepare(name).await });
        let is_read = || self.api.objects().log().iter().any(|it| it.path.ends_with(name));
        self.reaches(is_read).await;
        asked
    }

    /// Asks for a claim to be prepared, and returns when it waits for a device that another claim has.
    async fn waiting(&self, kubelet: &Kubelet, name: &'static str) -> JoinSet<Answer> {
        let said = Said::from(Level::INFO);
        let mut asked = self.reading(kubelet, name).await;
        said.until(1, "claim waits").await;
        assert!(asked.try_join_next().is_none(), "it waits");
        asked
    }
}

type Answer = Result<Vec<Device>, String>;

/// Such a world with the claims `one` and `two` of one device, which `one` has.
async fn contended() -> (World, Running, Kubelet, Vec<Device>) {
    let world = World::patient();
    let (agent, mut kubelet) = world.serving().await;
    world.claim(&agent, "one", &[A]);
    world.claim(&agent, "two", &[A]);
    let first = kubelet.prepare("one").await.expect("prepared");
    (world, agent, kubelet, first)
}

async fn answered(mut asked: JoinSet<Answer>) -> Answer {
    at_once(asked.join_next()).await.expect("it was asked").expect("no panic")
}

async fn at_once<T>(answer: impl Future<Output = T>) -> T {
    timeout(LIMIT / 2, answer).await.expect("at once")
}

#[tokio::test]
async fn a_waiting_claim_gets_the_device_that_another_releases() {
    let (world, agent, mut kubelet, first) = contended().await;
    let second = world.waiting(&kubelet, "two").await;
    kubelet.unprepare("one").await.expect("released");
    let second = answered(second).await.expect("prepared");
    assert_eq!(second[0].device_name, first[0].device_name);
    agent.stop().await;
}

#[tokio::test]
async fn a_claim_that_is_released_while_it_waits_is_answered_and_has_nothing() {
    let (world, agent, mut kubelet, _) = contended().await;
    let second = world.waiting(&kubelet, "two").await;
    at_once(kubelet.unprepare("two")).await.expect("released");
    let why = answered(second).await.expect_err("nothing was prepared");
    assert_eq!(why, "released before it was prepared");
    kubelet.unprepare("one").await.expect("released");
    world.claim(&agent, "three", &[A]);
    at_once(kubelet.prepare("three")).await.expect("nobody has it");
    agent.stop().await;
}

#[tokio::test]
async fn a_claim_that_is_released_while_it_is_read_does_not_wait_at_all() {
    let (world, agent, mut kubelet, _) = contended().await;
    world.api.inject(Fault::at("resourceclaims/two", Effect::Delay(SLOWLY)).only("GET"));
    let second = world.reading(&kubelet, "two").await;
    at_once(kubelet.unprepare("two")).await.expect("released");
    let why = answered(second).await.expect_err("another has it");
    assert!(why.ends_with("is held by another claim"), "{why}");
    agent.stop().await;
}

#[tokio::test]
async fn a_claim_that_is_deleted_while_it_waits_gets_nothing() {
    let (world, agent, mut kubelet, _) = contended().await;
    let second = world.waiting(&kubelet, "two").await;
    world.remove("two");
    kubelet.unprepare("one").await.expect("released");
    answered(second).await.expect_err("nobody wants it");
    world.claim(&agent, "three", &[A]);
    at_once(kubelet.prepare("three")).await.expect("nobody has it");
    agent.stop().await;
}
