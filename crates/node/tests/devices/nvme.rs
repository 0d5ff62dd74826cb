//! NVMe drives: listed for their place in the topology, and never allocated.

use windlass_machine::MachineProfile;

use crate::devices::{golden, world::node_of};

#[tokio::test]
async fn drives_are_listed_and_not_offered() {
    let profile = MachineProfile::named("dgx-h100").expect("a shipped profile");
    let state = node_of(&profile, "").scan_host().await;
    let text = golden::devices(&state, "nvme");
    let first = text.split_inclusive('\n').take(7).collect::<String>();
    insta::assert_snapshot!("nvme_first", first);
    let drives = state.inventory.devices.iter().filter(|it| it.source.as_str() == "nvme");
    assert!(drives.into_iter().all(|drive| drive.place.path.is_some() && drive.nodes.is_empty()));
}
