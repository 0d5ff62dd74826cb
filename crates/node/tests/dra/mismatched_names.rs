//! Calls with one claim's UID and another claim's name. A kubelet takes both from one object, so such a caller is not
//! a kubelet.

use windlass_kubelet_api::dra::v1::{
    Claim, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest,
    dra_plugin_client::DraPluginClient,
};

use crate::dra::world::{FIRST_GPU, World};

#[tokio::test]
async fn a_prepared_claim_is_neither_shown_nor_released_under_another_namespace_or_name() {
    let (world, agent, mut kubelet) = World::start().await;
    world.claim(&agent, "good", &[FIRST_GPU]);
    let devices = kubelet.prepare("good").await.expect("prepared");
    let mut calls = DraPluginClient::new(kubelet.channel());
    for (namespace, name) in [("other", "good"), ("ns", "other")] {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let claims = vec![Claim { namespace, name, uid: "good".to_owned() }];
        let prepare = NodePrepareResourcesRequest { claims: claims.clone() };
        let answer = calls.node_prepare_resources(prepare).await.expect("answered").into_inner();
        let answer = &answer.claims["good"];
        assert!(answer.error.contains("another claim's"), "{answer:?}");
        assert_eq!(answer.devices, []);
        let release = NodeUnprepareResourcesRequest { claims };
        let answer = calls.node_unprepare_resources(release).await.expect("answered").into_inner();
        assert!(answer.claims["good"].error.contains("another claim's"), "{answer:?}");
    }
    assert!(world.document("good").is_some(), "it is still prepared");
    assert_eq!(kubelet.prepare("good").await.expect("prepared"), devices);
    agent.stop().await;
}
