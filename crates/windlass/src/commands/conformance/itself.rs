//! Windlass's own agent as the program under test, on a new simulated machine for each case.

use std::env;

use anyhow::{Context as _, Result};
use windlass_conformance::{Hooks, Subject};

use crate::simulated;

/// Arguments of the agent, all within the case's folder.
const ARGUMENTS: &[&str] = &[
    "node",
    "--host-root={scratch}/m/host",
    "--host-root-on-node={scratch}/m/host",
    "--nvml-library={scratch}/m/libnvidia-ml.so.1",
    "--kubelet-dir={kubelet}",
    "--cdi-dir={scratch}/cdi",
    "--state-dir={scratch}/state",
    "--config={scratch}/config.yaml",
    "--kubeconfig={kubeconfig}",
    "--node-name={node}",
];

/// Shortens the quiet period from a minute to a second, and offers devices through both APIs.
const CONFIG: &str = "{health: {quietPeriod: 1s}, dra: {offer: beside}}";

/// Excludes NICs: the scheduler would choose them first, because of their pool's name.
const DEVICES: &str = "device.attributes[\"windlass.dev\"].type != \"nic\"";

pub(super) fn subject(machine: &str) -> Result<Subject> {
    simulated::load_profile(machine)?;
    let program = env::current_exe().context("cannot find this program")?;
    let program = program.to_str().context("this program's path is not UTF-8")?.to_owned();
    let quoted_program = format!("'{}'", program.replace('\'', r"'\''"));
    let machine = machine.replace('\'', r"'\''");
    let hook = |text: &str| Some(format!("{quoted_program} machine {text} >/dev/null"));
    let create = format!("create {{scratch}}/m --machine '{machine}'");
    let setup = hook(&create)
        .map(|command| format!("{command} && echo '{CONFIG}' > {{scratch}}/config.yaml"));
    let hooks = Hooks {
        setup,
        fail: hook("fault {scratch}/m xid:79@0"),
        heal: hook("fault {scratch}/m recover@0"),
    };
    let arguments = ARGUMENTS.iter().map(|word| (*word).to_owned());
    let command = [program].into_iter().chain(arguments).collect();
    Ok(Subject {
        hooks,
        cdi_dirs: vec!["{scratch}/cdi".into()],
        devices: Some(DEVICES.to_owned()),
        ..Subject::new(command)
    })
}
