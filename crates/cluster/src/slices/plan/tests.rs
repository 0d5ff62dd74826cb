//! Requests of plans, and the generation of pools.

use k8s_openapi::api::resource::v1::Device;

use super::*;

const POOL: &str = "n1/nvidia";

fn content(device: &str) -> SliceContent {
    let device = Device { name: device.to_owned(), ..Device::default() };
    SliceContent { devices: vec![device], ..SliceContent::default() }
}

/// A published slice: its name `index-suffix`, its device, generation and count.
fn published(name: &str, device: &str, (generation, count): (i64, i64)) -> ResourceSlice {
    let owner = Owner { driver: "d".to_owned(), node: "n1".to_owned() };
    let pool = ResourcePool { name: POOL.to_owned(), generation, resource_slice_count: count };
    let mut slice = created(&owner, &pool, 0, &content(device));
    slice.metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    slice
}

/// The plan, a line each: action, name or index, generation/count.
fn plan(existing: &[ResourceSlice], devices: &[&str]) -> Vec<String> {
    let owner = Owner { driver: "d".to_owned(), node: "n1".to_owned() };
    let slices: Vec<_> = devices.iter().map(|device| content(device)).collect();
    let existing: Vec<_> = existing.iter().collect();
    let is_up_to_date =
        |index: usize, slice: &ResourceSlice| SliceContent::of(slice).is_same_as(&slices[index]);
    let desired = DesiredPool { name: POOL, slices: &slices };
    let plan = PoolPlan::new(&owner, desired, &existing, is_up_to_date);
    let name = |slice: &ResourceSlice| {
        let ObjectMeta { name, generate_name, .. } = slice.metadata.clone();
        name.or(generate_name).expect("a name")
    };
    let deletes = plan.delete.iter().map(|slice| format!("- {}", name(slice)));
    let version = |slice: &ResourceSlice| {
        format!("{}/{}", slice.spec.pool.generation, slice.spec.pool.resource_slice_count)
    };
    let updates =
        plan.update.iter().map(|(_, slice)| format!("~ {} {}", name(slice), version(slice)));
    let creates =
        plan.create.iter().map(|(_, slice)| format!("+ {} {}", name(slice), version(slice)));
    deletes.chain(updates).chain(creates).collect()
}

#[test]
fn only_a_single_change_in_place_keeps_the_generation() {
    let single = published("00000-a", "a", (3, 1));
    let pair = [published("00000-a", "a", (3, 2)), published("00001-b", "b", (3, 2))];
    for (case, existing, devices, expected) in [
        ("no slice exists", &[][..], &["a"][..], &["+ 00000-d-n1- 1/1"][..]),
        ("all slices are up to date", &pair, &["a", "b"], &[]),
        ("one differs", &pair, &["a", "x"], &["~ 00001-b 3/2"]),
        ("two differ", &pair, &["b", "a"], &["~ 00000-a 4/2", "~ 00001-b 4/2"]),
        ("one more", &[single], &["a", "b"], &["~ 00000-a 4/2", "+ 00001-d-n1- 4/2"]),
        ("one less", &pair, &["a"], &["- 00001-b", "~ 00000-a 3/1"]),
        ("no slice is desired", &pair, &[], &["- 00000-a", "- 00001-b"]),
    ] {
        assert_eq!(plan(existing, devices), expected, "{case}");
    }
}

#[test]
fn a_slice_without_a_desired_index_is_deleted() {
    for (case, stray) in [
        ("an older generation", published("00000-old", "a", (2, 1))),
        ("too few digits", published("0-a", "a", (3, 1))),
        ("no digits", published("windlass-a", "a", (3, 1))),
        ("a sign is not a digit", published("+0000-a", "a", (3, 1))),
        ("an index beyond the last", published("00007-a", "a", (3, 1))),
        ("an index that another slice has", published("00000-b", "a", (3, 1))),
    ] {
        let name = stray.metadata.name.clone().expect("a name");
        let existing = [published("00000-a", "a", (3, 1)), stray];
        assert_eq!(plan(&existing, &["a"]), [format!("- {name}")], "{case}");
    }
}

#[test]
fn an_incomplete_pool_is_completed_in_a_new_generation() {
    let existing = [published("00000-a", "a", (1, 3)), published("00002-c", "c", (1, 3))];
    assert_eq!(
        plan(&existing, &["a", "b", "c"]),
        ["~ 00000-a 2/3", "~ 00002-c 2/3", "+ 00001-d-n1- 2/3"]
    );
}
