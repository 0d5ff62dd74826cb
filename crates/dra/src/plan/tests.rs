//! Plans of claims, and refusals.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use windlass_allocations::ledger::Ledger;
use windlass_config::{HostPaths, MpsSettings, Sharing};
use windlass_core::{
    device::{DeviceKind, SourceName},
    health::{Health, HealthState},
    inventory::Inventory,
};

use super::*;
use crate::record::{PreparedClaim, Stage};

fn board(id: &str) -> Device {
    let source: SourceName = "boards".parse().expect("a name");
    let id = id.parse().expect("an id");
    let mut board = Device::new(id, DeviceKind::Other, source, Timestamp::UNIX_EPOCH);
    board.health = Health { state: HealthState::Healthy, ..board.health };
    board.extras.env.insert("BOARDS".to_owned(), board.id.to_string());
    board.extras.env.insert("BOARD_{position}".to_owned(), board.id.to_string());
    board
}

fn reference(name: &str) -> ClaimRef {
    let [namespace, name, uid] = ["ns", name, name].map(ToOwned::to_owned);
    ClaimRef { namespace, name, uid }
}

fn claim(results: &[(&str, &str)]) -> Claim {
    let result = |(request, device): &(&str, &str)| AllocatedDevice {
        request: (*request).to_owned(),
        pool: "n1/boards".to_owned(),
        device: (*device).to_owned(),
        access: Access::Regular,
        share: None,
        consumed: BTreeMap::new(),
    };
    let results = results.iter().map(result).collect();
    let (reference, pod_claim_name) = (reference("c"), "links".to_owned());
    Claim { reference, pod_claim_name, results, configs: Vec::new() }
}

/// Plan of a claim on a node with these boards, all with one sharing, beside recorded claims.
fn planned(
    claim: &Claim,
    (boards, sharing): (Vec<Device>, Sharing),
    records: &Records,
) -> Result<Vec<PreparedDevice>, String> {
    let claimable = boards.iter().map(|board| (board.id.clone(), sharing)).collect();
    let inventory = Inventory { devices: boards, ..Inventory::default() };
    let state = NodeState { inventory, claimable, policy: Arc::default(), ..NodeState::default() };
    planned_on(claim, &state, records)
}

fn planned_on(
    claim: &Claim,
    state: &NodeState,
    records: &Records,
) -> Result<Vec<PreparedDevice>, String> {
    let driver = DriverName::default();
    let catalog = Catalog::of(state, "n1", &driver, &Ledger::default());
    let mps = &MpsFolders::new(&HostPaths::default(), &MpsSettings::default());
    let cleanup_states = &CleanupStates::new();
    let (driver, catalog) = (&driver, &catalog);
    let documents = &ClaimDocuments::new(&HostPaths::default());
    let inputs = PlanInputs { driver, state, catalog, cleanup_states, records, mps, documents };
    plan(claim, &inputs).map(|plan| plan.devices).map_err(|refusal| refusal.to_string())
}

fn exclusive(boards: Vec<Device>) -> (Vec<Device>, Sharing) {
    (boards, Sharing::Exclusive)
}

#[test]
fn variables_are_joined_for_the_devices_of_one_request() {
    let boards = exclusive(["b0", "b1", "b2"].map(board).into());
    let claim = claim(&[("pair", "b0"), ("one", "b1"), ("pair", "b2")]);
    let devices = planned(&claim, boards, &Records::new()).expect("planned");
    let is_own = |variable: &&String| variable.starts_with("WINDLASS_CLAIM_");
    let env = |device: &PreparedDevice| {
        let joined = device.edits.env.iter().filter(|variable| !is_own(variable));
        joined.cloned().collect::<Vec<_>>().join(" ")
    };
    let expected = [
        "",
        "BOARDS=b1 BOARD_0=b1 WINDLASS_WINDLASS_DEV_ONE=b1",
        "BOARDS=b0,b2 BOARD_0=b0 BOARD_1=b2 WINDLASS_WINDLASS_DEV_PAIR=b0,b2",
    ];
    assert_eq!(devices.iter().map(env).collect::<Vec<_>>(), expected);
    let names: Vec<_> = devices.iter().flat_map(|device| &device.cdi).collect();
    assert_eq!(names, ["windlass.dev/claim=c-1", "windlass.dev/claim=c-2"]);
}

#[test]
fn every_request_of_every_claim_has_variables_of_its_own() {
    let boards = || exclusive(["b0", "b1", "b2", "b3"].map(board).into());
    let mut claim_of_three = claim(&[("pair", "b0"), ("my-one", "b1"), ("pair", "b2")]);
    let devices = planned(&claim_of_three, boards(), &Records::new()).expect("planned");
    claim_of_three.pod_claim_name = "other.links".to_owned();
    claim_of_three.results = claim(&[("pair", "b3")]).results;
    let other_devices = planned(&claim_of_three, boards(), &Records::new()).expect("planned");
    // A container runtime keeps the last value of each name.
    let variables = devices.iter().chain(&other_devices).flat_map(|device| &device.edits.env);
    let env: BTreeMap<_, _> = variables.filter_map(|variable| variable.split_once('=')).collect();
    let claim_variables = env.iter().filter(|(name, _)| name.starts_with("WINDLASS_CLAIM_"));
    let claim_variables: Vec<_> =
        claim_variables.map(|(name, value)| format!("{name}={value}")).collect();
    let expected = [
        "WINDLASS_CLAIM_LINKS__MY_ONE=b1",
        "WINDLASS_CLAIM_LINKS__MY_ONE__BOARDS=b1",
        "WINDLASS_CLAIM_LINKS__MY_ONE__BOARD_0=b1",
        "WINDLASS_CLAIM_LINKS__PAIR=b0,b2",
        "WINDLASS_CLAIM_LINKS__PAIR__BOARDS=b0,b2",
        "WINDLASS_CLAIM_LINKS__PAIR__BOARD_0=b0",
        "WINDLASS_CLAIM_LINKS__PAIR__BOARD_1=b2",
        "WINDLASS_CLAIM_OTHER_LINKS__PAIR=b3",
        "WINDLASS_CLAIM_OTHER_LINKS__PAIR__BOARDS=b3",
        "WINDLASS_CLAIM_OTHER_LINKS__PAIR__BOARD_0=b3",
    ];
    assert_eq!(claim_variables, expected);
}

#[test]
fn requests_that_share_a_variable_are_reported() {
    let boards = || exclusive(["b0", "b1"].map(board).into());
    let warning = |results: &[(&str, &str)]| {
        let devices = planned(&claim(results), boards(), &Records::new()).expect("planned");
        variables::conflict_warning(&devices)
    };
    assert_eq!(warning(&[("a", "b0"), ("a", "b1")]), None, "joined");
    let expected = "several requests have BOARDS, BOARD_0: a container that gets them all has the \
                    last, and each as WINDLASS_CLAIM_<claim>__<request>__<variable>";
    assert_eq!(warning(&[("a", "b0"), ("b", "b1")]).as_deref(), Some(expected));
}

#[test]
fn a_claim_gets_all_devices_or_none_with_the_first_reason() {
    let mut unprobed = board("sick");
    unprobed.health = Health::unknown(Timestamp::UNIX_EPOCH);
    let boards = || exclusive(vec![board("b0"), unprobed.clone()]);
    for (results, expected) in [
        (&[("a", "b0"), ("a", "b9")][..], "request a: pool n1/boards has no device b9 (yet)"),
        (&[("a", "b0"), ("b/x", "sick")], "request b/x: sick cannot be used: not probed yet"),
    ] {
        let error = planned(&claim(results), boards(), &Records::new()).expect_err(expected);
        assert_eq!(error, expected);
    }
    let mut with_admin_access = claim(&[("a", "sick")]);
    with_admin_access.results[0].access = Access::Admin;
    let devices = planned(&with_admin_access, boards(), &Records::new()).expect("to monitor it");
    assert_eq!(devices[0].usage, ClaimUse::Admin);
}

#[test]
fn a_name_that_another_claim_holds_is_taken_even_if_its_device_is_unknown() {
    let boards = || exclusive(vec![board("b0")]);
    let mut devices = planned(&claim(&[("a", "b0")]), boards(), &Records::new()).expect("planned");
    devices[0].device = None;
    let (claim_ref, state) = (reference("other"), Stage::PrepareStarted);
    let record = PreparedClaim { claim: claim_ref, state, devices, limits: None };
    let records = Records::from([("other".to_owned(), record)]);
    let error = planned(&claim(&[("a", "b0")]), boards(), &records).expect_err("taken");
    assert_eq!(error, "request a: b0 is held by another claim");
}

#[test]
fn a_device_that_is_no_longer_offered_to_claims_is_refused_with_the_reason() {
    let boards = vec![board("b0")];
    let unclaimable = [("b0".parse().expect("an id"), "it is shared by MPS")].into();
    let inventory = Inventory { devices: boards, ..Inventory::default() };
    let state = NodeState { inventory, unclaimable, ..NodeState::default() };
    let error = planned_on(&claim(&[("a", "b0")]), &state, &Records::new()).expect_err("mps");
    assert_eq!(error, "request a: b0 is not offered to claims: it is shared by MPS");
}

#[test]
fn a_device_that_a_claim_has_twice_is_taken_with_the_stronger_use() {
    let boards = exclusive(vec![board("b0")]);
    let mut claim = claim(&[("a", "b0"), ("b", "b0")]);
    claim.results[1].access = Access::Admin;
    let devices = planned(&claim, boards, &Records::new()).expect("planned");
    let uses = ledger_uses(&devices, &NodeState::default());
    assert_eq!(uses.iter().map(|(_, usage)| *usage).collect::<Vec<_>>(), [ClaimUse::Exclusive]);
}
