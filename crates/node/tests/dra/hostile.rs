//! What the kubelet or a claim's author could say to lead the driver elsewhere: no name becomes a path, and no
//! parameter an edit of a container.

use std::{collections::BTreeSet, fs, path::PathBuf};

use serde_json::json;
use windlass_kubelet_api::dra::v1::{
    Claim, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest,
    dra_plugin_client::DraPluginClient,
};

use crate::world::{Gets, World, claim, gpus, result};

/// What no namespace, name or UID is.
const HOSTILE: [&str; 9] =
    ["", "..", "../../x", "a/../../../nodes/n1", "a?watch=true", "a#b", "a%2Fb", "a\0b", "A\nb"];

/// What is in the folders that the agent writes.
fn documents(world: &World) -> BTreeSet<PathBuf> {
    let folders = [&world.config.cdi_dir, &world.config.state_dir];
    let parents = folders.iter().filter_map(|folder| folder.parent());
    let all = folders.iter().map(|folder| folder.as_path()).chain(parents);
    let entries = all.flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten());
    entries.map(|entry| entry.path()).collect()
}

#[tokio::test]
async fn names_that_are_none_are_refused_one_by_one_and_reach_neither_disk_nor_api_server() {
    let world = World::new();
    let (agent, mut kubelet) = world.serving().await;
    world.claim(&agent, "good", &[Gets { request: "a", gpu: 0 }]);
    kubelet.prepare("good").await.expect("prepared");
    let (before, asked) = (documents(&world), world.api.objects().log().len());
    let mut calls = DraPluginClient::new(kubelet.channel());
    for bad in HOSTILE {
        for at in 0..3 {
            let [mut namespace, mut name, mut uid] = ["ns", "c", "u"].map(ToOwned::to_owned);
            *[&mut namespace, &mut name, &mut uid][at] = bad.to_owned();
            let claims = vec![Claim { namespace, name, uid: uid.clone() }];
            let prepare = NodePrepareResourcesRequest { claims: claims.clone() };
            let answer = calls.node_prepare_resources(prepare).await.expect("one by one");
            let why = &answer.into_inner().claims[&uid].error;
            assert!(why.contains(&format!("{bad:?} is no ")), "{claims:?}: {why}");
            let release = NodeUnprepareResourcesRequest { claims: claims.clone() };
            let answer = calls.node_unprepare_resources(release).await.expect("one by one");
            let why = &answer.into_inner().claims[&uid].error;
            assert!(why.contains(&format!("{bad:?} is no ")), "{claims:?}: {why}");
        }
    }
    assert_eq!(documents(&world), before);
    let log = world.api.objects().log();
    let about_claims: Vec<_> =
        log[asked..].iter().filter(|it| it.path.contains("/resourceclaims/")).collect();
    // How the first claim's devices fare is told whenever it is ready.
    let of_others: Vec<_> = about_claims.iter().filter(|it| !it.path.contains("good")).collect();
    assert!(of_others.is_empty(), "{of_others:?}");
    agent.stop().await;
}

#[tokio::test]
async fn parameters_of_a_claim_add_no_path_no_variable_and_no_node_of_its_authors_choice() {
    const MARK: &str = "of-the-author";
    let world = World::new();
    let (agent, mut kubelet) = world.serving().await;
    let gpu = gpus(&agent.state.borrow())[0].clone();
    let ours = |sharing| json!({"apiVersion": "windlass.dev/v1alpha1", "kind": "DeviceConfig", "sharing": sharing});
    let path = format!("/{MARK}/../etc/shadow");
    for (at, parameters) in [
        ours(json!({"strategy": path})),
        ours(json!({"strategy": "MPS", "mps": {"pinnedMemoryLimit": path}})),
        ours(json!({"strategy": "TimeSlicing", "timeSlicing": {"interval": path}})),
        json!({"apiVersion": "windlass.dev/v1alpha1", "kind": "DeviceConfig", "mounts": [{"hostPath": path}]}),
        json!({"apiVersion": "windlass.dev/v1alpha1", "kind": "DeviceConfig", "containerEdits": {"env": [MARK]}}),
        json!({"apiVersion": "windlass.dev/v1alpha1", "kind": path}),
        json!({"apiVersion": path, "kind": "DeviceConfig"}),
        json!([MARK]),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("hostile-{at}");
        let mut object = claim(&name, &[result("a", &gpu)]);
        object["status"]["allocation"]["devices"]["config"] = json!([{
            "source": "FromClaim", "requests": [],
            "opaque": {"driver": "windlass.dev", "parameters": parameters},
        }]);
        world.put(&object);
        let why = kubelet.prepare(&name).await.expect_err(&name);
        assert!(why.contains("configuration 1"), "{why}");
        assert_eq!(world.document(&name), None);
    }
    // A claim that says nothing, by an author who chose every name: the document has the node's own alone.
    let mut object = claim("plain", &[result(MARK, &gpu)]);
    object["metadata"]["annotations"] = json!({"windlass.dev/env": MARK, "cdi.k8s.io/x": path});
    world.put(&object);
    kubelet.prepare("plain").await.expect("prepared");
    let standing = fs::read_dir(&world.config.cdi_dir).expect("a folder").flatten();
    for path in standing.map(|entry| entry.path()) {
        let text = fs::read_to_string(&path).expect("a document");
        assert!(!text.contains(MARK), "{}: {text}", path.display());
    }
    agent.stop().await;
}
