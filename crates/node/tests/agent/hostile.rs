//! Requests that no kubelet sends: the agent refuses them in time with a reason, and changes no file.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use proptest::{
    collection::vec, prelude::*, sample::select, strategy::ValueTree as _, test_runner::TestRunner,
};
use prost::Message as _;
use tonic::{Code, Status};
use windlass_kubelet_api::deviceplugin::{
    ContainerPreferredAllocationRequest, PreStartContainerRequest, PreferredAllocationRequest,
};
use windlass_testkit::{GPU, within_timeout};

use crate::agent::world::{allocation, client, gpu_id, gpu_node};

/// Invalid names, some of which are paths to other folders.
const HOSTILE: [&str; 14] = [
    "",
    ".",
    "..",
    "../..",
    "../../etc/shadow",
    "/dev/mem",
    "GPU-0/../../x",
    "GPU-0\0",
    "GPU-0\nNAME=x",
    "void,all",
    "all",
    "*",
    "GPU-0::18446744073709551616",
    "\u{202e}\u{0}é",
];

/// Number of requests of each kind.
const ROUNDS: usize = 60;

/// Hostile ids, and sometimes a valid one.
fn ids(valid: &str) -> impl Strategy<Value = Vec<String>> + use<> {
    let valid = valid.to_owned();
    let id = prop_oneof![
        4 => select(&HOSTILE[..]).prop_map(ToOwned::to_owned),
        1 => Just(valid),
        1 => any::<String>(),
        1 => "[a-z]{4000}",
    ];
    vec(id, 0..6)
}

/// All paths below a folder, except sockets and the simulated machine.
fn tree(folder: &Path) -> BTreeSet<PathBuf> {
    let (mut pending, mut found) = (vec![folder.to_owned()], BTreeSet::new());
    while let Some(path) = pending.pop() {
        let entries = fs::read_dir(&path).into_iter().flatten().flatten().map(|it| it.path());
        for path in entries.filter(|path| !path.ends_with("machine")) {
            found.insert(path.clone());
            pending.push(path);
        }
    }
    found
}

/// Checks that the answer is a refusal with a reason.
fn check_refusal<T>(answer: Result<T, Status>, request: &dyn std::fmt::Debug) {
    let Err(status) = answer else { return };
    let expected = [Code::InvalidArgument, Code::FailedPrecondition];
    assert!(expected.contains(&status.code()), "{request:?}: {status:?}");
    assert!(status.message().len() > 10, "{request:?}: {status:?}");
}

#[tokio::test]
async fn requests_with_hostile_ids_are_refused_with_a_reason_and_change_no_file() {
    let world = gpu_node("dgx-h100");
    let (kubelet, agent) = world.start_ready(8).await;
    let mut plugin = client(&kubelet, GPU).await;
    let valid = gpu_id(&agent, 0);
    let valid_request = allocation(&[std::slice::from_ref(&valid)]);
    let first = plugin.allocate(valid_request.clone()).await.expect("allocated").into_inner();
    let before = tree(&world.folder);
    let mut runner = TestRunner::deterministic();
    let strategy = (ids(&valid), ids(&valid), any::<i32>());
    let attack = async {
        for _ in 0..ROUNDS {
            let (ids, others, size) = strategy.new_tree(&mut runner).expect("generated").current();
            let request = allocation(&[&ids]);
            match plugin.allocate(request.clone()).await {
                Ok(_) => {
                    assert_eq!(
                        ids,
                        std::slice::from_ref(&valid),
                        "only an existing device is allocated"
                    );
                }
                answer => check_refusal(answer, &request),
            }
            let request = PreStartContainerRequest { devices_ids: ids.clone() };
            check_refusal(plugin.pre_start_container(request.clone()).await, &request);
            let container = ContainerPreferredAllocationRequest {
                available_device_i_ds: ids,
                must_include_device_i_ds: others,
                allocation_size: size,
            };
            let request = PreferredAllocationRequest { container_requests: vec![container] };
            check_refusal(plugin.get_preferred_allocation(request.clone()).await, &request);
        }
    };
    within_timeout("every request is answered", attack).await;
    let last = plugin.allocate(valid_request).await.expect("allocated").into_inner();
    assert_eq!(last.encode_to_vec(), first.encode_to_vec());
    let after = tree(&world.folder);
    let new: Vec<_> = after.difference(&before).filter(|path| !is_history(path)).collect();
    assert!(new.is_empty(), "{new:?}");
    agent.stop().await;
}

/// True for files of the allocation history, which records preferred allocations.
fn is_history(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == "choices.json" || name == ".choices.json.draft")
}
