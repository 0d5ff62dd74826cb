//! `windlass machine`: simulated machines, for tests, demonstrations and bug reports.

mod board;

use std::path::{Path, PathBuf};

use anyhow::Result;
use windlass_machine::{Attached, Fault, Machine, Profile, simulated_driver};

use crate::{
    cli::MachineCommand,
    exit::Misuse,
    screen::{Table, line},
};

pub(super) fn run(command: MachineCommand) -> Result<()> {
    match command {
        MachineCommand::List => list(),
        MachineCommand::Create { dir, machine, device } => create(&dir, &machine, &device),
        MachineCommand::Fault { dir, fault } => inject(&dir, &fault),
        MachineCommand::Board(args) => board::run(args),
        MachineCommand::Mig { dir, gpu, profiles, none } => {
            let off = profiles.is_empty() && !none;
            cut(&dir, gpu, (!off).then_some(&profiles))
        }
    }
}

fn list() -> Result<()> {
    let mut table = Table::new(["NAME", "MACHINE"]);
    for name in Profile::names() {
        let profile = Profile::named(name)?;
        table.row([name.to_owned(), profile.description]);
    }
    for text in table.lines("") {
        line(text)?;
    }
    line("")?;
    let devices: Vec<_> = Attached::names().collect();
    line(format!("Devices to add with --device: {}", devices.join(", ")))?;
    Ok(())
}

fn create(dir: &Path, profile: &str, devices: &[Attached]) -> Result<()> {
    let mut profile = Profile::load(profile).map_err(|error| Misuse(error.into()))?;
    for device in devices {
        profile.attach(device).map_err(|error| Misuse(error.into()))?;
    }
    let machine = Machine::create(dir, &profile, &driver_for(&profile)?)?;
    line(format!("SIMULATED machine {} in {}", profile.name, machine.dir().display()))?;
    line("")?;
    line("Look at it:")?;
    line(format!("  windlass devices {}", host_flags(&machine)))?;
    let (kubelet, cdi) = (machine.dir().join("kubelet"), machine.dir().join("cdi"));
    let (kubelet, cdi, agent) = (kubelet.display(), cdi.display(), agent_flags(&machine));
    line("Serve it to an embedded kubelet, in two terminals:")?;
    line(format!("  windlass kubelet {kubelet}"))?;
    line(format!("  windlass node {agent} --kubelet-dir {kubelet} --cdi-dir {cdi}"))?;
    line("Serve it to this host's real kubelet, as root:")?;
    line(format!("  windlass node {agent}"))?;
    line("Let something happen:")?;
    let fault = a_fault(&profile).unwrap_or_else(|| "--help".to_owned());
    line(format!("  windlass machine fault {} {fault}", machine.dir().display()))?;
    Ok(())
}

/// Something that can happen to the machine.
fn a_fault(profile: &Profile) -> Option<String> {
    let of_device = || profile.devices.first().map(|device| format!("unplug:{}", device.name));
    let of_nic = || profile.nics.first().map(|nic| format!("link-down:{}", nic.netdev));
    let of_amd = || profile.amd.as_ref().map(|_| "unplug:amd0".to_owned());
    let of_gpu = profile.gpus.first().map(|_| "xid:79@0".to_owned());
    of_gpu.or_else(of_amd).or_else(of_device).or_else(of_nic)
}

/// The simulated driver, for a machine that has NVIDIA's; nothing for another.
pub(crate) fn driver_for(profile: &Profile) -> Result<PathBuf> {
    let driver = profile.driver.as_ref().map(|_| simulated_driver()).transpose()?;
    Ok(driver.unwrap_or_default())
}

/// The flags that point a command at a simulated machine.
pub(crate) fn host_flags(machine: &Machine) -> String {
    let (root, library) = (machine.host_root(), machine.nvml_library());
    let root = format!("--host-root {}", root.display());
    if library.exists() { format!("{root} --nvml-library {}", library.display()) } else { root }
}

/// The flags of an agent on it.
fn agent_flags(machine: &Machine) -> String {
    let (host, root, state) =
        (host_flags(machine), machine.host_root(), machine.dir().join("agent"));
    format!("{host} --host-root-on-node {} --state-dir {}", root.display(), state.display())
}

fn cut(dir: &Path, gpu: usize, profiles: Option<&Vec<String>>) -> Result<()> {
    let machine = Machine::open(dir)?;
    let names = profiles.map(|names| names.iter().map(String::as_str).collect::<Vec<_>>());
    machine.set_mig(gpu, names.as_deref()).map_err(|error| Misuse(error.into()))?;
    line(match names.as_deref() {
        None => format!("MIG is off on GPU {gpu} of {}", dir.display()),
        Some([]) => format!("MIG is on, without an instance, on GPU {gpu} of {}", dir.display()),
        Some(names) => format!("GPU {gpu} of {} is cut into {}", dir.display(), names.join(" ")),
    })?;
    Ok(())
}

fn inject(dir: &Path, fault: &Fault) -> Result<()> {
    Machine::open(dir)?.inject(fault)?;
    line(format!("{fault} happened to {}", dir.display()))?;
    Ok(())
}
