//! Devices in the kubelet's checkpoint are held, even if pod resources omit them. Devices of deleted pods become free,
//! even if the kubelet writes no new checkpoint.

use std::time::Duration;

use windlass_cluster_sim::node as bound;
use windlass_config::{Config, DraOffer, DraPolicy};
use windlass_kubelet_sim::{Container, Event, EventReader, Faults, Pod, PodSourceFault};
use windlass_testkit::{GPU, until_counts, within_timeout};

use crate::claims::{
    objects::{NAMESPACE, claim_template, gpus, pod},
    world::{World, free_gpus, uid, use_shipped_mounts},
};

/// A node that offers its GPUs through both APIs, with an agent that checks often.
async fn world() -> World {
    world_of(|_| {}).await
}

async fn world_of(change: fn(&mut Config)) -> World {
    let dra = DraPolicy { offer: DraOffer::Beside, ..DraPolicy::default() };
    let with_short_interval = |config: &mut Config| {
        change(config);
        config.kubelet_limits.check_interval = Duration::from_millis(500);
    };
    let world = World::with(dra, with_short_interval).await;
    world.until_plugin_has(8).await;
    world
}

fn one_gpu(name: &str) -> Container {
    Container::new(name).limit(GPU, 1)
}

/// Waits until the agent has sent a list of GPUs after this event, and the kubelet has written its checkpoint.
async fn until_checkpoint_rewritten(events: &EventReader, mut after: u64) {
    let is_list =
        |event: &Event| matches!(event, Event::ListReceived { resource, .. } if resource == GPU);
    let sent = async { while !events.next_events(&mut after).await.iter().any(is_list) {} };
    within_timeout("the agent sends its list again", sent).await;
}

#[tokio::test]
async fn devices_of_an_init_container_are_held_until_its_pod_has_ended() {
    let world = world().await;
    let pod = Pod::new("burn-in").init_container(one_gpu("burn")).container(Container::new("main"));
    world.admit(pod).await.expect("it fits");
    world.try_start("burn-in-uid", "burn").await.expect("it starts");
    world.until_free(7).await;
    let events = world.kubelet.events();
    until_checkpoint_rewritten(&events, events.next_sequence()).await;
    assert_eq!(free_gpus(&world.objects()), 7);
    until_checkpoint_rewritten(&events, events.next_sequence()).await;
    assert_eq!(free_gpus(&world.objects()), 7, "pod resources never list the init container");
    world.kubelet.delete_pod("burn-in-uid").await;
    world.until_free(8).await;
}

/// Without a list of the device plugin, the kubelet would not write that the pods have ended.
#[tokio::test]
async fn devices_of_a_pod_that_ended_before_a_restart_for_claims_become_free() {
    let mut world = world().await;
    for (name, gpus) in [("ended", 2), ("running", 1)] {
        let container = Container::new("main").limit(GPU, gpus);
        world.admit(Pod::new(name).container(container)).await.expect("it fits");
        world.try_start(&format!("{name}-uid"), "main").await.expect("it starts");
    }
    world.until_free(5).await;
    world.stop_agent().await;
    world.kubelet.delete_pod("ended-uid").await;
    world.config.policy.dra.offer = DraOffer::Instead;
    world.start_agent();
    world.until_registered().await;
    world.until_free(7).await;
    world.check();
    world.kubelet.delete_pod("running-uid").await;
    world.until_free(8).await;
    until_counts(&world.kubelet, GPU, (0, 0)).await;
}

/// A kubelet restarts without its API server and lists static pods only. Devices of the other pods are neither
/// published as free nor given to a claim that a scheduler placed there before, although the agent has restarted too.
async fn holds_devices_of_unlisted_pods(mut world: World) {
    world.objects().put(&claim_template(NAMESPACE, "late", &gpus(8)));
    let waiting = pod((NAMESPACE, "late"), &["main"], ("resourceClaimTemplateName", "late"));
    let waiting = world.cluster.schedule(&waiting).expect("all are free");
    world.admit(Pod::new("train").container(one_gpu("main"))).await.expect("it fits");
    world.try_start("train-uid", "main").await.expect("it starts");
    world.admit(Pod::new("proxy").container(Container::new("main"))).await.expect("it fits");
    world.try_start("proxy-uid", "main").await.expect("it starts");
    world.until_free(7).await;
    // The kubelet does not reach its API server: it knows the static pod, and the pod that has to be refused.
    let pods = PodSourceFault::Only(["proxy-uid".to_owned(), uid(&waiting)].into());
    world.kubelet.set_faults(Faults { pods, ..Faults::default() });
    world.kubelet.restart().await.expect("it restarts");
    world.until_registered().await;
    world.until_plugin_has(8).await;
    world.admit(bound::pod(&waiting)).await.expect("it requests no device of the plugin");
    for _ in 0..2 {
        let events = world.kubelet.events();
        until_checkpoint_rewritten(&events, events.next_sequence()).await;
        assert_eq!(free_gpus(&world.objects()), 7);
        let error = world.try_start(&uid(&waiting), "main").await.expect_err("one is in use");
        assert!(error.contains("is held by"), "{error}");
        world.check();
        world.kill_agent().await;
        world.start_agent();
        world.until_registered().await;
        world.until_plugin_has(8).await;
    }
    assert_eq!(world.record(), [], "no claim has a device");
    world.kubelet.delete_pod("train-uid").await;
    let events = world.kubelet.events();
    until_checkpoint_rewritten(&events, events.next_sequence()).await;
    assert_eq!(free_gpus(&world.objects()), 7, "the kubelet has not learned of the deletion");
    world.kubelet.reach_api_server().await;
    world.start_container(&uid(&waiting), "main").await;
    world.check();
}

#[tokio::test]
async fn devices_of_pods_are_held_before_a_new_kubelet_knows_the_pods() {
    Box::pin(holds_devices_of_unlisted_pods(world().await)).await;
}

#[tokio::test]
async fn devices_of_pods_are_held_by_an_agent_with_the_shipped_mounts() {
    let world = world_of(use_shipped_mounts).await;
    Box::pin(holds_devices_of_unlisted_pods(world)).await;
}
