//! A host that changes during a scan.

use std::{
    sync::mpsc::{self, TryRecvError},
    thread,
    time::{Duration, Instant},
};

use windlass_core::device::Device;
use windlass_testkit::Node;

use super::{BY_IDS, two_sticks};
use crate::devices::world::{device, node};

/// Duration of the scans.
const SCAN_TIME: Duration = Duration::from_secs(2);

/// Edits of a container for a stick.
fn nodes(stick: &Device) -> Vec<String> {
    stick.nodes.iter().map(|node| node.path.display().to_string()).collect()
}

#[test]
fn a_device_that_is_replugged_during_scans_affects_no_other_and_has_only_its_own_nodes() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let (runtime, world) = (runtime.expect("a runtime"), node(&two_sticks("FT4X8"), BY_IDS));
    let scan = || runtime.block_on(world.scan_host()).inventory;
    let complete = scan();
    let [steady, replugged] = ["stick-FT4X9", "stick-FT4X8"].map(|id| nodes(device(&complete, id)));
    let (mut present, mut absent, start) = (0, 0, Instant::now());
    thread::scope(|scope| {
        let ((stop, stopped), world) = (mpsc::channel::<()>(), &world);
        scope.spawn(move || replug(world, &stopped));
        while start.elapsed() < SCAN_TIME {
            let inventory = scan();
            assert_eq!(nodes(device(&inventory, "stick-FT4X9")), steady);
            // A scan may see a part of it, without its name. The agent ignores a single scan with such a result.
            let is_other = |it: &&Device| it.id.as_str() != "stick-FT4X9";
            let others: Vec<_> = inventory.devices.iter().filter(is_other).collect();
            match &*others {
                [] => absent += 1,
                [other] => {
                    assert!(nodes(other).iter().all(|node| replugged.contains(node)), "{other:#?}");
                    present += 1;
                }
                several => panic!("one stick is found as several: {several:#?}"),
            }
        }
        drop(stop);
    });
    assert!(present > 0 && absent > 0, "present {present} times and absent {absent} times");
}

/// Adds and removes a stick, until the other side of the channel is dropped.
fn replug(world: &Node, stopped: &mpsc::Receiver<()>) {
    while stopped.try_recv() == Err(TryRecvError::Empty) {
        world.inject("unplug:other");
        world.inject("plug:other");
    }
}
