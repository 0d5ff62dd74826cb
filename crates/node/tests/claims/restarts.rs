//! Agents that end at any point leave a state that the next one continues or cleans up.

use std::{collections::BTreeSet, time::Duration};

use tokio::task::yield_now;
use windlass_cluster_sim::{
    api::{Effect, Fault, Objects},
    node as bound,
};
use windlass_config::{DraOffer, DraPolicy};
use windlass_kubelet_sim::RunContainerOptions;
use windlass_testkit::TIMEOUT;

use crate::claims::{
    objects::{NAMESPACE, claim_template, gpus, pod},
    world::{NODE, World, devices, published, uid},
};

/// Number of polls of the runtime before the kill of an agent that prepares a claim: from before the call arrives until
/// after its answer.
const POLLS: [usize; 10] = [0, 2, 5, 9, 14, 20, 30, 45, 70, 120];

#[tokio::test]
async fn after_a_kill_during_a_preparation_the_next_agent_prepares_the_same_devices() {
    let mut world = World::new(DraOffer::Instead).await;
    for polls in POLLS {
        let name = format!("p{polls}");
        world.objects().put(&claim_template(NAMESPACE, &name, &gpus(2)));
        let pod_with_claim =
            pod((NAMESPACE, &name), &["main"], ("resourceClaimTemplateName", &name));
        let scheduled = world.cluster.schedule(&pod_with_claim).expect("a node");
        world.admit(bound::pod(&scheduled)).await.expect("it fits");
        let uid = uid(&scheduled);
        tokio::select! {
            biased;
            _ = Box::pin(world.kubelet.sync_pod(&uid)) => {}
            () = async { for _ in 0..polls { yield_now().await } } => {}
        }
        world.kill_agent().await;
        world.check();
        world.start_agent();
        world.until_registered().await;
        let grant = world.start_container(&uid, "main").await;
        // A kubelet that was interrupted after the answer lists its devices twice.
        let names: BTreeSet<_> = grant.cdi_devices.iter().collect();
        assert_eq!(names.len(), 3, "after {polls} polls: {grant:?}");
        assert_eq!(grant.cdi_devices.len() % 3, 0, "every device, after {polls} polls: {grant:?}");
        let prepared = world.record().into_iter().flat_map(|(_, devices)| devices);
        let prepared = prepared.map(|(device, _)| device).collect();
        assert_eq!(devices(&scheduled), prepared, "after {polls} polls");
        world.check();
        world.end(&scheduled).await;
    }
    world.until_all_free().await;
}

#[tokio::test]
async fn an_agent_that_is_killed_while_the_claim_is_read_has_recorded_nothing() {
    let mut world = World::new(DraOffer::Instead).await;
    let slow = Effect::Delay(Duration::from_secs(3600));
    world.cluster.server().inject(Fault::at("resourceclaims", slow).for_method("GET"));
    world.objects().put(&claim_template(NAMESPACE, "p", &gpus(1)));
    let pod_with_claim = pod((NAMESPACE, "p"), &["main"], ("resourceClaimTemplateName", "p"));
    let scheduled = world.cluster.schedule(&pod_with_claim).expect("a node");
    world.admit(bound::pod(&scheduled)).await.expect("it fits");
    let is_read = |objects: &Objects| {
        objects.requests().iter().any(|it| it.path.contains("resourceclaims")).then_some(())
    };
    let (uid, objects) = (uid(&scheduled), world.objects());
    tokio::select! {
        _ = Box::pin(world.kubelet.sync_pod(&uid)) => panic!("the API server does not answer"),
        is_read = objects.wait_until(TIMEOUT, is_read) => is_read.expect("the driver reads the claim"),
    }
    world.kill_agent().await;
    assert_eq!(world.remains(), [""; 0]);
    world.cluster.server().clear_faults();
    world.start_agent();
    world.until_registered().await;
    world.start_container(&uid, "main").await;
    world.check_and_end(&[&scheduled]).await;
}

#[tokio::test]
async fn claims_outlive_the_kubelet_and_the_slices_that_it_deletes_are_published_again() {
    let world = World::new(DraOffer::Instead).await;
    let (one, _) = world.run("one", &gpus(1)).await;
    let (two, _) = world.run("two", &gpus(3)).await;
    let before = world.kubelet.status().claims.clone();
    world.kubelet.restart().await.expect("it restarts");
    world.until_settled().await;
    for (name, claim) in &world.kubelet.status().claims {
        assert_eq!(claim.devices, before[name].devices);
    }
    world.check();
    let (three, _) = world.run("three", &gpus(4)).await;
    world.kubelet.stop().await;
    world.kubelet.delete_pod(&uid(&one)).await;
    world.kubelet.restart().await.expect("it starts");
    world.until_settled().await;
    world.check();
    let namespace = one.pod.metadata.namespace.as_deref().unwrap_or_default();
    world.cluster.delete_pod(namespace, "one").expect("it was there");
    for pod in [&two, &three] {
        world.end(pod).await;
    }
    world.until_all_free().await;
}

#[tokio::test]
async fn after_a_reboot_the_same_claims_have_the_same_devices() {
    let mut world = World::new(DraOffer::Instead).await;
    let (pod, first) = world.run("p", &gpus(2)).await;
    world.stop_agent().await;
    world.kubelet.reboot().await.expect("it starts");
    world.start_agent();
    world.until_registered().await;
    let second = world.start_container(&uid(&pod), "main").await;
    // The kubelet adds the devices of each answer to those that it knew.
    let names =
        |grant: &RunContainerOptions| grant.cdi_devices.iter().cloned().collect::<BTreeSet<_>>();
    assert_eq!(names(&second), names(&first));
    world.check_and_end(&[&pod]).await;
}

#[tokio::test]
async fn deleted_slices_are_published_again_while_claims_are_used() {
    let world = World::new(DraOffer::Instead).await;
    let before = published(&world.objects());
    let (pod, _) = world.run("p", &gpus(1)).await;
    for _ in 0..3 {
        assert!(world.objects().delete_all_slices(NODE) > 0);
        world.until_settled().await;
        assert_eq!(published(&world.objects()).len(), before.len());
    }
    world.check_and_end(&[&pod]).await;
}

#[tokio::test]
async fn without_the_api_server_prepared_claims_remain_and_new_claims_wait_for_it() {
    let mut world = World::new(DraOffer::Instead).await;
    let (kept, _) = world.run("kept", &gpus(1)).await;
    let (gone, _) = world.run("gone", &gpus(1)).await;
    world.objects().put(&claim_template(NAMESPACE, "new", &gpus(1)));
    let pod_with_claim = pod((NAMESPACE, "new"), &["main"], ("resourceClaimTemplateName", "new"));
    let new = world.cluster.schedule(&pod_with_claim).expect("a node");
    world.cluster.server_mut().go_offline().await;
    world.admit(bound::pod(&new)).await.expect("it fits");
    let error = world.try_start(&uid(&new), "main").await.expect_err("the API server is stopped");
    assert!(error.contains("cannot read claim default/new-devices-"), "{error}");
    world.kubelet.delete_pod(&uid(&gone)).await;
    assert_eq!(world.record().len(), 1, "a release needs no API server");
    world.check();
    world.kill_agent().await;
    world.start_agent();
    world.until_registered().await;
    world.cluster.server_mut().go_online();
    world.start_container(&uid(&new), "main").await;
    world.check();
    let namespace = gone.pod.metadata.namespace.as_deref().unwrap_or_default();
    world.cluster.delete_pod(namespace, "gone").expect("it was there");
    world.end(&kept).await;
    world.end(&new).await;
    world.until_all_free().await;
}

#[tokio::test]
async fn the_kubelets_checkpoint_is_awaited_only_after_an_agent_with_the_device_plugin() {
    let hour = Duration::from_secs(3600);
    for offer in [DraOffer::Instead, DraOffer::Beside] {
        // Without an earlier agent, all devices are published at once.
        let dra = DraPolicy { offer, ..DraPolicy::default() };
        let mut world =
            World::with(dra, |config| config.kubelet_limits.checkpoint_delay = hour).await;
        world.stop_agent().await;
        world.start_agent();
        world.until_registered().await;
        world.objects().put(&claim_template(NAMESPACE, "p", &gpus(1)));
        let pod_with_claim = pod((NAMESPACE, "p"), &["main"], ("resourceClaimTemplateName", "p"));
        let scheduled = world.cluster.schedule(&pod_with_claim).expect("the slices remain");
        world.admit(bound::pod(&scheduled)).await.expect("it fits");
        if offer == DraOffer::Instead {
            world.start_container(&uid(&scheduled), "main").await;
            continue;
        }
        let error = world
            .try_start(&uid(&scheduled), "main")
            .await
            .expect_err("the checkpoint was not read yet");
        assert!(
            error.contains("cannot be taken yet: the kubelet's checkpoint was not read"),
            "{error}"
        );
    }
}
