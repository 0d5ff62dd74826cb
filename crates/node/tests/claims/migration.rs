//! A node moves from the device plugin to claims and back while its pods run.

use windlass_config::DraOffer;
use windlass_kubelet_sim::{Container, Pod};
use windlass_testkit::{GPU, allocatable};

use crate::claims::{
    wish::gpus,
    world::{World, devices},
};

impl World {
    pub(crate) async fn plugin_has(&self, free: usize) {
        allocatable(&self.kubelet, GPU, free).await;
    }
}

#[tokio::test]
async fn devices_move_one_by_one_as_they_become_free() {
    let mut world = World::new(DraOffer::Beside).await;
    world.plugin_has(8).await;
    let main = Container::new("main").limit(GPU, 3);
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
    let main = Container::new("main").limit(GPU, 3);
    world.admit(Pod::new("new").container(main)).await.expect("it fits");
    world.try_start("new-uid", "main").await.expect("it starts");
    world.check();
    world.kubelet.delete("new-uid").await;
    world.end(&some).await;
    // If pod resources list no pod at all, the agent believes them after a minute.
    world.all_is_released().await;
}
