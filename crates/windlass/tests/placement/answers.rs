//! Checks the answers in `docs/placement-answers.md` against the machines.

use std::{env, fmt::Write as _, fs, path::Path};

use windlass_core::{
    device::DeviceKind,
    placement::{Alternative, Explanation, Policy, Request, Score, Term, explain},
    topology::PcieLevel,
};

use crate::placement::{
    every_machine,
    labels::{ids, label, list},
    machines::Machine,
    questions::{self, MachineCases, PlacementCase},
};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/placement-answers.md");

/// Variable that makes the test write the page.
const BLESS: &str = "WINDLASS_BLESS";

const PAGE_HEADER: &str = "\
# Placement, answer by answer

For reviewers of [placement](placement.md) who want to check its answers by eye.
It answers which devices are chosen for typical questions on real machines, and why the next best set loses.

Each section has a machine, its connections as in `windlass topo`, and questions. `2 of 0 3-7` asks for two of the free
devices 0 and 3 to 7; the others are in use. `4:1` is part 1 of GPU 4. `with 5` requires 5 in the answer, `near mlx5_2` gives
the container that NIC too. The policy is `aligned` unless another is named. Beside the answer stands the best other set, and
the first term in which it is worse: the chosen set's value, then its own. Ties go to the lower position.

A test asks and compares: `cargo test -p windlass --test integration placement`. After an intended change, set
`WINDLASS_BLESS=1`, and read the difference.
";

#[tokio::test]
async fn the_answers_on_the_page_are_current() {
    let machines = every_machine().await;
    let mut page = PAGE_HEADER.to_owned();
    for section in questions::ALL {
        let machine = machines.iter().find(|machine| machine.name == section.machine);
        write_section(&mut page, machine.expect("a machine of that name"), section);
    }
    if env::var_os(BLESS).is_some() {
        fs::write(PAGE, &page).expect("the page is written");
    }
    let written_page = fs::read_to_string(Path::new(PAGE)).unwrap_or_default();
    for (index, (expected_line, written_line)) in page.lines().zip(written_page.lines()).enumerate()
    {
        assert_eq!(expected_line, written_line, "line {} of {PAGE}", index + 1);
    }
    assert_eq!(page.len(), written_page.len(), "{PAGE} has another number of lines");
}

fn write_section(page: &mut String, machine: &Machine, section: &MachineCases) {
    let _ = write!(page, "\n## {}\n\n{}.\n\n```text\n", machine.name, machine.description);
    for line in matrix(machine) {
        let _ = writeln!(page, "{}", line.trim_end());
    }
    page.push_str("```\n\n| question | answer | its pairs | next best | worse by |\n");
    page.push_str("| --- | --- | --- | --- | --- |\n");
    let sizes = section.sizes.iter().map(|&size| PlacementCase::new(size, "all"));
    for question in sizes.chain(section.questions.iter().copied()) {
        let _ = writeln!(page, "| {} |", row(machine, question).join(" | "));
    }
}

/// Connections between GPUs, NUMA nodes, and nearest NICs; parts in place of NICs on a partitioned machine.
fn matrix(machine: &Machine) -> Vec<String> {
    let mut gpus = machine.pool.clone();
    gpus.dedup_by_key(|index| machine.devices[*index].place.pci);
    let is_partitioned = has_parts(machine);
    let name = |index: usize| machine.devices[index].index.to_string();
    let mut heading = vec![String::new()];
    heading.extend(gpus.iter().map(|&index| name(index)));
    heading.extend(["NUMA", if is_partitioned { "parts" } else { "NIC" }].map(str::to_owned));
    let row = |&index: &usize| {
        let connection = |other| machine.topology.connection(index, other).to_string();
        let cell = |&other: &usize| if other == index { "X".to_owned() } else { connection(other) };
        let numa = machine.devices[index].place.numa_node;
        let last_cell =
            if is_partitioned { parts(machine, index) } else { nearest_nics(machine, index) };
        let cells = [name(index)].into_iter().chain(gpus.iter().map(cell));
        cells
            .chain([numa.map_or_else(|| "-".to_owned(), |node| node.to_string()), last_cell])
            .collect()
    };
    let rows: Vec<Vec<String>> = [heading].into_iter().chain(gpus.iter().map(row)).collect();
    let padded_cells =
        |row: &Vec<String>| row.iter().map(|cell| format!("{cell:<5}")).collect::<Vec<_>>();
    rows.iter().map(|row| padded_cells(row).join(" ")).collect()
}

/// True if the machine's pool has parts of GPUs.
fn has_parts(machine: &Machine) -> bool {
    machine.pool.iter().any(|&index| machine.devices[index].part.is_some())
}

fn parts(machine: &Machine, gpu: usize) -> String {
    let pci = machine.devices[gpu].place.pci;
    let pool_devices = machine.pool.iter().map(|&index| &machine.devices[index]);
    list(machine, pool_devices.filter(|device| device.place.pci == pci).map(|device| &device.id))
}

fn nearest_nics(machine: &Machine, gpu: usize) -> String {
    let level = |index: usize| {
        PcieLevel::between(&machine.devices[gpu].place, &machine.devices[index].place)
    };
    let devices = machine.devices.iter().enumerate();
    let nics = devices.filter(|(_, device)| device.kind == DeviceKind::Nic).map(|(index, _)| index);
    let Some(nearest_level) = nics.clone().map(level).min() else { return "-".to_owned() };
    let names = nics
        .filter(|&index| level(index) == nearest_level)
        .map(|index| label(&machine.devices[index]));
    format!("{nearest_level} {}", names.collect::<Vec<_>>().join(" "))
}

fn row(machine: &Machine, question: PlacementCase) -> [String; 5] {
    let [available, required, near] =
        [question.free, question.required, question.near].map(|list| ids(machine, list));
    let PlacementCase { size, policy, .. } = question;
    let request = Request { available: &available, required: &required, near: &near, size, policy };
    let question_text = text(machine, question);
    match explain(&machine.topology, request) {
        Err(error) => {
            [question_text, "none".to_owned(), error.to_string(), String::new(), String::new()]
        }
        Ok(explanation) => {
            assert!(explanation.choice.exact, "{} {question_text}", machine.name);
            let answer = format!("**{}**", list(machine, &explanation.choice.devices));
            let pairs = explanation.choice.connections.to_string();
            let alternative = explanation.alternative.as_ref();
            let [next_best, difference] =
                alternative.map_or_else(Default::default, |alternative| {
                    [list(machine, &alternative.devices), worse_by(&explanation, alternative)]
                });
            [question_text, answer, pairs, next_best, difference]
        }
    }
}

fn text(machine: &Machine, question: PlacementCase) -> String {
    let PlacementCase { policy, size, free, required, near } = question;
    let pool = machine.pool.iter().map(|&index| &machine.devices[index].id);
    let is_short = free != "all" || has_parts(machine);
    let free = if is_short { free.to_owned() } else { list(machine, pool) };
    let policy = if policy == Policy::Aligned { String::new() } else { format!("{policy}: ") };
    let clause = |keyword, list: &str| match list {
        "" => String::new(),
        list => format!(" {keyword} {list}"),
    };
    format!("{policy}{size} of {free}{}{}", clause("with", required), clause("near", near))
}

fn worse_by(explanation: &Explanation, alternative: &Alternative) -> String {
    let value = |score: &Score| {
        score.terms().find(|(term, _)| *term == alternative.lost_by).map(|(_, value)| value)
    };
    match (alternative.lost_by, value(&explanation.choice.score), value(&alternative.score)) {
        (term, Some(ours), Some(theirs)) => format!("{}: {ours}, {theirs}", term.title()),
        _ => Term::Position.title().to_owned(),
    }
}
