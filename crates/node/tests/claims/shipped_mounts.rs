//! An agent that sees only the parts of the kubelet's folder that the shipped manifest mounts: not the kubelet's
//! checkpoint of claims.

use std::{fs, time::Duration};

use tracing::Level;
use windlass_cluster_sim::cluster::ScheduledPod;
use windlass_config::{Config, DraOffer, DraPolicy};
use windlass_kubelet_sim::NodeStatus;
use windlass_testkit::{GPU, LogCapture, TIMEOUT, until, until_exists};

use crate::{
    claims::{
        objects::{NAMESPACE, gpus},
        world::{World, uid, use_shipped_mounts},
    },
    dra::records,
};

/// Interval of the agent's checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

async fn world() -> World {
    let dra = DraPolicy { offer: DraOffer::Beside, ..DraPolicy::default() };
    let change = |config: &mut Config| {
        use_shipped_mounts(config);
        config.kubelet_limits.check_interval = CHECK_INTERVAL;
    };
    World::with(dra, change).await
}

async fn until_allocatable(world: &World, count: usize) {
    let is_reached =
        |node: &NodeStatus| node.resources.get(GPU).is_some_and(|it| it.allocatable == count);
    world
        .kubelet
        .wait_for(is_reached, TIMEOUT)
        .await
        .expect("the kubelet has this number of healthy GPUs");
}

#[tokio::test]
async fn a_deleted_claim_keeps_its_devices_until_the_kubelet_has_released_them() {
    let mut world = world().await;
    let (pod, _) = world.run("p", &gpus(1)).await;
    // The pod's object and its claim are deleted, while the container runs on.
    world.cluster.delete_pod(NAMESPACE, "p").expect("it was there");
    world.kill_agent().await;
    let log = LogCapture::start(Level::TRACE);
    world.start_agent();
    world.until_registered().await;
    until_allocatable(&world, 7).await;
    // A starting agent searches for orphaned claims.
    log.until(1, "found=0").await;
    world.check();
    assert_eq!(world.record().len(), 1, "the container runs");
    world.kubelet.delete_pod(&uid(&pod)).await;
    world.until_all_free().await;
    until_allocatable(&world, 8).await;
}

/// A claim with a GPU, and an agent that starts after `delete` has removed its state file.
async fn with_lost_state(delete: impl FnOnce(&Config)) -> (World, ScheduledPod) {
    let mut world = world().await;
    let (pod, _) = world.run("p", &gpus(1)).await;
    world.kill_agent().await;
    delete(&world.config);
    let log = LogCapture::start(Level::TRACE);
    world.start_agent();
    until_allocatable(&world, 0).await;
    log.until(4, "devices of claims are still unknown").await;
    until_allocatable(&world, 0).await;
    (world, pod)
}

fn delete_records(config: &Config) {
    for record in records(&config.places) {
        fs::remove_file(record).expect("it was there");
    }
}

#[tokio::test]
async fn a_record_that_is_lost_repeatedly_is_restored_from_its_copy_and_no_device_is_withheld() {
    let mut world = world().await;
    let (pod, grant) = world.run("p", &gpus(1)).await;
    let (record, remaining) = (world.record(), world.remains());
    let [file, copy] = records(&world.config.places);
    for _ in 0..2 {
        world.kill_agent().await;
        fs::remove_file(&file).expect("it was there");
        world.start_agent();
        world.until_registered().await;
        until_allocatable(&world, 7).await;
        until_exists(&file).await;
        assert_eq!(world.record(), record);
        // The folder is deleted under the running agent, which writes all of it again.
        fs::remove_dir_all(&world.config.places.cdi_dir).expect("it was there");
        until("all documents are there", async || {
            let now = world.remains();
            if now == remaining { Ok(()) } else { Err(now) }
        })
        .await;
        assert!(copy.exists(), "it is written before the documents");
        assert_eq!(world.start_container(&uid(&pod), "main").await.cdi_devices, grant.cdi_devices);
        world.check();
    }
    world.kubelet.delete_pod(&uid(&pod)).await;
    world.until_released().await;
    until_allocatable(&world, 8).await;
}

#[tokio::test]
async fn with_a_lost_record_no_device_is_allocated_until_the_kubelet_has_released_every_claim() {
    let (world, pod) = with_lost_state(delete_records).await;
    let agent = world.agent.as_ref().expect("it runs");
    let obstacle = agent.state.borrow().device_offers().into_values().find_map(|it| it.obstacle);
    assert!(obstacle.expect("withheld").contains("devices of claims are unknown"));
    world.kubelet.delete_pod(&uid(&pod)).await;
    world.until_released().await;
    until_allocatable(&world, 8).await;
}

#[tokio::test]
async fn with_record_and_documents_lost_no_device_is_allocated_while_containers_have_claims() {
    let delete = |config: &Config| {
        delete_records(config);
        fs::remove_dir_all(&config.places.cdi_dir).expect("it was there");
    };
    let (world, pod) = with_lost_state(delete).await;
    world.kubelet.delete_pod(&uid(&pod)).await;
    world.until_released().await;
    until_allocatable(&world, 8).await;
}

#[tokio::test]
async fn a_file_in_place_of_the_state_folder_does_not_mean_that_no_claims_exist() {
    let moved = |config: &Config| config.places.state_dir.with_file_name("away");
    let block = |config: &Config| {
        fs::rename(&config.places.state_dir, moved(config)).expect("moved");
        fs::write(&config.places.state_dir, "").expect("written");
    };
    let (world, pod) = with_lost_state(block).await;
    fs::remove_file(&world.config.places.state_dir).expect("it was there");
    fs::rename(moved(&world.config), &world.config.places.state_dir).expect("moved");
    until_allocatable(&world, 7).await;
    world.kubelet.delete_pod(&uid(&pod)).await;
    world.until_released().await;
    until_allocatable(&world, 8).await;
}

#[tokio::test]
async fn without_a_record_no_device_is_allocated_until_an_operator_confirms_that_no_claim_has_one()
{
    let mut world = world().await;
    let (pod, _) = world.run("p", &gpus(1)).await;
    world.stop_agent().await;
    let [record, copy] = records(&world.config.places);
    for broken in [&record, &copy] {
        fs::write(broken, "{").expect("written");
    }
    world.start_agent();
    until_allocatable(&world, 0).await;
    let documents = fs::read_dir(&world.config.places.cdi_dir).expect("there");
    let names = documents.map(|file| file.expect("there").file_name().into_string().expect("text"));
    assert!(
        { names }.any(|name| name.contains("-claim-")),
        "the document of a running claim remains"
    );

    fs::remove_file(&record).expect("deleted by the operator, as the log says");
    world.until_registered().await;
    world.kubelet.delete_pod(&uid(&pod)).await;
    until_allocatable(&world, 8).await;
}
