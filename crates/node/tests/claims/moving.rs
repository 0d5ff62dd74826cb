//! A node goes from the device plugin to claims and back while its pods run.

use windlass_kubelet_sim::{Container, NodeStatus, Pod};
use windlass_node::config::DraOffer;

use crate::{
    common::running::LIMIT,
    wish::gpus,
    world::{World, devices},
};

/// What the device plugin calls its GPUs.
pub(crate) const RESOURCE: &str = "nvidia.com/gpu";

impl World {
    pub(crate) async fn plugin_has(&self, free: usize) {
        let has = |node: &NodeStatus| {
            node.counts(RESOURCE).is_some_and(|(_, allocatable)| allocatable == free)
        };
        self.kubelet.wait_for(has, LIMIT).await.unwrap_or_else(|late| panic!("{late}"));
    }
}

#[tokio::test]
async fn device_by_device_as_they_become_free() {
    let mut world = World::new(DraOffer::Beside).await;
    world.plugin_has(8).await;
    let main = Container::new("main").limit(RESOURCE, 3);
    world.admit(Pod::new("old").container(main)).await.expect("it fits");
    world.try_start("old-uid", "main").await.expect("it starts");
    world.free(5).await;
    world.offer(DraOffer::Instead);
    let (some, _) = world.run("some", &gpus(5)).await;
    assert_eq!(devices(&some).len(), 5);
    world.check();
    world.kubelet.delete("old-uid").await;
    world.free(8).await;
    let (rest, _) = world.run("rest", &gpus(3)).await;
    world.check();

    world.offer(DraOffer::Beside);
    world.end(&rest).await;
    world.plugin_has(3).await;
    let main = Container::new("main").limit(RESOURCE, 3);
    world.admit(Pod::new("new").container(main)).await.expect("it fits");
    world.try_start("new-uid", "main").await.expect("it starts");
    world.check();
    world.kubelet.delete("new-uid").await;
    world.end(&some).await;
    // A kubelet that tells of no pod at all is believed after a minute.
    world.all_is_released().await;
}
