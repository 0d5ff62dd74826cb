//! Replica placement on small machines with known answers, and the policies' guarantees on random ones.

use proptest::prelude::*;

use super::*;
use crate::device::Device;
use crate::placement::tests::{gpu, linked, switched};

/// Devices with their free replicas and those in use.
struct TestMachine {
    devices: Vec<Device>,
    free: Vec<Vec<u32>>,
    in_use: Vec<usize>,
}

impl TestMachine {
    fn new(devices: Vec<Device>, replicas: u32, in_use: &[u32]) -> Self {
        let free = in_use.iter().map(|&used| (used..replicas).collect()).collect();
        Self { devices, free, in_use: in_use.iter().map(|&used| used as usize).collect() }
    }

    fn topology(&self) -> Topology {
        Topology::from_devices(&self.devices)
    }

    fn shared(&self) -> Vec<SharedDevice<'_>> {
        let free = self.free.iter().zip(&self.in_use);
        let shared = self.devices.iter().zip(free);
        let shared = shared.map(|(device, (free, &in_use))| SharedDevice {
            id: device.id.as_str(),
            free,
            in_use,
        });
        shared.collect()
    }

    fn choose(&self, test: &TestRequest) -> Result<ShareChoice, ShareError> {
        let required: Vec<_> = test.required.iter().map(|id| id.parse().expect("valid")).collect();
        let TestRequest { size, policy, span, .. } = *test;
        let request = ShareRequest {
            devices: &self.shared(),
            required: &required,
            near: &[],
            size,
            policy,
            span,
        };
        choose(&self.topology(), request)
    }

    fn explain(&self, test: &TestRequest) -> ShareExplanation {
        let TestRequest { size, policy, span, .. } = *test;
        let request =
            ShareRequest { devices: &self.shared(), required: &[], near: &[], size, policy, span };
        explain(&self.topology(), request).expect("an answer")
    }

    /// `0x2 3x1`: two replicas of GPU 0 and one of GPU 3.
    fn chosen(&self, test: &TestRequest) -> String {
        let choice = self.choose(test).expect("an answer");
        let share = |share: &Share| {
            format!("{}x{}", share.device.as_str().trim_start_matches("GPU-"), share.chosen)
        };
        choice.shares.iter().map(share).collect::<Vec<_>>().join(" ")
    }
}

#[derive(Clone, Copy)]
struct TestRequest {
    size: usize,
    required: &'static [&'static str],
    policy: Policy,
    span: Span,
}

fn distributed(size: usize) -> TestRequest {
    TestRequest { size, required: &[], policy: Policy::Distributed, span: Span::AnyDevices }
}

fn packed(size: usize) -> TestRequest {
    TestRequest { policy: Policy::Packed, ..distributed(size) }
}

fn of_one_device(request: TestRequest) -> TestRequest {
    TestRequest { span: Span::OneDevice, ..request }
}

#[test]
fn distributed_takes_from_the_devices_with_the_fewest_in_use() {
    let machine = TestMachine::new(switched(), 4, &[2, 0, 1, 0]);
    for (size, expected) in
        [(1, "1x1"), (2, "1x1 3x1"), (4, "1x2 2x1 3x1"), (16 - 3, "0x2 1x4 2x3 3x4")]
    {
        assert_eq!(machine.chosen(&distributed(size)), expected);
    }
}

#[test]
fn two_replicas_come_from_two_devices_of_equal_load() {
    // One replica of GPU 0 is required: the other comes from a new GPU.
    let machine = TestMachine::new(switched(), 4, &[0, 1]);
    let request = TestRequest { required: &["GPU-0::3"], ..distributed(2) };
    assert_eq!(machine.chosen(&request), "0x1 1x1");
}

#[test]
fn packed_fills_the_device_with_the_most_in_use_before_the_next() {
    let machine = TestMachine::new(switched(), 4, &[0, 1, 3, 0]);
    for (size, expected) in [(1, "2x1"), (3, "1x2 2x1"), (4, "1x3 2x1"), (5, "0x1 1x3 2x1")] {
        assert_eq!(machine.chosen(&packed(size)), expected);
    }
}

#[test]
fn connections_break_ties_of_equal_devices() {
    let bridged = || linked(&[(2, 6, 4), (1, 3, 2)]);
    let machine = TestMachine::new(bridged(), 4, &[0; 8]);
    assert_eq!(machine.chosen(&distributed(2)), "2x1 6x1");
    assert_eq!(machine.chosen(&packed(5)), "2x4 6x1");
    // GPU 3 is the least used; the second one is bridged with it.
    let machine = TestMachine::new(bridged(), 4, &[1, 1, 1, 0, 1, 1, 1, 1]);
    assert_eq!(machine.chosen(&distributed(2)), "1x1 3x1");
}

#[test]
fn one_device_gives_all_replicas_if_the_span_requires_it() {
    let machine = TestMachine::new(switched(), 4, &[0, 1, 3, 2]);
    for (request, expected) in [
        (of_one_device(distributed(2)), "0x2"),
        (of_one_device(packed(2)), "3x2"),
        (of_one_device(packed(3)), "1x3"),
        (TestRequest { required: &["GPU-1::3"], ..of_one_device(distributed(2)) }, "1x2"),
    ] {
        assert_eq!(machine.chosen(&request), expected);
    }
}

#[test]
fn an_explanation_shows_every_device_and_the_next_one() {
    let machine = TestMachine::new(switched(), 4, &[2, 0, 1, 4]);
    let explanation = machine.explain(&distributed(2));
    let rows = explanation.devices.iter().map(|row| (row.in_use, row.free, row.chosen));
    assert_eq!(rows.collect::<Vec<_>>(), [(2, 2, 0), (0, 4, 1), (1, 3, 1), (4, 0, 0)]);
    let next = explanation.next.expect("free replicas remain");
    assert_eq!((next.device.as_str(), next.equals), ("GPU-1", 1));
    assert_eq!(explanation.choice, machine.choose(&distributed(2)).expect("an answer"));
}

#[test]
fn each_policy_spreads_or_packs_replicas() {
    let machine = TestMachine::new(linked(&[(0, 5, 4)]), 4, &[3, 1, 2, 0, 1, 3, 2, 2]);
    let chosen_by = |policy, size| machine.chosen(&TestRequest { policy, ..distributed(size) });
    assert_eq!(chosen_by(Policy::Aligned, 2), "0x1 5x1", "the linked pair, despite its load");
    assert_eq!(
        chosen_by(Policy::Aligned, 1),
        "3x1",
        "among equal devices, the one with the fewest in use"
    );
    assert_eq!(chosen_by(Policy::First, 3), "0x1 1x2");
    assert_eq!(chosen_by(Policy::NumaStrict, 3), "1x1 3x2", "node 0 has ten left, node 1 eight");
}

#[test]
fn the_lowest_free_numbers_are_taken_beside_the_required() {
    let machine = TestMachine::new(switched(), 5, &[1]);
    let request = TestRequest { required: &["GPU-0::3"], ..distributed(3) };
    let ids: Vec<_> = machine
        .choose(&request)
        .expect("an answer")
        .replicas
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(ids, ["GPU-0::1", "GPU-0::2", "GPU-0::3"]);
}

#[test]
fn impossible_requests_are_refused_with_the_numbers() {
    let machine = TestMachine::new(switched(), 4, &[2, 1]);
    let requiring = |required, request| TestRequest { required, ..request };
    let on_two_devices: &[&str] = &["GPU-0::3", "GPU-1::3"];
    for (request, expected) in [
        (distributed(0), "0 replicas requested"),
        (packed(6), "6 replicas requested, 5 available"),
        (requiring(on_two_devices, packed(1)), "2 replicas are required in a choice of 1"),
        (
            requiring(&["GPU-0::1"], packed(1)),
            "required replica GPU-0::1 is not among the available ones",
        ),
        (
            requiring(&["GPU-7::0"], packed(1)),
            "required replica GPU-7::0 is not among the available ones",
        ),
        (
            requiring(on_two_devices, of_one_device(packed(2))),
            "replicas of one device requested, and the required ones are of 2 devices",
        ),
        (
            of_one_device(packed(4)),
            "4 replicas of one device requested, and none has more than 3 available",
        ),
        (
            requiring(&["GPU-0::3"], of_one_device(packed(3))),
            "3 replicas of one device requested, and none has more than 2 available",
        ),
    ] {
        assert_eq!(machine.choose(&request).expect_err(expected).to_string(), expected);
    }
}

#[test]
fn the_answer_is_explained_in_a_line() {
    let machine = TestMachine::new(switched(), 4, &[1, 0, 3, 3]);
    assert_eq!(
        machine.choose(&distributed(3)).expect("an answer").to_string(),
        "1 of GPU-0 (1 in use), 2 of GPU-1 (0 in use): distributed, the pair over NV18 through NVSwitch, NUMA node 0"
    );
}

#[test]
fn two_thousand_replicas_are_chosen_from_with_one_comparison_of_sets() {
    let devices = (0..16).map(|i| gpu(i, 0x10 + u8::try_from(i).expect("small"), i / 8)).collect();
    let machine = TestMachine::new(devices, 128, &[0; 16]);
    for (request, devices) in
        [(distributed(2_048), 16), (distributed(8), 8), (packed(2_047), 16), (packed(129), 2)]
    {
        let choice = machine.choose(&request).expect("an answer");
        assert_eq!((choice.replicas.len(), choice.shares.len()), (request.size, devices));
        assert!(choice.exact && choice.steps < 100, "{} steps", choice.steps);
    }
}

prop_compose! {
    /// Up to eight linked GPUs with free and used replicas, and an order of ids.
    fn any_machine()(
        links in prop::collection::vec((0..8_usize, 0..8_usize, 1..5_u32), 0..12),
        shares in prop::collection::vec(
            (prop::sample::subsequence((0..6_u32).collect::<Vec<_>>(), 0..=6), 0..4_usize), 1..=8,
        ),
        policy in prop::sample::select(Policy::ALL.to_vec()),
        span in prop_oneof![Just(Span::AnyDevices), Just(Span::OneDevice)],
        size in 1..20_usize,
        seed: u64,
    ) -> (TestMachine, RandomRequest) {
        let links: Vec<_> = links.into_iter().filter(|(a, b, _)| a != b).collect();
        let (free, in_use): (Vec<_>, Vec<_>) = shares.into_iter().unzip();
        let devices = linked(&links).into_iter().take(free.len()).collect();
        let machine = TestMachine { devices, free, in_use };
        let request = RandomRequest::random(&machine, policy, span, size, seed);
        (machine, request)
    }
}

/// A request that requires a few of the free replicas.
#[derive(Debug)]
struct RandomRequest {
    required: Vec<ReplicaId>,
    size: usize,
    policy: Policy,
    span: Span,
}

impl RandomRequest {
    fn random(machine: &TestMachine, policy: Policy, span: Span, size: usize, seed: u64) -> Self {
        let free_replicas = machine.devices.iter().zip(&machine.free).flat_map(|(device, free)| {
            free.iter().map(|&number| ReplicaId { device: device.id.clone(), number })
        });
        let drawn = free_replicas.enumerate().filter(|(at, _)| (seed >> (at % 64)) & 7 == 7);
        let required = drawn.map(|(_, replica)| replica).take(size.min(3)).collect();
        Self { required, size, policy, span }
    }

    fn to_request<'a>(&'a self, devices: &'a [SharedDevice<'a>]) -> ShareRequest<'a> {
        let Self { size, policy, span, .. } = *self;
        ShareRequest { devices, required: &self.required, near: &[], size, policy, span }
    }
}

impl fmt::Debug for TestMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.free.iter().zip(&self.in_use)).finish()
    }
}

/// Replicas per device: in use by others, chosen, required among those, and left free.
fn loads(
    machine: &TestMachine,
    request: &RandomRequest,
    choice: &ShareChoice,
) -> Vec<(usize, usize, usize, usize)> {
    let count = |replicas: &[ReplicaId], id: &str| {
        replicas.iter().filter(|replica| replica.device.as_str() == id).count()
    };
    let row = |shared: &SharedDevice<'_>| {
        let chosen = count(&choice.replicas, shared.id);
        let required = count(&request.required, shared.id);
        (shared.in_use, chosen, required, shared.free.len() - chosen)
    };
    machine.shared().iter().map(row).collect()
}

proptest! {
    #[test]
    fn an_answer_has_the_size_and_free_replicas_and_the_required_ones(
        (machine, request) in any_machine(),
    ) {
        let shared = machine.shared();
        let Ok(choice) = choose(&machine.topology(), request.to_request(&shared)) else {
            return Ok(());
        };
        let replicas: BTreeSet<_> = choice.replicas.iter().collect();
        prop_assert_eq!(replicas.len(), request.size);
        prop_assert_eq!(choice.replicas.len(), request.size);
        prop_assert!(request.required.iter().all(|replica| replicas.contains(replica)));
        for replica in replicas {
            let device = shared.iter().find(|shared| shared.id == replica.device.as_str());
            prop_assert!(device.expect("a known device").free.contains(&replica.number));
        }
        prop_assert!(request.span == Span::AnyDevices || choice.shares.len() == 1);
    }

    #[test]
    fn an_impossible_request_is_refused((machine, request) in any_machine()) {
        let shared = machine.shared();
        let available: usize = machine.free.iter().map(Vec::len).sum();
        let fits_one_device = machine.free.iter().any(|free| free.len() >= request.size);
        match choose(&machine.topology(), request.to_request(&shared)) {
            Ok(_) => prop_assert!(request.size <= available),
            Err(ShareError::TooFew { .. }) => prop_assert!(request.size > available),
            Err(ShareError::TooFewOnOneDevice { .. }) =>
                prop_assert!(!fits_one_device || !request.required.is_empty()),
            Err(ShareError::NoNumaNode { size, available }) => prop_assert!(
                request.policy == Policy::NumaStrict && available < size
            ),
            Err(
                ShareError::RequiredOnSeveralNumaNodes | ShareError::RequiredOnSeveralDevices(_),
            ) => prop_assert!(request.required.len() > 1),
            Err(error) => prop_assert!(false, "{error}"),
        }
    }

    #[test]
    fn the_order_of_ids_does_not_matter(
        (machine, request) in any_machine(), rotation in 0..8_usize,
    ) {
        let mut reversed: Vec<Vec<u32>> = machine.free.clone();
        for free in &mut reversed {
            free.reverse();
        }
        let mut shared = machine.shared();
        let expected = choose(&machine.topology(), request.to_request(&shared));
        for (entry, free) in shared.iter_mut().zip(&reversed) {
            entry.free = free;
        }
        let rotation = rotation % shared.len();
        shared.rotate_left(rotation);
        prop_assert_eq!(choose(&machine.topology(), request.to_request(&shared)), expected);
    }

    #[test]
    fn distributed_keeps_devices_within_one_replica_of_each_other(
        (machine, mut request) in any_machine(),
    ) {
        (request.policy, request.span) = (Policy::Distributed, Span::AnyDevices);
        let shared = machine.shared();
        let Ok(choice) = choose(&machine.topology(), request.to_request(&shared)) else {
            return Ok(());
        };
        let loads = loads(&machine, &request, &choice);
        let open = loads.iter().filter(|(.., free)| *free > 0);
        let lowest = open.map(|(used, chosen, ..)| used + chosen);
        let lowest = lowest.min().unwrap_or(usize::MAX);
        for (used, chosen, required, _) in loads {
            prop_assert!(chosen == required || used + chosen <= lowest.saturating_add(1));
        }
    }

    #[test]
    fn packed_fills_one_device_before_it_opens_another(
        (machine, mut request) in any_machine(),
    ) {
        (request.policy, request.span) = (Policy::Packed, Span::AnyDevices);
        let shared = machine.shared();
        let Ok(choice) = choose(&machine.topology(), request.to_request(&shared)) else {
            return Ok(());
        };
        let loads = loads(&machine, &request, &choice);
        let opened: Vec<_> =
            loads.iter().filter(|(_, chosen, required, _)| chosen > required).collect();
        prop_assert!(opened.iter().filter(|(.., free)| *free > 0).count() <= 1);
        for (used, chosen, required, free) in &loads {
            let passed_over = *free > 0 && chosen == required;
            let is_less_loaded = |(other, _, also_required, _): &&&(usize, usize, usize, usize)| {
                other + also_required < used + required
            };
            prop_assert!(!passed_over || opened.iter().find(is_less_loaded).is_none());
        }
    }
}
