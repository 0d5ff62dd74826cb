//! Excessive calls, containers, ids and connections: the agent refuses them briefly or closes them, and still serves
//! the kubelet.

use std::{fs, path::Path, slice::from_ref, time::Duration};

use tokio::{io::AsyncReadExt as _, net::UnixStream, time::timeout};
use tonic::Code;
use tracing::Level;
use windlass_config::{PerContainer, Resources, Sharing};
use windlass_kubelet_api::{
    deviceplugin::{
        ContainerPreferredAllocationRequest, Empty, PreferredAllocationRequest,
        device_plugin_client::DevicePluginClient,
    },
    socket::SocketPath,
};
use windlass_testkit::{
    GPU, LogCapture, registrations, until, until_allocatable, until_registrations, within_timeout,
};

use crate::agent::{
    sharing::{SHARED, rule, shared},
    world::{allocation, client, gpu_id, gpu_node, with_long_quiet_period},
};

/// More ids than a message lists.
const MANY_IDS: usize = 100_000;

/// More connections than the agent keeps.
const TOO_MANY_CONNECTIONS: usize = 80;

/// Fewer connections than the agent keeps.
const ALLOWED_CONNECTIONS: usize = 20;

/// Streams of one list.
const STREAMS: usize = 50;

/// More containers than a call may have.
const CONTAINERS: usize = 65;

#[tokio::test]
async fn a_refusal_names_ten_ids_and_counts_the_rest() {
    let world = gpu_node("dgx-h100");
    let (kubelet, agent) = world.start_ready(8).await;
    let mut plugin = client(&kubelet, GPU).await;
    let ids: Vec<_> = (0..MANY_IDS).map(|number| format!("GPU-{number}")).collect();
    let status = plugin.allocate(allocation(&[&ids])).await.expect_err("no such devices");
    let expected = "nvidia.com/gpu has no device GPU-0, GPU-1, GPU-2, GPU-3, GPU-4, GPU-5, GPU-6, \
                    GPU-7, GPU-8, GPU-9 and 99990 more";
    assert_eq!((status.code(), status.message()), (Code::InvalidArgument, expected));
    let endless = ["x".repeat(MANY_IDS)];
    let status = plugin.allocate(allocation(&[&endless])).await.expect_err("no such device");
    assert!(status.message().len() < 200, "{}", status.message());
    agent.stop().await;
}

#[tokio::test]
async fn a_device_goes_to_one_container_of_a_call_and_shares_of_it_to_several() {
    let mut world = gpu_node("dgx-h100");
    let shares = rule(SHARED, &[1], shared(4, PerContainer::Any));
    let exclusive = rule(GPU, &[0], Sharing::Exclusive);
    world.config.policy.resources = Resources::Rules(vec![exclusive, shares]);
    let (kubelet, agent) = world.start_ready(1).await;
    until_allocatable(&kubelet, SHARED, 4).await;
    let mut plugin = client(&kubelet, GPU).await;
    let id = gpu_id(&agent, 0);
    let exclusive = from_ref(&id);
    let twice = allocation(&[exclusive, exclusive]);
    let status = plugin.allocate(twice).await.expect_err("it is one device");
    let expected = format!("the request names {id} of nvidia.com/gpu more than once");
    assert_eq!((status.code(), status.message()), (Code::InvalidArgument, &*expected));
    let mut plugin = client(&kubelet, SHARED).await;
    let share = |number| format!("{}::{number}", gpu_id(&agent, 1));
    let ids = [share(0), share(1)];
    let one_share_each = allocation(&[&ids[..1], &ids[1..]]);
    let granted = plugin.allocate(one_share_each).await.expect("one share each").into_inner();
    assert_eq!(granted.container_responses.len(), 2);
    let same = allocation(&[&ids[..1], &ids[..1]]);
    let status = plugin.allocate(same).await.expect_err("it is one share");
    assert!(status.message().contains("more than once"), "{}", status.message());
    agent.stop().await;
}

#[tokio::test]
async fn a_call_for_more_containers_than_a_pod_has_is_refused() {
    let world = gpu_node("dgx-h100");
    let (kubelet, agent) = world.start_ready(8).await;
    let mut plugin = client(&kubelet, GPU).await;
    let expected = "nvidia.com/gpu: the call has 65 containers; at most 64 are allowed";
    let no_ids: &[String] = &[];
    let status = plugin.allocate(allocation(&[no_ids; CONTAINERS])).await.expect_err("too many");
    assert_eq!((status.code(), status.message()), (Code::InvalidArgument, expected));
    let container = ContainerPreferredAllocationRequest::default();
    let container_requests = vec![container; CONTAINERS];
    let request = PreferredAllocationRequest { container_requests };
    let status = plugin.get_preferred_allocation(request).await.expect_err("too many");
    assert_eq!((status.code(), status.message()), (Code::InvalidArgument, expected));
    agent.stop().await;
}

#[tokio::test]
async fn the_oldest_connection_beyond_the_limit_ends_and_its_kubelet_is_served_again() {
    let world = gpu_node("dgx-h100");
    let (kubelet, agent) = world.start_ready(8).await;
    let before = registrations(&kubelet);
    let mut silent = Vec::new();
    for _ in 0..TOO_MANY_CONNECTIONS {
        silent.push(UnixStream::connect(world.socket()).await.expect("the agent listens"));
    }
    let closed = async {
        let mut bytes = Vec::new();
        // The server's first frame, perhaps in part.
        _ = silent[0].read_to_end(&mut bytes).await;
    };
    within_timeout("the oldest connection ends", closed).await;
    // The kubelet's connection was the oldest.
    until_registrations(&kubelet, before + 1).await;
    until_allocatable(&kubelet, GPU, 8).await;
    let newest = silent.last_mut().expect("many");
    let mut bytes = vec![0; 4096];
    // The newest connections stay open: they have the server's first frame and nothing else.
    let count = newest.read(&mut bytes).await.expect("open");
    assert!(count > 0, "it is open");
    let ended = timeout(Duration::from_millis(50), newest.read(&mut bytes)).await;
    assert!(ended.is_err(), "{ended:?}");
    agent.stop().await;
}

#[tokio::test]
async fn a_list_is_logged_once_for_any_number_of_streams() {
    let world = with_long_quiet_period("dgx-h100");
    let (kubelet, agent) = world.start_ready(8).await;
    let mut plugin = client(&kubelet, GPU).await;
    let log = LogCapture::start(Level::INFO);
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        let mut lists = plugin.list_and_watch(Empty {}).await.expect("open").into_inner();
        assert_eq!(lists.message().await.expect("open").expect("a list").devices.len(), 8);
        streams.push(lists);
    }
    world.inject("xid:79@2");
    for lists in &mut streams {
        lists.message().await.expect("open").expect("the next list");
    }
    let lists: Vec<_> = log.lines().into_iter().filter(|it| it.contains("list sent")).collect();
    assert_eq!(lists.len(), 1, "the list has changed once: {lists:#?}");
    agent.stop().await;
}

/// Number of the agent's connections on a socket: the kernel lists each with the bound path.
fn connections(socket: &Path) -> usize {
    let table = fs::read_to_string("/proc/net/unix").expect("listed");
    let socket = socket.to_str().expect("a text");
    table.lines().filter(|line| line.ends_with(socket)).count()
}

#[tokio::test]
async fn ended_streams_leave_no_connection() {
    let world = with_long_quiet_period("dgx-h100");
    let (_kubelet, agent) = world.start_ready(8).await;
    let socket = SocketPath::new(world.socket()).expect("short");
    let before = connections(&world.socket());
    for _ in 0..2 {
        let mut streams = Vec::new();
        for _ in 0..ALLOWED_CONNECTIONS {
            let channel = socket.dial().await.expect("the agent listens");
            let mut plugin = DevicePluginClient::new(channel);
            let mut lists = plugin.list_and_watch(Empty {}).await.expect("open").into_inner();
            lists.message().await.expect("open").expect("a list");
            streams.push(lists);
        }
        assert_eq!(connections(&world.socket()), before + ALLOWED_CONNECTIONS);
        drop(streams);
        until("the agent has closed the connections", async || {
            let remaining = connections(&world.socket());
            if remaining == before { Ok(()) } else { Err(remaining) }
        })
        .await;
    }
    agent.stop().await;
}
