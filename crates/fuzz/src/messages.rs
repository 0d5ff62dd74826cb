//! Decoders of the kubelet's protobuf messages.
//!
//! The inputs reach only the decoders. `crates/node/tests/agent/hostile.rs` and `crates/node/tests/dra/hostile.rs` send
//! valid messages with hostile content to the services of a running agent.

use prost::Message;
use windlass_kubelet_api::{deviceplugin, dra, pluginregistration, podresources};

use crate::{Verdict, refused};

/// Decodes the input as each message type that the agent receives. Accepts it if any decoder accepts it.
pub(crate) fn kubelet_messages(bytes: &[u8]) -> Verdict {
    let verdicts = [
        message::<deviceplugin::AllocateRequest>(bytes),
        message::<deviceplugin::PreferredAllocationRequest>(bytes),
        message::<deviceplugin::PreStartContainerRequest>(bytes),
        message::<dra::v1::NodePrepareResourcesRequest>(bytes),
        message::<dra::v1beta1::NodeUnprepareResourcesRequest>(bytes),
        message::<pluginregistration::RegistrationStatus>(bytes),
        message::<podresources::ListPodResourcesResponse>(bytes),
        message::<podresources::AllocatableResourcesResponse>(bytes),
    ];
    if verdicts.contains(&Verdict::Accepted) { Verdict::Accepted } else { Verdict::Refused }
}

/// Decodes a message. An accepted message must survive a round trip.
fn message<M: Message + Default + PartialEq + std::fmt::Debug>(bytes: &[u8]) -> Verdict {
    match M::decode(bytes) {
        Ok(message) => {
            let again = M::decode(&*message.encode_to_vec()).expect("an encoded message");
            assert_eq!(again, message);
            Verdict::Accepted
        }
        Err(error) => refused(&error.to_string()),
    }
}

/// Encoded messages as a kubelet sends them.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let ids = || ["GPU-0", "GPU-1::3"].map(ToOwned::to_owned).to_vec();
    let allocate = deviceplugin::AllocateRequest {
        container_requests: vec![deviceplugin::ContainerAllocateRequest { devices_ids: ids() }],
    };
    let prefer = deviceplugin::PreferredAllocationRequest {
        container_requests: vec![deviceplugin::ContainerPreferredAllocationRequest {
            available_device_i_ds: ids(),
            must_include_device_i_ds: ids(),
            allocation_size: 2,
        }],
    };
    let [namespace, uid, name] = ["ns", "u", "c"].map(ToOwned::to_owned);
    let claims = vec![dra::v1::Claim { namespace, uid, name }];
    let devices = podresources::ContainerDevices {
        resource_name: "nvidia.com/gpu".to_owned(),
        device_ids: ids(),
        ..podresources::ContainerDevices::default()
    };
    let container = podresources::ContainerResources {
        name: "main".to_owned(),
        devices: vec![devices],
        ..podresources::ContainerResources::default()
    };
    let pod = podresources::PodResources {
        name: "p".to_owned(),
        namespace: "ns".to_owned(),
        containers: vec![container],
    };
    vec![
        allocate.encode_to_vec(),
        prefer.encode_to_vec(),
        dra::v1::NodePrepareResourcesRequest { claims }.encode_to_vec(),
        podresources::ListPodResourcesResponse { pod_resources: vec![pod] }.encode_to_vec(),
    ]
}
