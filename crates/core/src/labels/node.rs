//! Labels of the node: machine, driver, common facts of its GPUs.

use super::{
    HostFacts, Label, LabelInput, Sharing, Vgpu,
    device::Gpu,
    spelling::{nvidia, sanitised, windlass},
};

/// Placeholder of gpu-feature-discovery for unknown values.
const UNKNOWN: &str = "unknown";

/// Labels independent of GPUs.
pub(super) fn host_labels(input: &LabelInput<'_>) -> impl Iterator<Item = Label> {
    let timestamp = input.timestamp.map(|time| nvidia("gfd.timestamp", time.as_second()));
    let simulated = input.inventory.simulated.as_deref();
    let simulated = simulated.map(|profile| windlass("simulated", sanitised(profile)));
    let enforcement = input.enforcement.map(|weakest| windlass("enforcement", weakest));
    vgpu(&input.host.vgpu).into_iter().chain(timestamp).chain(simulated).chain(enforcement)
}

pub(super) fn gpu_labels(input: &LabelInput<'_>, gpus: &[Gpu<'_>]) -> Vec<Label> {
    let machine = input.host.machine.as_deref().unwrap_or(UNKNOWN);
    let any_mig_capable = gpus.iter().any(Gpu::is_mig_capable);
    // gpu-feature-discovery has one sharing rule for all GPUs. Here the label is true if any GPU is under MPS.
    let any_mps =
        gpus.iter().filter_map(|gpu| gpu.offering).any(|offering| offering.sharing == Sharing::Mps);
    let labels = [
        nvidia("gpu.machine", sanitised(machine)),
        nvidia("mig.capable", any_mig_capable),
        nvidia("mps.capable", any_mps),
        nvidia("gpu.mode", mode(gpus)),
    ];
    let clique = clique(gpus).map(|clique| nvidia("gpu.clique", clique));
    labels.into_iter().chain(clique).chain(driver(input.host, gpus)).chain(cuda(gpus)).collect()
}

fn vgpu(vgpu: &Vgpu) -> Vec<Label> {
    let present = |is_present: bool| nvidia("vgpu.present", is_present);
    match vgpu {
        Vgpu::Unknown => Vec::new(),
        Vgpu::Absent => vec![present(false)],
        Vgpu::Present(host) => {
            let version = host.driver_version.as_deref();
            let version = version.map(|text| nvidia("vgpu.host-driver-version", text));
            let branch = host.driver_branch.as_deref();
            let branch = branch.map(|text| nvidia("vgpu.host-driver-branch", text));
            [present(true)].into_iter().chain(version).chain(branch).collect()
        }
    }
}

/// Driver version, under current and former names.
fn driver(host: &HostFacts, gpus: &[Gpu<'_>]) -> Vec<Label> {
    let from_attribute = || gpus.iter().find_map(Gpu::driver_version).map(nvidia_spelling);
    let Some(full) = host.driver_version.clone().or_else(from_attribute) else { return Vec::new() };
    let mut labels = vec![nvidia("cuda.driver-version.full", &full)];
    let mut parts = full.splitn(3, '.');
    if let (Some(major), Some(minor)) = (parts.next(), parts.next()) {
        let revision = parts.next().unwrap_or_default();
        labels.extend([
            nvidia("cuda.driver-version.major", major),
            nvidia("cuda.driver-version.minor", minor),
            nvidia("cuda.driver-version.revision", revision),
            nvidia("cuda.driver.major", major),
            nvidia("cuda.driver.minor", minor),
            nvidia("cuda.driver.rev", revision),
        ]);
    }
    labels
}

/// Driver version in NVIDIA's spelling: semantic `550.163.1` is `550.163.01`, with a revision of two digits.
fn nvidia_spelling(version: &str) -> String {
    match version.rsplit_once('.') {
        Some((front, revision)) if front.contains('.') => format!("{front}.{revision:0>2}"),
        _ => version.to_owned(),
    }
}

/// The newest supported CUDA version, under current and former names.
fn cuda(gpus: &[Gpu<'_>]) -> Vec<Label> {
    let version = gpus.iter().find_map(Gpu::cuda_version).unwrap_or_default();
    let mut parts = version.split('.');
    let (Some(major), Some(minor)) = (parts.next(), parts.next()) else { return Vec::new() };
    vec![
        nvidia("cuda.runtime-version.major", major),
        nvidia("cuda.runtime-version.minor", minor),
        nvidia("cuda.runtime-version.full", format_args!("{major}.{minor}")),
        nvidia("cuda.runtime.major", major),
        nvidia("cuda.runtime.minor", minor),
    ]
}

/// Intended use by PCI class, if all GPUs have the same class; else `unknown`.
fn mode(gpus: &[Gpu<'_>]) -> &'static str {
    let mut classes = gpus.iter().map(Gpu::pci_class);
    let first = classes.next().flatten();
    match first.filter(|class| classes.all(|other| other == Some(class))) {
        Some("0300") => "graphics",
        Some("0302") => "compute",
        _ => UNKNOWN,
    }
}

/// NVLink domain, if all GPUs in a domain are in the same domain.
fn clique(gpus: &[Gpu<'_>]) -> Option<String> {
    let mut fabrics = gpus.iter().filter_map(Gpu::fabric);
    let (cluster, clique) = fabrics.next()?;
    let are_equal = fabrics.all(|other| other == (cluster, clique.clone()));
    are_equal.then(|| format!("{cluster}.{clique}"))
}
