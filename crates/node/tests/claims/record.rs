//! Devices in the kubelet's checkpoint are held, even if pod resources omit them. Devices of deleted pods become free,
//! even if the kubelet writes no new checkpoint.

use std::time::Duration;

use windlass_config::{DraOffer, DraPolicy};
use windlass_kubelet_sim::{Calls, Container, Event, Misbehaviour, Pod, PodFault};
use windlass_testkit::{GPU, in_time};

use crate::claims::world::{World, free_gpus};

/// A node that offers its GPUs both ways, with an agent that looks often.
async fn world() -> World {
    let dra = DraPolicy { offer: DraOffer::Beside, ..DraPolicy::default() };
    let often = Duration::from_millis(500);
    let world = World::with(dra, |config| config.session.look_interval = often).await;
    world.plugin_has(8).await;
    world
}

fn one_gpu(name: &str) -> Container {
    Container::new(name).limit(GPU, 1)
}

/// Waits until the kubelet was sent a list of GPUs after this event, and wrote its record for it.
async fn rewritten(calls: &Calls, mut after: u64) {
    let is_list =
        |event: &Event| matches!(event, Event::ListReceived { resource, .. } if resource == GPU);
    let sent = async { while !calls.news(&mut after).await.iter().any(is_list) {} };
    in_time("the agent sends its list again", sent).await;
}

#[tokio::test]
async fn what_an_init_container_has_is_held_until_its_pod_is_gone() {
    let world = world().await;
    let pod = Pod::new("burn-in").init(one_gpu("burn")).container(Container::new("main"));
    world.admit(pod).await.expect("it fits");
    world.try_start("burn-in-uid", "burn").await.expect("it starts");
    world.free(7).await;
    let calls = world.kubelet.calls();
    rewritten(&calls, calls.now()).await;
    assert_eq!(free_gpus(&world.objects()), 7);
    rewritten(&calls, calls.now()).await;
    assert_eq!(free_gpus(&world.objects()), 7, "however often the kubelet does not tell of it");
    world.kubelet.delete("burn-in-uid").await;
    world.free(8).await;
}

#[tokio::test]
async fn what_pods_have_is_held_while_a_new_kubelet_was_not_told_of_them() {
    let world = world().await;
    world.admit(Pod::new("train").container(one_gpu("main"))).await.expect("it fits");
    world.try_start("train-uid", "main").await.expect("it starts");
    world.admit(Pod::new("proxy").container(Container::new("main"))).await.expect("it fits");
    world.try_start("proxy-uid", "main").await.expect("it starts");
    world.free(7).await;
    // Its API server is away; it knows of the static pod only.
    let pods = PodFault::Only(["proxy-uid".to_owned()].into());
    world.kubelet.misbehave(Misbehaviour { pods, ..Misbehaviour::default() });
    world.kubelet.restart().await.expect("it restarts");
    world.registered().await;
    world.plugin_has(8).await;
    let calls = world.kubelet.calls();
    rewritten(&calls, calls.now()).await;
    assert_eq!(free_gpus(&world.objects()), 7);
    world.kubelet.misbehave(Misbehaviour::default());
    world.kubelet.delete("train-uid").await;
    world.free(8).await;
}
