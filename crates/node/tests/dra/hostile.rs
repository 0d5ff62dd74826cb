//! Hostile input from kubelet and claim authors: no name becomes a path, and no parameter becomes a container edit.

use std::{collections::BTreeSet, fs, path::PathBuf};

use proptest::{
    collection::vec,
    prelude::*,
    sample::{Index, select},
    strategy::ValueTree as _,
    test_runner::TestRunner,
};
use prost::Message as _;
use serde_json::json;
use windlass_kubelet_api::dra::v1::{
    Claim, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest,
    dra_plugin_client::DraPluginClient,
};
use windlass_testkit::within_timeout;

use crate::dra::world::{FIRST_GPU, World, claim, gpus, records, result};

/// Invalid namespaces, names and UIDs.
const HOSTILE: [&str; 9] =
    ["", "..", "../../x", "a/../../../nodes/n1", "a?watch=true", "a#b", "a%2Fb", "a\0b", "A\nb"];

/// Number of random requests.
const ROUNDS: usize = 150;

/// Content of the folders that the agent writes.
fn documents(world: &World) -> BTreeSet<PathBuf> {
    let folders = [&world.config.places.cdi_dir, &world.config.places.state_dir];
    let parents = folders.iter().filter_map(|folder| folder.parent());
    let searched = folders.iter().map(|folder| folder.as_path()).chain(parents);
    let entries = searched.flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten());
    entries.map(|entry| entry.path()).collect()
}

#[tokio::test]
async fn invalid_names_are_refused_one_by_one_and_reach_neither_disk_nor_api_server() {
    let (world, agent, mut kubelet) = World::start().await;
    world.claim(&agent, "good", &[FIRST_GPU]);
    kubelet.prepare("good").await.expect("prepared");
    let (before, requests_before) = (documents(&world), world.api.objects().requests().len());
    let mut calls = DraPluginClient::new(kubelet.channel());
    for invalid in HOSTILE {
        for index in 0..3 {
            let [mut namespace, mut name, mut uid] = ["ns", "c", "u"].map(ToOwned::to_owned);
            *[&mut namespace, &mut name, &mut uid][index] = invalid.to_owned();
            let claims = vec![Claim { namespace, name, uid: uid.clone() }];
            let prepare = NodePrepareResourcesRequest { claims: claims.clone() };
            let answer = calls.node_prepare_resources(prepare).await.expect("one by one");
            let error = &answer.into_inner().claims[&uid].error;
            assert!(error.contains(&format!("{invalid:?} is not a valid ")), "{claims:?}: {error}");
            let release = NodeUnprepareResourcesRequest { claims: claims.clone() };
            let answer = calls.node_unprepare_resources(release).await.expect("one by one");
            let error = &answer.into_inner().claims[&uid].error;
            assert!(error.contains(&format!("{invalid:?} is not a valid ")), "{claims:?}: {error}");
        }
    }
    assert_eq!(documents(&world), before);
    let log = world.api.objects().requests();
    let claim_requests: Vec<_> =
        log[requests_before..].iter().filter(|it| it.path.contains("/resourceclaims/")).collect();
    // The status of the first claim's devices may be written at any time.
    let other_claims: Vec<_> =
        claim_requests.iter().filter(|it| !it.path.contains("good")).collect();
    assert!(other_claims.is_empty(), "{other_claims:?}");
    agent.stop().await;
}

#[tokio::test]
async fn parameters_of_a_claim_add_no_path_no_variable_and_no_node_that_its_author_chose() {
    const MARK: &str = "of-the-author";
    let (world, agent, mut kubelet) = World::start().await;
    let gpu = gpus(&agent.state.borrow())[0].clone();
    let device_config = |sharing| {
        json!({
            "apiVersion": "windlass.dev/v1alpha1", "kind": "DeviceConfig", "sharing": sharing,
        })
    };
    let path = format!("/{MARK}/../etc/shadow");
    for (index, parameters) in [
        device_config(json!({"strategy": path})),
        device_config(json!({"strategy": "MPS", "mps": {"pinnedMemoryLimit": path}})),
        device_config(json!({"strategy": "TimeSlicing", "timeSlicing": {"interval": path}})),
        json!({"apiVersion": "windlass.dev/v1alpha1", "kind": "DeviceConfig", "mounts": [{"hostPath": path}]}),
        json!({"apiVersion": "windlass.dev/v1alpha1", "kind": "DeviceConfig", "containerEdits": {"env": [MARK]}}),
        json!({"apiVersion": "windlass.dev/v1alpha1", "kind": path}),
        json!({"apiVersion": path, "kind": "DeviceConfig"}),
        json!([MARK]),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("hostile-{index}");
        let mut object = claim(&name, &[result("a", &gpu)]);
        object["status"]["allocation"]["devices"]["config"] = json!([{
            "source": "FromClaim", "requests": [],
            "opaque": {"driver": "windlass.dev", "parameters": parameters},
        }]);
        world.put(&object);
        let error = kubelet.prepare(&name).await.expect_err(&name);
        assert!(error.contains("configuration 1"), "{error}");
        assert_eq!(world.document(&name), None);
    }
    // A claim without parameters, whose author chose every name: the document has only names of the node.
    let mut object = claim("plain", &[result(MARK, &gpu)]);
    object["metadata"]["annotations"] = json!({"windlass.dev/env": MARK, "cdi.k8s.io/x": path});
    world.put(&object);
    kubelet.prepare("plain").await.expect("prepared");
    let files = fs::read_dir(&world.config.places.cdi_dir).expect("a folder").flatten();
    // The copy of the record names requests, but no runtime reads it.
    let documents = files.map(|entry| entry.path());
    for path in documents.filter(|path| !records(&world.config.places).contains(path)) {
        let text = fs::read_to_string(&path).expect("a document");
        assert!(!text.contains(MARK), "{}: {text}", path.display());
    }
    agent.stop().await;
}

/// Names of every kind, including that of the known claim.
fn names() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => select(&["ns", "good", "c"][..]).prop_map(ToOwned::to_owned),
        3 => select(&HOSTILE[..]).prop_map(ToOwned::to_owned),
        1 => any::<String>(),
        1 => "[a-z]{300}",
        1 => "[a-z0-9.-]{1,40}",
    ]
}

/// Requests with random claims, and a valid request with some of its bytes changed.
fn requests() -> impl Strategy<Value = NodePrepareResourcesRequest> {
    let [namespace, uid, name] = ["ns", "good", "good"].map(ToOwned::to_owned);
    let claims = vec![Claim { namespace, uid, name }; 2];
    let valid = NodePrepareResourcesRequest { claims }.encode_to_vec();
    let claim = (names(), names(), names());
    let claim = claim.prop_map(|(namespace, uid, name)| Claim { namespace, uid, name });
    let generated = vec(claim, 0..8).prop_map(|claims| NodePrepareResourcesRequest { claims });
    let changed = vec((any::<Index>(), any::<u8>()), 1..4).prop_map(move |changes| {
        let mut bytes = valid.clone();
        for (index, byte) in changes {
            *index.get_mut(&mut bytes) = byte;
        }
        NodePrepareResourcesRequest::decode(&*bytes).unwrap_or_default()
    });
    prop_oneof![generated, changed]
}

#[tokio::test]
async fn corrupted_requests_are_answered_claim_by_claim_and_change_no_file() {
    let (world, agent, mut kubelet) = World::start().await;
    world.claim(&agent, "good", &[FIRST_GPU]);
    let first = kubelet.prepare("good").await.expect("prepared");
    let before = documents(&world);
    let mut calls = DraPluginClient::new(kubelet.channel());
    let (mut runner, generated) = (TestRunner::deterministic(), requests());
    let calls_in_sequence = async {
        for _ in 0..ROUNDS {
            let request = generated.new_tree(&mut runner).expect("generated").current();
            let uids: BTreeSet<_> = request.claims.iter().map(|it| it.uid.clone()).collect();
            let answer = calls.node_prepare_resources(request.clone()).await.expect("one by one");
            let answer = answer.into_inner().claims;
            assert_eq!(answer.keys().cloned().collect::<BTreeSet<_>>(), uids, "{request:?}");
            for (uid, it) in &answer {
                // A call with another claim's UID and other names gets no devices.
                let is_valid = it.error.is_empty() && it.devices == first && uid == "good";
                assert!(is_valid || it.error.len() > 10, "{uid:?} of {request:?}: {it:?}");
            }
            let claims = request.claims.into_iter().filter(|it| it.uid != "good").collect();
            let release = NodeUnprepareResourcesRequest { claims };
            let answer = calls.node_unprepare_resources(release.clone()).await;
            let answer = answer.expect("one by one").into_inner().claims;
            let uids: BTreeSet<_> = release.claims.iter().map(|it| it.uid.clone()).collect();
            assert_eq!(answer.keys().cloned().collect::<BTreeSet<_>>(), uids, "{release:?}");
        }
    };
    within_timeout("every request is answered", calls_in_sequence).await;
    assert_eq!(documents(&world), before);
    assert_eq!(kubelet.prepare("good").await.expect("prepared"), first);
    agent.stop().await;
}
