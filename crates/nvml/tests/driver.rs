//! Tests of the safe calls against the simulated driver, and against the real one that `WINDLASS_E2E_NVML_LIBRARY`
//! names.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use tempfile::TempDir;
use windlass_machine::{
    Fault, Machine, MachineProfile, find_driver, profile::Driver, state::Process,
};
use windlass_nvml::{
    ComputeMode, EventKind, FabricHealth, FabricState, Gpu, GpuInstance, LoadError, MemoryLimits,
    MigMode, NvLinkCounters, Nvml, NvmlError, PcieLink, RecoveryAction, Remote,
    ReportedMemoryLimits, RowRemapping, SlowdownCause,
};

const REAL_LIBRARY: &str = "WINDLASS_E2E_NVML_LIBRARY";

fn machine(profile: &str) -> (TempDir, Machine) {
    machine_of(&MachineProfile::named(profile).expect("a shipped profile"))
}

fn machine_of(profile: &MachineProfile) -> (TempDir, Machine) {
    let mut builder = tempfile::Builder::new();
    builder.prefix("wl");
    let folder = builder.tempdir_in("/dev/shm").or_else(|_| builder.tempdir());
    let folder = folder.expect("a temporary folder");
    let driver = find_driver().expect("cargo builds the simulated driver with the tests");
    let machine = Machine::create(folder.path(), profile, &driver).expect("a machine");
    (folder, machine)
}

/// Checks guarantees of any driver, real or simulated.
fn check_driver(library: &Path) {
    let nvml = Nvml::load(library).expect("the driver answers");
    assert!(!nvml.driver_version().expect("a version").is_empty());
    assert!(nvml.cuda_version().expect("a version").major >= 10);
    let events = nvml.event_set().expect("a set");
    let mut uuids = BTreeSet::new();
    for index in 0..nvml.gpu_count().expect("a number") {
        let gpu = nvml.gpu(index).expect("a GPU");
        assert!(gpu == nvml.gpu(index).expect("a GPU"), "the same GPU has the same handle");
        let uuid = gpu.uuid().expect("a uuid");
        assert!(
            gpu == nvml.gpu_with_uuid(&uuid).expect("a GPU"),
            "the UUID returns the same handle"
        );
        assert!(uuids.insert(uuid), "uuids are unique");
        assert!(!matches!(gpu.compute_mode().expect("a mode"), ComputeMode::Other(_)));
        assert!(!gpu.name().expect("a name").is_empty());
        assert_eq!(gpu.pci_bus_id().expect("an address").len(), "00000000:1B:00.0".len());
        if let Some(memory) = gpu.memory().expect("memory") {
            assert!(memory.total > 0 && memory.used <= memory.total);
        }
        assert!(gpu.compute_capability().expect("a capability").0 >= 3);
        gpu.minor().expect("a minor");
        gpu.serial().expect("a serial number, or none");
        for link in gpu.nvlinks_up().expect("links, or none") {
            assert!(gpu.nvlink_generation(link).is_none_or(|generation| generation > 0));
            gpu.nvlink_remote(link);
        }
        let rows = gpu.row_remapping().expect("rows, or none");
        assert!(rows.is_none_or(|rows| !rows.failed), "{rows:?}");
        gpu.page_retirement_pending().expect("pages, or none");
        gpu.uncorrected_errors().expect("a count, or none");
        gpu.slowdown().expect("reasons, or none");
        let fabric = gpu.fabric().expect("a fabric, or none");
        assert!(fabric.is_none_or(|fabric| fabric.health != FabricHealth::Bad));
        let action = gpu.recovery_action().expect("an action, or none");
        assert!(matches!(action, None | Some(RecoveryAction::None)), "{action:?}");
        check_telemetry(&gpu);
        if gpu.mig_mode().expect("a mode") == MigMode::Enabled {
            for instance in gpu.mig_instances().expect("instances") {
                let instance = instance.expect("an instance");
                assert!(instance.device.uuid().expect("a uuid").starts_with("MIG-"));
                assert!(instance.capacities.memory_mib > 0);
                assert!(gpu.mig_device(instance.index).expect("there") == instance.device);
            }
        }
        events.watch(&gpu).expect("events, or none");
    }
    let event = events.wait(Duration::from_millis(1)).expect("a wait that ends");
    assert_eq!(event, None, "no fault happens while this test runs");
}

/// Checks that all measurements are plausible.
fn check_telemetry(gpu: &Gpu) {
    match gpu.process_utilization(0) {
        Ok(samples) => assert!(samples.iter().all(|sample| sample.sm_percent <= 100)),
        Err(error) => assert!(error.is_unsupported(), "{error}"),
    }
    if let Some(utilization) = gpu.utilization().expect("utilisation, or none") {
        assert!(
            utilization.compute_percent <= 100 && utilization.memory_percent <= 100,
            "{utilization:?}"
        );
    }
    let celsius = gpu.temperature_celsius().expect("a temperature, or none");
    assert!(celsius.is_none_or(|celsius| (1..150).contains(&celsius)), "{celsius:?}");
    let milliwatts = gpu.power_milliwatts().expect("power, or none");
    assert!(milliwatts.is_none_or(|power| (1..3_000_000).contains(&power)), "{milliwatts:?}");
    gpu.energy_millijoules().expect("energy, or none");
    let limit = gpu.power_limit_milliwatts().expect("a limit, or none");
    assert!(limit.is_none_or(|limit| (1_000..3_000_000).contains(&limit)), "{limit:?}");
    for clock in [gpu.compute_clock_mhz(), gpu.memory_clock_mhz()] {
        let megahertz = clock.expect("a clock, or none");
        assert!(megahertz.is_none_or(|clock| (1..30_000).contains(&clock)), "{megahertz:?}");
    }
    let link = gpu.pcie_link().expect("a link, or none");
    assert!(link.is_none_or(|link| link.generation > 0 && link.width > 0), "{link:?}");
    let fields = gpu.field_values().expect("fields, each or none");
    let celsius = fields.memory_celsius;
    assert!(celsius.is_none_or(|celsius| celsius < 150), "{celsius:?}");
}

#[test]
fn every_simulated_driver_passes_the_checks() {
    for profile in MachineProfile::names_with_nvidia() {
        let (_folder, machine) = machine(profile);
        check_driver(&machine.nvml_library());
        let nvml = Nvml::load(&machine.nvml_library()).expect("loaded");
        assert_eq!(
            nvml.simulated().as_deref(),
            Some(profile),
            "the library names its machine profile"
        );
    }
}

#[test]
fn implausible_answers_are_errors() {
    let (_folder, machine) = machine("dgx-h100");
    let nvml = Nvml::load(&machine.nvml_library()).expect("loaded");
    let gpu = nvml.gpu(3).expect("a GPU");
    machine.inject(&Fault::Garbage { gpu: 3 }).expect("injected");
    let results = [
        gpu.uuid().map(drop),
        gpu.name().map(drop),
        gpu.serial().map(drop),
        gpu.minor().map(drop),
        gpu.compute_capability().map(drop),
        gpu.memory().map(drop),
        gpu.memory_used().map(drop),
        gpu.mig_instances().map(drop),
        gpu.mig_placements(0).map(drop),
        gpu.compute_pids().map(drop),
        gpu.utilization().map(drop),
        gpu.temperature_celsius().map(drop),
        gpu.power_milliwatts().map(drop),
        gpu.energy_millijoules().map(drop),
        gpu.power_limit_milliwatts().map(drop),
        gpu.compute_clock_mhz().map(drop),
        gpu.memory_clock_mhz().map(drop),
        gpu.pcie_link().map(drop),
    ];
    for result in results {
        let error = result.expect_err("garbage");
        assert!(error.to_string().ends_with("the answer makes no sense"), "{error}");
    }
    // Any number is valid here; the calls must return.
    assert_eq!(gpu.architecture(), Ok(None));
    assert_eq!(gpu.nvlinks_up(), Ok(Vec::new()));
    assert_eq!(gpu.nvlink_generation(0), None);
    machine.inject(&Fault::Recover { gpu: 3 }).expect("injected");
    assert!(gpu.uuid().expect("a UUID").starts_with("GPU-"));
    let other = nvml.gpu(4).expect("a GPU");
    machine.inject(&Fault::Garbage { gpu: 3 }).expect("injected");
    assert!(other.uuid().expect("a UUID").starts_with("GPU-"), "other GPUs work");
}

#[test]
fn one_sample_of_each_working_process_is_returned() {
    let (_folder, machine) = machine("dgx-h100");
    let nvml = Nvml::load(&machine.nvml_library()).expect("the driver answers");
    let gpu = nvml.gpu(0).expect("a GPU");
    assert_eq!(gpu.process_utilization(0).expect("idle"), [], "no process");
    let process =
        |(pid, sm_percent)| Process { pid, memory_mib: 1, gpu_instance: None, sm_percent };
    // More than the first buffer holds.
    let processes: Vec<_> = (1..=80).map(|pid| (pid, pid % 2 * 7)).map(process).collect();
    machine.update(|model| model.gpus[0].live.processes = processes).expect("changed");
    let samples = gpu.process_utilization(0).expect("samples");
    let actual: Vec<_> = samples.iter().map(|sample| (sample.pid, sample.sm_percent)).collect();
    let expected: Vec<_> = (1..=80).step_by(2).map(|pid| (pid, 7)).collect();
    assert_eq!(actual, expected);
    let after_last_sample =
        samples.iter().map(|sample| sample.timestamp_us).max().expect("samples") + 3_600_000_000;
    assert_eq!(gpu.process_utilization(after_last_sample).expect("nothing new"), []);
    assert_eq!(nvml.gpu(1).expect("a GPU").process_utilization(0).expect("idle"), []);
}

#[test]
fn a_compute_mode_is_set_for_one_gpu() {
    let (_folder, machine) = machine("dgx-h100");
    let nvml = Nvml::load(&machine.nvml_library()).expect("loaded");
    let modes = || [0, 1].map(|index| nvml.gpu(index).expect("a GPU").compute_mode());
    let gpu = nvml.gpu(0).expect("a GPU");
    for mode in [ComputeMode::ExclusiveProcess, ComputeMode::Prohibited, ComputeMode::Default] {
        gpu.set_compute_mode(mode).expect("set");
        assert_eq!(modes(), [Ok(mode), Ok(ComputeMode::Default)]);
    }
    let error = nvml.gpu_with_uuid("GPU-of-another-machine\0").expect_err("there is none");
    assert!(error.is_absent(), "{error}");
}

/// The profile with a driver that limits memory.
fn with_memory_limits(profile: &str) -> MachineProfile {
    let mut profile = MachineProfile::named(profile).expect("a shipped profile");
    profile.driver = Some(Driver { version: "615.10".to_owned(), cuda: "13.4".to_owned() });
    profile
}

#[test]
fn a_memory_limit_applies_to_one_gpu_and_cgroup_and_reads_back() {
    let (folder, machine) = machine_of(&with_memory_limits("dgx-h100"));
    let nvml = Nvml::load(&machine.nvml_library()).expect("loaded");
    assert!(nvml.has_memory_limits());
    let cgroups = ["a", "b"].map(|name| folder.path().join(name));
    for cgroup in &cgroups {
        fs::create_dir(cgroup).expect("made");
    }
    let [gpu, other] = [0, 1].map(|index| nvml.gpu(index).expect("a GPU"));
    assert_eq!(gpu.memory_limits(&cgroups[0]), Ok(None), "nothing was set");
    for (soft, hard) in [(0, Some(4 << 30)), (1 << 30, Some(8 << 30)), (0, None)] {
        gpu.set_memory_limits(&cgroups[0], MemoryLimits { soft, hard }).expect("set");
        let expected = ReportedMemoryLimits { soft, hard, used: 0 };
        assert_eq!(gpu.memory_limits(&cgroups[0]), Ok(Some(expected)));
    }
    assert_eq!(gpu.memory_limits(&cgroups[1]), Ok(None));
    assert_eq!(other.memory_limits(&cgroups[0]), Ok(None));
}

#[test]
fn a_refused_memory_limit_has_a_reason() {
    let (folder, machine) = machine_of(&with_memory_limits("mig-a100"));
    let nvml = Nvml::load(&machine.nvml_library()).expect("loaded");
    let gpu = nvml.gpu(0).expect("a GPU");
    let limits = MemoryLimits { soft: 0, hard: Some(1 << 30) };
    let error = gpu.set_memory_limits(&folder.path().join("gone"), limits).expect_err("no cgroup");
    assert!(error.is_absent(), "{error}");
    let error = gpu.set_memory_limits(Path::new("/a\0b"), limits).expect_err("no path");
    assert!(error.is_absent(), "{error}");
    let mut instances = (0..nvml.gpu_count().expect("a number")).filter_map(|index| {
        nvml.gpu(index).expect("a GPU").mig_instances().ok()?.into_iter().next()
    });
    let instance = instances.next().expect("a GPU with instances").expect("an instance");
    let error = instance.device.set_memory_limits(folder.path(), limits).expect_err("MIG");
    assert!(error.is_unsupported(), "{error}");
    machine.inject(&Fault::Garbage { gpu: 0 }).expect("injected");
    gpu.set_memory_limits(folder.path(), limits).expect("set");
    assert!(gpu.memory_limits(folder.path()).is_err(), "garbage is an error");
}

#[test]
fn a_driver_before_615_lacks_the_functions_of_memory_limits() {
    let (folder, machine) = machine("dgx-h100");
    let nvml = Nvml::load(&machine.nvml_library()).expect("loaded");
    assert!(!nvml.has_memory_limits());
    let gpu = nvml.gpu(0).expect("a GPU");
    let set_result = gpu.set_memory_limits(folder.path(), MemoryLimits { soft: 0, hard: None });
    let codes = [set_result, gpu.memory_limits(folder.path()).map(drop)]
        .map(|result| result.map_err(|error| error.code));
    assert_eq!(codes, [Err(13), Err(13)], "NVML_ERROR_FUNCTION_NOT_FOUND");
}

#[test]
fn a_set_limit_may_be_ignored_or_fail() {
    let (folder, machine) = machine_of(&with_memory_limits("l40s-pcie"));
    let nvml = Nvml::load(&machine.nvml_library()).expect("loaded");
    let gpu = nvml.gpu(0).expect("a GPU");
    let limits = MemoryLimits { soft: 0, hard: Some(1 << 30) };
    machine.inject(&"limit:ignored@0".parse().expect("a fault")).expect("injected");
    gpu.set_memory_limits(folder.path(), limits).expect("the call succeeds");
    assert_eq!(gpu.memory_limits(folder.path()), Ok(None));
    machine.inject(&"limit:4@0".parse().expect("a fault")).expect("injected");
    let error = gpu.set_memory_limits(folder.path(), limits).expect_err("the fault");
    assert!(error.is_no_permission(), "{error}");
}

#[test]
fn a_real_driver_passes_the_checks() {
    match env::var_os(REAL_LIBRARY).map(PathBuf::from) {
        Some(library) => check_driver(&library),
        None => eprintln!("SKIPPED: set {REAL_LIBRARY} to the path of a real libnvidia-ml.so.1"),
    }
}

#[test]
fn links_end_at_switches_or_at_other_gpus() {
    let ends = |profile: &str| {
        let (_folder, machine) = machine(profile);
        let nvml = Nvml::load(&machine.nvml_library()).expect("loaded");
        let gpu = nvml.gpu(0).expect("a GPU");
        let links = gpu.nvlinks_up().expect("links");
        let ends: Vec<_> = links.into_iter().map(|link| gpu.nvlink_remote(link)).collect();
        let switch_ends = ends.iter().filter(|end| matches!(end, Remote::Switch(Some(_))));
        let gpu_ends = ends.iter().filter(|end| matches!(end, Remote::Gpu(_)));
        (switch_ends.count(), gpu_ends.count())
    };
    assert_eq!(ends("dgx-h100"), (18, 0));
    assert_eq!(ends("mixed-models"), (0, 12));
    assert_eq!(ends("l40s-pcie"), (0, 0));
}

#[test]
fn an_event_names_its_gpu_and_its_xid() {
    let (_folder, machine) = machine("dgx-h100");
    let nvml = Nvml::load(&machine.nvml_library()).expect("loaded");
    let (gpu, events) = (nvml.gpu(5).expect("a GPU"), nvml.event_set().expect("a set"));
    assert!(events.watch(&gpu).expect("it reports faults"));
    machine.inject(&Fault::Xid { gpu: 5, code: 79 }).expect("injected");
    let event = events.wait(Duration::from_secs(5)).expect("a wait").expect("an event");
    assert!(event.gpu == gpu);
    assert_eq!(event.kind, EventKind::Xid(79));
}

#[test]
fn only_an_event_of_an_instance_names_an_instance() {
    let (_folder, machine) = machine("mig-a100");
    let nvml = Nvml::load(&machine.nvml_library()).expect("loaded");
    let (gpu, events) = (nvml.gpu(0).expect("a GPU"), nvml.event_set().expect("a set"));
    let instances = gpu.mig_instances().expect("instances");
    let instance =
        instances.into_iter().next().expect("the GPU has instances").expect("an instance");
    assert!(events.watch(&gpu).expect("it reports faults"));
    let gpu_instance = instance.gpu_instance;
    machine
        .inject(&Fault::InstanceXid { gpu: 0, instance: gpu_instance, code: 79 })
        .expect("injected");
    machine.inject(&Fault::Xid { gpu: 0, code: 79 }).expect("injected");
    for expected in [Some((gpu_instance, instance.compute_instance)), None] {
        let event = events.wait(Duration::from_secs(5)).expect("a wait").expect("an event");
        assert_eq!(event.gpu_instance.zip(event.compute_instance), expected);
    }
}

#[test]
fn injected_faults_are_reported() {
    let (_folder, machine) = machine("dgx-h100");
    let nvml = Nvml::load(&machine.nvml_library()).expect("loaded");
    let gpu = nvml.gpu(1).expect("a GPU");
    let links = gpu.nvlinks_up().expect("links").len();
    assert_eq!(gpu.page_retirement_pending(), Ok(None), "the GPU remaps rows instead");
    assert_eq!(gpu.uncorrected_errors(), Ok(Some(0)));
    for fault in ["thermal@1", "remap-pending@1", "remap-failed@1", "ecc-count@1", "nvlink:5@1"] {
        machine.inject(&fault.parse().expect(fault)).expect(fault);
    }
    let slowdown = gpu.slowdown().expect("an answer").expect("causes");
    assert!(slowdown.is_thermal() && !slowdown.is_power_brake(), "{slowdown:?}");
    assert!(slowdown.is_by(SlowdownCause::Hardware) && !slowdown.is_by(SlowdownCause::PowerCap));
    let rows = RowRemapping { corrected: 0, uncorrected: 0, pending: true, failed: true };
    assert_eq!(gpu.row_remapping(), Ok(Some(rows)));
    assert_eq!(gpu.uncorrected_errors(), Ok(Some(1)));
    assert_eq!(gpu.nvlinks_up().expect("links").len(), links - 1);
}

#[test]
fn clocks_limits_and_counters_match_the_card() {
    let (_folder, machine) = machine("dgx-h100");
    let nvml = Nvml::load(&machine.nvml_library()).expect("loaded");
    let gpu = nvml.gpu(1).expect("a GPU");
    machine
        .update(|model| {
            let live = &mut model.gpus[1].live;
            (live.utilization_percent, live.pcie_replays) = (90, 3);
            live.ecc_volatile.corrected = 5;
            live.nvlink.sent_kib = 7 << 32;
            live.nvlink.crc_flit_errors = 2;
        })
        .expect("updated");
    let card = machine.model().expect("a model").gpus[1].card.clone();
    assert_eq!(gpu.compute_clock_mhz(), Ok(Some(card.clocks_mhz.graphics)));
    assert_eq!(gpu.memory_clock_mhz(), Ok(Some(card.clocks_mhz.memory)));
    assert_eq!(gpu.power_limit_milliwatts(), Ok(Some(card.power_limit_w * 1000)));
    assert_eq!(gpu.pcie_link(), Ok(Some(PcieLink { generation: 5, width: 16 })));
    let fields = gpu.field_values().expect("an answer");
    assert_eq!(fields.memory_celsius, Some(44), "ten degrees above the chip");
    assert_eq!((fields.corrected_errors, fields.pcie_replays), (Some(5), Some(3)));
    let nvlink = NvLinkCounters {
        sent_kib: Some(7 << 32),
        received_kib: Some(0),
        crc_flit_errors: Some(2),
        crc_data_errors: Some(0),
        replays: Some(0),
        recoveries: Some(0),
    };
    assert_eq!(fields.nvlink, nvlink);

    let (_folder, machine) = self::machine("l40s-pcie");
    let nvml = Nvml::load(&machine.nvml_library()).expect("loaded");
    let fields = nvml.gpu(0).expect("a GPU").field_values().expect("an answer");
    assert_eq!((fields.nvlink, fields.memory_celsius), (NvLinkCounters::default(), None));
}

#[test]
fn the_error_of_a_lost_gpu_names_the_loss() {
    let (_folder, machine) = machine("dgx-h100");
    let nvml = Nvml::load(&machine.nvml_library()).expect("loaded");
    let gpu = nvml.gpu(2).expect("a GPU");
    machine.inject(&Fault::Lost { gpu: 2 }).expect("injected");
    let error = gpu.memory().expect_err("lost");
    assert!(error.is_lost());
    assert_eq!(error.to_string(), "nvmlDeviceGetMemoryInfo_v2: the GPU is lost");
}

#[test]
fn the_error_names_a_missing_library() {
    let error = Nvml::load(Path::new("/nowhere/libnvidia-ml.so.1")).expect_err("absent");
    assert!(matches!(error, LoadError::Open(..)));
    assert_eq!(error.to_string(), "cannot load /nowhere/libnvidia-ml.so.1");
}

#[test]
fn gpus_on_switches_join_a_fabric_which_has_a_cluster_in_a_rack_only() {
    let (_folder, board) = machine("dgx-h100");
    let nvml = Nvml::load(&board.nvml_library()).expect("loaded");
    let fabric = nvml.gpu(0).expect("a GPU").fabric().expect("an answer").expect("on switches");
    assert!(fabric.is_joined() && fabric.state == FabricState::Completed);
    assert_eq!((fabric.cluster, fabric.clique), (None, 0));

    let (_folder, card) = machine("l40s-pcie");
    let nvml = Nvml::load(&card.nvml_library()).expect("loaded");
    assert_eq!(nvml.gpu(0).expect("a GPU").fabric().expect("an answer"), None);

    let (_folder, rack) = machine_of(&in_a_rack("hgx-b200"));
    let nvml = Nvml::load(&rack.nvml_library()).expect("loaded");
    let gpu = nvml.gpu(3).expect("a GPU");
    let fabric = gpu.fabric().expect("an answer").expect("on switches");
    assert_eq!((fabric.cluster.as_deref(), fabric.clique), (Some(CLUSTER), 7));
    rack.inject(&Fault::Fabric { gpu: 3 }).expect("injected");
    let fabric = gpu.fabric().expect("an answer").expect("on switches");
    assert!(!fabric.is_joined() && fabric.health == FabricHealth::Bad);
}

/// Profile of a machine on a fabric with other machines.
fn in_a_rack(profile: &str) -> MachineProfile {
    let cluster = CLUSTER.to_owned().try_into().expect("a UUID");
    let fabric = Some(windlass_machine::profile::Fabric { cluster, clique: 7 });
    MachineProfile { fabric, ..MachineProfile::named(profile).expect("a shipped profile") }
}

const CLUSTER: &str = "8a3cc1f2-0b1d-4c4e-9d1f-6d0a52f3b7e4";

/// Creates an instance of the named profile at a memory slice.
fn create_instance(gpu: &Gpu, name: &str, start: u32) -> Result<GpuInstance, NvmlError> {
    let profiles = gpu.mig_profiles().expect("profiles");
    let profile = profiles.into_iter().find(|profile| profile.name == name).expect(name);
    let placements = gpu.mig_placements(profile.id).expect("placements");
    let placement =
        placements.into_iter().find(|candidate| candidate.start == start).expect("a placement");
    gpu.create_gpu_instance(profile.id, placement)
}

#[test]
fn gpu_instances_are_created_at_chosen_placements_and_destroyed() {
    let (_folder, machine) = machine("dgx-h100");
    let nvml = Nvml::load(&machine.nvml_library()).expect("loaded");
    let gpu = nvml.gpu(0).expect("a GPU");
    let profiles = gpu.mig_profiles().expect("profiles");
    assert_eq!(gpu.mig_placements(profiles[0].id).expect("an answer while MIG is off").len(), 7);
    let error = gpu.gpu_instances_of(profiles[0].id).expect_err("MIG is off");
    assert!(error.is_unsupported(), "{error}");
    gpu.enable_mig().expect("the mode changes without a reset");

    let names: BTreeSet<_> = profiles.iter().map(|profile| profile.name.as_str()).collect();
    let expected = ["1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"];
    assert_eq!(names, BTreeSet::from(expected));
    let media = create_instance(&gpu, "1g.10gb+me", 6).expect("made");
    let half = create_instance(&gpu, "3g.40gb", 0).expect("made");
    assert!(gpu.disable_mig().expect_err("instances exist").is_in_use());
    let error = create_instance(&gpu, "4g.40gb", 0).expect_err("the slices are occupied");
    assert!(error.is_insufficient_resources(), "{error}");
    assert_eq!(gpu.mig_instances().expect("listed").len(), 0, "there is no compute instance yet");

    let compute = half.create_compute_instance().expect("filled");
    let error = half.create_compute_instance().expect_err("the GPU instance is full");
    assert!(error.is_insufficient_resources(), "{error}");
    let devices = gpu.mig_instances().expect("listed");
    let device = &devices[0].as_ref().expect("an instance").device;
    assert_eq!(device.name().expect("a name"), "NVIDIA H100 80GB HBM3 MIG 3g.40gb");
    assert_eq!(device.gpu_instance_id(), Ok(half.info().expect("an answer").id));
    assert!(device.parent_gpu().expect("an answer") == gpu);
    let error = half.destroy().expect_err("the GPU instance contains a compute instance");
    assert!(error.is_in_use(), "{error}");

    compute.destroy().expect("destroyed");
    half.destroy().expect("destroyed");
    media.destroy().expect("destroyed");
    for profile in &profiles {
        assert_eq!(gpu.gpu_instances_of(profile.id).expect("listed").len(), 0);
    }
    assert!(half.info().expect_err("the GPU instance is destroyed").is_absent());
    gpu.disable_mig().expect("no instance exists");
    assert_eq!(gpu.mig_mode(), Ok(MigMode::Disabled));
}

#[test]
fn an_a30_has_its_own_profiles_and_placements() {
    let (_folder, machine) = machine("mig-pcie");
    let nvml = Nvml::load(&machine.nvml_library()).expect("loaded");
    let gpu = nvml.gpu(2).expect("an A30");
    let placements_by_profile = gpu.mig_profiles().expect("profiles").into_iter().map(|profile| {
        let starts = gpu.mig_placements(profile.id).expect("placements");
        (
            profile.name,
            profile.id,
            starts.iter().map(|placement| placement.start).collect::<Vec<_>>(),
        )
    });
    let expected = [
        ("1g.6gb", 14, vec![0, 1, 2, 3]),
        ("2g.12gb", 5, vec![0, 2]),
        ("4g.24gb", 0, vec![0]),
        ("1g.6gb+me", 21, vec![0, 1, 2, 3]),
        ("2g.12gb+me", 6, vec![0, 2]),
    ];
    let expected = expected.map(|(name, id, starts)| (name.to_owned(), id, starts));
    assert_eq!(placements_by_profile.collect::<Vec<_>>(), expected);
    let ids = [0, 1].map(|start| create_instance(&gpu, "1g.6gb", start).expect("made").info());
    assert_eq!(ids.map(|info| info.expect("an answer").id), [3, 4]);
}
