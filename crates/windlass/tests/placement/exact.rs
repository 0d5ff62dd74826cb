//! Every answer is optimal, and does not depend on the order of the devices.

use windlass_core::placement::{Choice, PlacementError, Policy, Request, Topology, choose};

use crate::placement::{
    by_hand, every_machine,
    machines::Machine,
    pairs::{bit_indices, lowest_bits},
    random::Random,
};

/// Number of random sets of free devices per machine.
const RANDOM_SETS: usize = 12;

/// Question whose sets are bit masks of positions in the pool.
#[derive(Clone, Copy, Debug)]
struct Question {
    free: u64,
    required: u64,
    size: usize,
    policy: Policy,
}

/// Questions for every size: of all devices, then of random sets, a third of which require a device.
fn questions(machine: &Machine) -> Vec<Question> {
    let devices = machine.pool.len();
    let mut random = Random::new(7);
    let mut sets = vec![(lowest_bits(devices), 0)];
    sets.extend((0..RANDOM_SETS).map(|index| {
        let count = 1 + random.below(devices);
        let free = random.random_subset(lowest_bits(devices), count);
        (free, if index % 3 == 0 { random.random_subset(free, 1) } else { 0 })
    }));
    let sizes = |(free, required): (u64, u64)| {
        let sizes = 1..=free.count_ones() as usize;
        sizes.flat_map(move |size| {
            Policy::ALL.map(|policy| Question { free, required, size, policy })
        })
    };
    sets.into_iter().flat_map(sizes).collect()
}

fn ask(
    topology: &Topology,
    machine: &Machine,
    question: Question,
) -> Result<Choice, PlacementError> {
    let ids = machine.ids();
    let [available, required] = [question.free, question.required]
        .map(|set| bit_indices(set).map(|index| ids[index]).collect::<Vec<_>>());
    let Question { size, policy, .. } = question;
    let request = Request { available: &available, required: &required, near: &[], size, policy };
    choose(topology, request)
}

#[tokio::test]
async fn every_answer_is_exact() {
    for machine in every_machine().await.iter().chain([&by_hand::with_random_links(1)]) {
        for question in questions(machine) {
            match ask(&machine.topology, machine, question) {
                Ok(choice) => assert!(choice.exact, "{}: {question:?}", machine.name),
                Err(PlacementError::NoNumaNode { .. }) => {
                    assert_eq!(question.policy, Policy::NumaStrict, "{}", machine.name);
                }
                Err(error) => panic!("{}: {question:?}: {error}", machine.name),
            }
        }
    }
}

#[tokio::test]
async fn the_order_of_the_devices_does_not_matter() {
    for machine in every_machine().await.iter().chain([&by_hand::with_random_links(1)]) {
        let mut reordered_devices = machine.devices.clone();
        reordered_devices.rotate_left(machine.devices.len() / 3);
        reordered_devices.reverse();
        let topology = Topology::from_devices(&reordered_devices);
        for question in questions(machine).into_iter().step_by(7) {
            let expected = ask(&machine.topology, machine, question);
            assert_eq!(ask(&topology, machine, question), expected, "{question:?}");
        }
    }
}
