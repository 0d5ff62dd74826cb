//! Gangs: pods that start together or not at all.

use std::time::Instant;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::rig::{Extender, GANG_WAIT, TIMEOUT, TestCluster};

/// Adds a pod of a gang that requests whole GPUs.
fn member(cluster: &TestCluster, name: &str, gpus: usize, size: usize) -> Value {
    let annotations = json!({"windlass.dev/gang-size": size.to_string()});
    cluster.add_member(name, "train", gpus, &annotations)
}

/// Schedules one pod as kube-scheduler does: filters the nodes, takes the first, and binds.
async fn schedule(extender: &Extender, pod: &Value, nodes: &[&str]) -> Result<String, String> {
    let answer = extender.call("filter", &json!({"Pod": pod, "NodeNames": nodes})).await;
    if answer["Error"] != "" {
        return Err(answer["Error"].as_str().expect("text").to_owned());
    }
    let Some(node) = answer["NodeNames"].get(0).and_then(Value::as_str) else {
        return Err(answer["FailedAndUnresolvableNodes"].to_string());
    };
    match extender.bind(pod, node).await {
        error if error.is_empty() => Ok(node.to_owned()),
        error => Err(error),
    }
}

/// Schedules two pods whose binds wait for each other. Returns their nodes, sorted.
async fn schedule_both(extender: &Extender, pods: [&Value; 2], nodes: &[&str]) -> [String; 2] {
    let [one, two] = pods.map(|pod| schedule(extender, pod, nodes));
    let (one, two) = tokio::join!(one, two);
    let mut placed_nodes = [one, two].map(|node| node.expect("bound"));
    placed_nodes.sort_unstable();
    placed_nodes
}

/// Nodes with `gpus` GPUs each, and an extender that sees them.
async fn start_cluster<const N: usize>(nodes: [&str; N], gpus: usize) -> (TestCluster, Extender) {
    let cluster = TestCluster::start();
    for name in nodes {
        cluster.add_node(name, gpus);
    }
    let extender = cluster.extender("one").await;
    (cluster, extender)
}

#[tokio::test]
async fn the_members_of_a_gang_are_bound_once_the_last_has_arrived() {
    let nodes = ["a", "b", "c"];
    let (cluster, extender) = start_cluster(nodes, 2).await;
    let [one, two] = ["one", "two"].map(|name| member(&cluster, name, 2, 3));
    extender.wait_for_gauge("pods", "2.0").await;
    let early = schedule(&extender, &one, &nodes).await;
    assert_eq!(early, Err("gang train has 2 of the 3 pods that start together".to_owned()));
    let three = member(&cluster, "three", 2, 3);
    let other = cluster.add_pod("other", json!({"nvidia.com/gpu": "1"}));
    extender.wait_for_gauge("pods", "4.0").await;
    let (first, second, third) =
        tokio::join!(schedule(&extender, &one, &nodes), schedule(&extender, &two, &nodes), async {
            // Once two members wait, all GPUs are reserved, and nothing is written.
            extender.wait_for_gauge("idle_gpus", "0.0").await;
            let (fitting, reasons) = extender.filter(&other, &nodes).await;
            assert!(fitting.is_empty(), "{reasons}");
            assert!(["one", "two"].iter().all(|name| cluster.placement(name).is_none()));
            schedule(&extender, &three, &nodes).await
        });
    let mut placed_nodes = [first, second, third].map(|node| node.expect("bound"));
    placed_nodes.sort_unstable();
    assert_eq!(placed_nodes, nodes);
    let (_, page) = extender.get("/metrics").await;
    assert!(page.contains("windlass_cluster_gangs_total{is_whole=\"true\"} 1\n"), "{page}");
    // A recreated member does not wait, because the others run.
    cluster.server.objects().delete::<Pod>("default", "two").expect("deleted");
    extender.wait_for_gauge("idle_gpus", "2.0").await;
    let recreated = member(&cluster, "recreated", 2, 3);
    assert!(schedule(&extender, &recreated, &nodes).await.is_ok());
    extender.stop().await;
}

#[tokio::test]
async fn a_gang_that_does_not_fit_completely_holds_nothing() {
    let nodes = ["a", "b"];
    let (cluster, extender) = start_cluster(nodes, 2).await;
    let [one, _, _] = ["one", "two", "three"].map(|name| member(&cluster, name, 2, 3));
    extender.wait_for_gauge("pods", "3.0").await;
    let (fitting, reasons) = extender.filter(&one, &nodes).await;
    assert!(fitting.is_empty());
    let message = "unresolvable: gang train: its 3 pods without a place do not fit side by side";
    assert_eq!((&reasons["a"], &reasons["b"]), (&message.into(), &message.into()));
    assert!(!extender.bind(&one, "a").await.is_empty(), "bind plans the gang too");
    extender.wait_for_gauge("idle_gpus", "4.0").await;
    let wrong = cluster.add_member("wrong", "other", 1, &json!({"windlass.dev/gang-size": "many"}));
    let (_, reasons) = extender.filter(&wrong, &nodes).await;
    assert!(reasons["a"].as_str().expect("text").ends_with(
        "the pod is of gang other, so its annotation windlass.dev/gang-size has to be a number from 1 to 128, not \
         \"many\""
    ));
    extender.stop().await;
}

#[tokio::test]
async fn an_incomplete_gang_is_given_up_and_its_gpus_are_free() {
    let nodes = ["a", "b"];
    let (cluster, extender) = start_cluster(nodes, 1).await;
    let [one, two] = ["one", "two"].map(|name| member(&cluster, name, 1, 2));
    extender.wait_for_gauge("pods", "2.0").await;
    let start = Instant::now();
    let given_up = schedule(&extender, &one, &nodes).await.expect_err("alone");
    assert!(given_up.starts_with("gang train was not complete within 5s: "), "{given_up}");
    assert!(start.elapsed() >= GANG_WAIT);
    extender.wait_for_gauge("idle_gpus", "2.0").await;
    assert!(cluster.placement("one").is_none());
    // The gang is in back-off, so that other pods can get the GPUs.
    let refusal = schedule(&extender, &one, &nodes).await.expect_err("in back-off");
    assert!(
        refusal.starts_with("gang train was not complete in time, and is tried again in "),
        "{refusal}"
    );
    let args = json!({"Pod": one, "NodeNames": nodes});
    let is_over = async { while extender.call("filter", &args).await["Error"] != "" {} };
    timeout(TIMEOUT, is_over).await.expect("the back-off ends");
    schedule_both(&extender, [&one, &two], &nodes).await;
    extender.stop().await;
}

#[tokio::test]
async fn an_abandoned_bind_is_replaced_by_the_next_one() {
    let nodes = ["a", "b"];
    let (cluster, extender) = start_cluster(nodes, 1).await;
    let [one, two] = ["one", "two"].map(|name| member(&cluster, name, 1, 2));
    extender.wait_for_gauge("pods", "2.0").await;
    // kube-scheduler closes the connection, and binds the pod again.
    let closed_bind = async {
        tokio::select! {
            _ = extender.bind(&one, "a") => panic!("the gang is incomplete"),
            () = extender.wait_for_gauge("idle_gpus", "0.0") => {}
        }
    };
    closed_bind.await;
    extender.wait_for_gauge("idle_gpus", "2.0").await;
    assert_eq!(
        schedule_both(&extender, [&one, &two], &nodes).await,
        nodes,
        "each member has its own GPU"
    );
    extender.stop().await;
}

#[tokio::test]
async fn members_with_different_annotations_are_refused() {
    let (cluster, extender) = start_cluster(["a"], 4).await;
    let (one, _) = (member(&cluster, "one", 1, 2), member(&cluster, "two", 1, 3));
    extender.wait_for_gauge("pods", "2.0").await;
    let answer = extender.call("filter", &json!({"Pod": one, "NodeNames": ["a"]})).await;
    let message = "pods of gang train differ in windlass.dev/gang-size or windlass.dev/gang-within, pod two for one: set \
                equal values on all";
    assert_eq!(answer["Error"], message);
    extender.stop().await;
}

#[tokio::test]
async fn a_gang_is_placed_in_the_smallest_rack_that_fits_it() {
    let cluster = TestCluster::start();
    let racks = [("a1", "a", 8), ("b1", "b", 2), ("b2", "b", 2), ("c1", "c", 2)];
    for (name, rack, gpus) in racks {
        cluster.add_labelled_node(name, gpus, &json!({"example.com/rack": rack}));
    }
    let nodes = racks.map(|(name, ..)| name);
    let extender = cluster.extender("one").await;
    let within_rack =
        json!({"windlass.dev/gang-size": "2", "windlass.dev/gang-within": "example.com/rack"});
    let [one, two] = ["one", "two"].map(|name| cluster.add_member(name, "racked", 2, &within_rack));
    extender.wait_for_gauge("pods", "2.0").await;
    let placed_nodes = schedule_both(&extender, [&one, &two], &nodes).await;
    assert_eq!(placed_nodes, ["b1", "b2"], "not c, which is too small, and not a, which is larger");
    // Another pod of the gang must be placed in the same rack.
    let more = cluster.add_member("more", "racked", 2, &within_rack);
    let (fitting, reasons) = extender.filter(&more, &nodes).await;
    assert!(fitting.is_empty(), "{reasons}");
    assert!(reasons["a1"].as_str().expect("text").ends_with("on nodes with one example.com/rack"));
    extender.stop().await;
}

#[tokio::test]
async fn a_shutdown_does_not_wait_for_a_gang() {
    let (cluster, extender) = start_cluster(["a"], 2).await;
    let [one, _] = ["one", "two"].map(|name| member(&cluster, name, 1, 2));
    extender.wait_for_gauge("pods", "2.0").await;
    let start = Instant::now();
    let waiting = async {
        extender.wait_for_gauge("idle_gpus", "0.0").await;
        extender.request_stop();
    };
    let (error, ()) = tokio::join!(extender.bind(&one, "a"), waiting);
    assert!(error.starts_with("gang train was given up"), "{error}");
    assert!(start.elapsed() < GANG_WAIT);
    extender.stop().await;
}
