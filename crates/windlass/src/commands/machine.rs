//! `windlass machine`: simulated machines, for tests, demonstrations and bug reports.

use std::path::Path;

use anyhow::Result;
use windlass_machine::{Fault, Machine, Profile, simulated_driver};

use crate::{
    cli::MachineCommand,
    exit::Misuse,
    screen::{Table, line},
};

pub(super) fn run(command: MachineCommand) -> Result<()> {
    match command {
        MachineCommand::List => list(),
        MachineCommand::Create { dir, machine } => create(&dir, &machine),
        MachineCommand::Fault { dir, fault } => inject(&dir, &fault),
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
    Ok(())
}

fn create(dir: &Path, profile: &str) -> Result<()> {
    let profile = Profile::load(profile).map_err(|error| Misuse(error.into()))?;
    let machine = Machine::create(dir, &profile, &simulated_driver()?)?;
    line(format!("SIMULATED machine {} in {}", profile.name, machine.dir().display()))?;
    line("")?;
    line("Look at it:")?;
    line(format!("  windlass devices {}", host_flags(&machine)))?;
    line("Serve it to a kubelet:")?;
    let root = machine.host_root();
    line(format!(
        "  windlass node {} --host-root-on-node {} --state-dir {}",
        host_flags(&machine),
        root.display(),
        machine.dir().join("agent").display()
    ))?;
    line("Let something happen:")?;
    line(format!("  windlass machine fault {} xid:79@0", machine.dir().display()))?;
    Ok(())
}

/// The flags that point a command at a simulated machine.
pub(crate) fn host_flags(machine: &Machine) -> String {
    let (root, library) = (machine.host_root(), machine.nvml_library());
    format!("--host-root {} --nvml-library {}", root.display(), library.display())
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
