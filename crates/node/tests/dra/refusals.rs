//! Claims that cannot be prepared, and their errors.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;
use windlass_cluster_sim::api::{Effect, Fault, Objects};
use windlass_config::{
    PerContainer, ResourceRule, Resources, Selector, Shared, Sharing, SharingMethod,
};
use windlass_core::device::DeviceKind;
use windlass_machine as machine;
use windlass_testkit::TIMEOUT;

use crate::dra::world::{Allocated, FIRST_GPU, SECOND_GPU, World, claim, gpus, result};

#[tokio::test]
async fn the_second_of_two_claims_on_a_device_is_refused_and_takes_no_device() {
    let (world, agent, mut kubelet) = World::start().await;
    world.claim(&agent, "one", &[FIRST_GPU]);
    world.claim(&agent, "two", &[Allocated { request: "b", gpu: 1 }, FIRST_GPU]);
    world.claim(&agent, "three", &[Allocated { request: "b", gpu: 1 }]);
    kubelet.prepare("one").await.expect("prepared");
    let id = gpus(&agent.state.borrow())[0].id.as_str().to_lowercase();
    let error = kubelet.prepare("two").await.expect_err("held");
    assert_eq!(error, format!("request a: {id} is held by another claim"));
    kubelet.prepare("three").await.expect("a refused claim takes no device");
    kubelet.unprepare("one").await.expect("released");
    kubelet.unprepare("three").await.expect("released");
    kubelet.prepare("two").await.expect("both are free");
    agent.stop().await;
}

#[tokio::test]
async fn a_claim_with_admin_access_uses_another_claims_device_and_shares_coexist() {
    let (world, agent, mut kubelet) = World::start().await;
    let gpu = gpus(&agent.state.borrow())[0].clone();
    world.claim(&agent, "owner", &[FIRST_GPU]);
    let put_claim_with = |name: &str, field: &str, value: Value| {
        let mut result = result("a", &gpu);
        result[field] = value;
        world.put(&claim(name, &[result]));
    };
    put_claim_with("admin", "adminAccess", json!(true));
    put_claim_with("share-1", "shareID", json!("s1"));
    put_claim_with("share-2", "shareID", json!("s2"));
    kubelet.prepare("owner").await.expect("prepared");
    kubelet.prepare("admin").await.expect("admin access takes no device");
    kubelet.prepare("share-1").await.expect_err("the owner has it exclusively");
    kubelet.unprepare("owner").await.expect("released");
    for (name, share) in [("share-1", "s1"), ("share-2", "s2")] {
        let devices = kubelet.prepare(name).await.expect(name);
        assert_eq!(devices[0].share_id.as_deref(), Some(share));
    }
    agent.stop().await;
}

#[tokio::test]
async fn a_share_beyond_the_capacity_is_refused_until_another_is_released() {
    let mut world = World::new();
    let (method, per_container) = (SharingMethod::TimeSlicing, PerContainer::One);
    let replicas = 2.try_into().expect("valid");
    let shared = Shared { method, replicas, per_container, memory_mib: None };
    let name = "nvidia.com/gpu".parse().expect("a name");
    let rule = ResourceRule::new(name, Selector::all(DeviceKind::Gpu), Sharing::Shared(shared));
    world.config.policy.resources = Resources::Rules(vec![rule]);
    let (agent, mut kubelet) = world.start_ready().await;
    let gpu = gpus(&agent.state.borrow())[0].clone();
    for name in ["one", "two", "ghosted"] {
        let mut result = result("a", &gpu);
        result["shareID"] = json!(name);
        result["consumedCapacity"] = json!({"windlass.dev/shares": "1"});
        world.put(&claim(name, &[result]));
    }
    kubelet.prepare("one").await.expect("free");
    kubelet.prepare("two").await.expect("room");
    // The pod of one claim was deleted by force: its share is free for the scheduler, but not on the node.
    world.remove("one");
    let error = kubelet.prepare("ghosted").await.expect_err("both are in use");
    assert!(error.contains("1 of its 2 shares requested, and 0 left by other claims"), "{error}");
    kubelet.unprepare("one").await.expect("released");
    kubelet.prepare("ghosted").await.expect("room again");
    agent.stop().await;
}

#[tokio::test]
async fn claims_that_cannot_be_prepared_are_refused_with_the_reason() {
    let (world, agent, mut kubelet) = World::start().await;
    let gpu = gpus(&agent.state.borrow())[0].clone();
    let mut unknown = result("a", &gpu);
    unknown["device"] = json!("gpu-0");
    world.put(&claim("unknown", &[unknown]));
    let mut fresh = world.claim(&agent, "fresh", &[FIRST_GPU]);
    fresh["status"] = json!({});
    world.put(&fresh);
    let mut replaced = world.claim(&agent, "replaced", &[FIRST_GPU]);
    replaced["metadata"]["uid"] = json!("other");
    world.put(&replaced);
    for (name, expected) in [
        ("gone", "claim ns/gone does not exist"),
        ("fresh", "claim ns/fresh is not allocated"),
        ("replaced", "claim ns/replaced was replaced: it has UID other and not replaced"),
        ("unknown", "request a: pool n1/nvidia has no device gpu-0"),
    ] {
        assert_eq!(kubelet.prepare(name).await.expect_err("refused"), expected);
    }
    let invalid = kubelet.prepare_all(&[("a", "../a")]).await;
    assert_eq!(invalid.claims["../a"].error, r#"claim ns/a: "../a" is not a valid UID"#);
    agent.stop().await;
}

#[tokio::test]
async fn a_device_that_failed_after_its_allocation_is_refused_with_its_failure() {
    let (world, agent, mut kubelet) = World::start().await;
    world.claim(&agent, "c", &[FIRST_GPU]);
    world.machine.inject(&machine::Fault::Xid { gpu: 0, code: 79 }).expect("injected");
    agent.until(|state| !gpus(state)[0].health.is_healthy()).await;
    let error = kubelet.prepare("c").await.expect_err("unhealthy");
    assert!(error.contains("cannot be used") && error.contains("79"), "{error}");
    agent.stop().await;
}

#[tokio::test]
async fn impossible_parameters_are_refused_with_their_origin() {
    let (world, agent, mut kubelet) = World::start().await;
    let device_config = |sharing: Value| {
        json!({
            "apiVersion": "windlass.dev/v1alpha1", "kind": "DeviceConfig", "sharing": sharing,
        })
    };
    let nvidia_config = json!({
        "apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig",
        "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Default"}},
    });
    let origin = "configuration 1 of the allocation, from the claim";
    for (parameters, expected) in [
        (nvidia_config, None),
        (device_config(json!({"strategy": "TimeSlicing"})), None),
        (
            device_config(json!({"strategy": "MPS", "mps": {"activeThreadPercentage": 0}})),
            Some("active threads 0: write 1 to 100 percent"),
        ),
        (device_config(json!({"strategie": "MPS"})), Some("unknown field `strategie`")),
        (json!({"apiVersion": "windlass.dev/v2", "kind": "X"}), Some(r#"no kind "X""#)),
        (
            json!({"apiVersion": "resource.nvidia.com/v1beta1", "kind": "MigDeviceConfig"}),
            Some("it applies to a mig, and request a got"),
        ),
    ] {
        let mut claim = world.claim(&agent, "c", &[FIRST_GPU]);
        claim["status"]["allocation"]["devices"]["config"] = json!([{
            "source": "FromClaim", "requests": ["a"],
            "opaque": {"driver": "windlass.dev", "parameters": parameters},
        }]);
        world.put(&claim);
        let outcome = kubelet.prepare("c").await;
        match expected {
            None => drop(outcome.expect("valid parameters")),
            Some(expected) => {
                let error = outcome.expect_err(expected);
                assert!(error.starts_with(origin) && error.contains(expected), "{error}");
            }
        }
        kubelet.unprepare("c").await.expect("released");
    }
    agent.stop().await;
}

#[tokio::test]
async fn a_slow_claim_delays_no_other_and_can_be_prepared_again_after_an_outage() {
    let mut world = World::new();
    let (agent, mut kubelet) = world.start_ready().await;
    world.claim(&agent, "known", &[FIRST_GPU]);
    world.claim(&agent, "new", &[SECOND_GPU]);
    kubelet.prepare("known").await.expect("prepared");
    let delay = Fault::at("resourceclaims/new", Effect::Delay(Duration::from_secs(1)));
    world.api.inject(delay.for_method("GET").times(1));
    let mut other = kubelet.clone();
    let slow_call = async {
        other.prepare("new").await.expect("prepared after the answer");
        Instant::now()
    };
    let quick_call = async {
        let is_read =
            |it: &Objects| it.requests().iter().any(|request| request.path.ends_with("/new"));
        let read = world.api.objects().wait_until(TIMEOUT, |it| is_read(it).then_some(())).await;
        read.expect("in time");
        kubelet.prepare("known").await.expect("as before");
        Instant::now()
    };
    let (slow_call, quick_call) = tokio::join!(slow_call, quick_call);
    assert!(quick_call < slow_call, "the other claim was not delayed");
    kubelet.unprepare("new").await.expect("released");
    world.api.go_offline().await;
    let error = kubelet.prepare("new").await.expect_err("no API server");
    assert!(error.contains("cannot read claim ns/new: the API server is not reachable"), "{error}");
    world.api.go_online();
    kubelet.prepare("new").await.expect("the API server has returned");
    agent.stop().await;
}
