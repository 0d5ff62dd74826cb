//! `windlass machine`: simulated machines for tests, demonstrations and bug reports.

mod board;

use std::path::Path;

use anyhow::{Result, anyhow};
use windlass_config::{DeviceProfile, DiscoveryRule};
use windlass_machine::{Attached, Fault, Machine, MachineProfile};

use crate::{
    cli::MachineCommand,
    exit::UsageError,
    screen::{Table, print_line, shell_word},
    simulated,
};

/// State folder of an agent on the machine.
const AGENT_FOLDER: &str = "agent";

pub(crate) fn run(command: MachineCommand) -> Result<()> {
    match command {
        MachineCommand::List => list(),
        MachineCommand::Create { dir, keep: true, machine, .. } if Machine::open(&dir).is_ok() => {
            let dir = dir.display();
            Ok(print_line(format!(
                "{dir} keeps its simulated machine; to create {machine}, remove the folder"
            ))?)
        }
        MachineCommand::Create { dir, force, machine, device, .. } => {
            if !force {
                require_unoccupied(&dir)?;
            }
            create(&dir, &machine, &device)
        }
        MachineCommand::Fault { dir, fault } => inject(&dir, &fault),
        MachineCommand::Board(args) => board::run(args),
        MachineCommand::Mig { dir, gpu, profiles, none } => {
            let is_off = profiles.is_empty() && !none;
            set_mig(&dir, gpu, (!is_off).then_some(&profiles))
        }
    }
}

fn list() -> Result<()> {
    let mut table = Table::new(["NAME", "MACHINE"]);
    for name in MachineProfile::names() {
        let profile = MachineProfile::named(name)?;
        table.add_row([name.to_owned(), profile.description]);
    }
    table.print()?;
    print_line("")?;
    // Only the demo simulates boards on the network.
    let has_board =
        |profile: &&DeviceProfile| matches!(profile.rule().find, DiscoveryRule::Endpoints(_));
    let boards = DeviceProfile::ALL.iter().filter(has_board);
    let devices = Attached::names().map(str::to_owned);
    let devices = devices.chain(boards.map(|profile| format!("{} (demo only)", profile.name)));
    let devices: Vec<_> = devices.collect();
    print_line(format!("Devices to add with --device: {}", devices.join(", ")))?;
    Ok(())
}

/// Refuses to replace an existing machine, which may be in use.
fn require_unoccupied(dir: &Path) -> Result<()> {
    let Ok(machine) = Machine::open(dir) else { return Ok(()) };
    let dir = machine.dir().display();
    Err(UsageError(anyhow!("{dir} has a simulated machine already: --force replaces it")).into())
}

fn create(dir: &Path, profile: &str, devices: &[Attached]) -> Result<()> {
    let mut profile = simulated::load_profile(profile)?;
    for device in devices {
        profile.attach(device).map_err(|error| UsageError(error.into()))?;
    }
    let machine = simulated::create_machine(dir, &profile)?;
    print_line(format!("SIMULATED machine {} in {}", profile.name, machine.dir().display()))?;
    print_line("")?;
    print_line("Inspect it:")?;
    print_line(format!("  windlass devices {}", host_flags(&machine)))?;
    let path_in_machine = |name: &str| shell_word(&machine.dir().join(name));
    let (kubelet, cdi, agent) =
        (path_in_machine("kubelet"), path_in_machine("cdi"), agent_flags(&machine));
    print_line("Serve it to an embedded kubelet, in two terminals:")?;
    print_line(format!("  windlass kubelet {kubelet}"))?;
    print_line(format!("  windlass node {agent} --kubelet-dir {kubelet} --cdi-dir {cdi}"))?;
    print_line("Serve it to this host's real kubelet, as root:")?;
    print_line(format!("  windlass node {agent}"))?;
    print_line("Inject a fault:")?;
    let fault = example_fault(&profile).unwrap_or_else(|| "--help".to_owned());
    print_line(format!("  windlass machine fault {} {fault}", shell_word(machine.dir())))?;
    print_line(
        "Show its effect on the agent. Some faults, such as XIDs, are events, which only a running agent sees:",
    )?;
    let (host, state) = (host_flags(&machine), path_in_machine(AGENT_FOLDER));
    print_line(format!("  windlass devices {host} --kubelet-dir {kubelet} --state-dir {state}"))?;
    Ok(())
}

fn example_fault(profile: &MachineProfile) -> Option<String> {
    let device_fault = || profile.devices.first().map(|device| format!("unplug:{}", device.name));
    let nic_fault = || profile.nics.first().map(|nic| format!("link-down:{}", nic.netdev));
    let amd_fault = || profile.amd.as_ref().map(|_| "unplug:amd0".to_owned());
    let gpu_fault = profile.gpus.first().map(|_| "xid:79@0".to_owned());
    gpu_fault.or_else(amd_fault).or_else(device_fault).or_else(nic_fault)
}

pub(crate) fn host_flags(machine: &Machine) -> String {
    let (root, library) = (machine.host_root(), machine.nvml_library());
    let root = format!("--host-root {}", shell_word(&root));
    if library.exists() { format!("{root} --nvml-library {}", shell_word(&library)) } else { root }
}

fn agent_flags(machine: &Machine) -> String {
    let (root, state) =
        (shell_word(&machine.host_root()), shell_word(&machine.dir().join(AGENT_FOLDER)));
    format!("{} --host-root-on-node {root} --state-dir {state}", host_flags(machine))
}

fn set_mig(dir: &Path, gpu: usize, profiles: Option<&Vec<String>>) -> Result<()> {
    let machine = Machine::open(dir)?;
    let names = profiles.map(|names| names.iter().map(String::as_str).collect::<Vec<_>>());
    machine.set_mig(gpu, names.as_deref()).map_err(|error| UsageError(error.into()))?;
    print_line(match names.as_deref() {
        None => format!("MIG is off on GPU {gpu} of {}", dir.display()),
        Some([]) => format!("MIG is on, without instances, on GPU {gpu} of {}", dir.display()),
        Some(names) => {
            format!("GPU {gpu} of {} has MIG instances {}", dir.display(), names.join(" "))
        }
    })?;
    Ok(())
}

fn inject(dir: &Path, fault: &Fault) -> Result<()> {
    Machine::open(dir)?.inject(fault)?;
    print_line(format!("{fault} injected into {}", dir.display()))?;
    Ok(())
}
