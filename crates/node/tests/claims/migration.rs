//! A node moves from the device plugin to claims and back while its pods run.

use windlass_config::DraOffer;
use windlass_kubelet_sim::{Container, Pod};
use windlass_testkit::{GPU, until_allocatable};

use crate::claims::{
    objects::gpus,
    world::{World, devices},
};

impl World {
    pub(crate) async fn until_plugin_has(&self, free: usize) {
        until_allocatable(&self.kubelet, GPU, free).await;
    }
}

#[tokio::test]
async fn devices_move_one_by_one_as_they_become_free() {
    let mut world = World::new(DraOffer::Beside).await;
    world.until_plugin_has(8).await;
    let main = Container::new("main").limit(GPU, 3);
    world.admit(Pod::new("old").container(main)).await.expect("it fits");
    world.try_start("old-uid", "main").await.expect("it starts");
    world.until_free(5).await;
    world.offer(DraOffer::Instead);
    let (five, _) = world.run("some", &gpus(5)).await;
    assert_eq!(devices(&five).len(), 5);
    world.check();
    world.kubelet.delete_pod("old-uid").await;
    world.until_free(8).await;
    let (three, _) = world.run("rest", &gpus(3)).await;
    world.check();

    world.offer(DraOffer::Beside);
    world.end(&three).await;
    world.until_plugin_has(3).await;
    let main = Container::new("main").limit(GPU, 3);
    world.admit(Pod::new("new").container(main)).await.expect("it fits");
    world.try_start("new-uid", "main").await.expect("it starts");
    world.check();
    world.kubelet.delete_pod("new-uid").await;
    world.end(&five).await;
    // If pod resources list no pod at all, the agent believes them after a minute.
    world.until_released().await;
}
