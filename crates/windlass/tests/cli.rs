//! Command line of the program: output, exit codes and signals.

mod claims;
mod conformance;
mod demo_cluster;
mod input;
mod machines;
mod python;
mod scrub;
mod simulate;
mod soak;
mod stage;
mod stage_work;

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::program::{Node, folder, json_lines, machine, run, text, windlass};
use serde_json::Value;
use windlass_config::Config;
use windlass_migrate::{NvidiaPluginFlags, load, parse};

const USAGE: Option<i32> = Some(64);

#[test]
fn the_demo_reports_every_step_as_json_and_succeeds() {
    for profile in ["dgx-h100", "mig-a100", "t4-edge"] {
        let output = run(&["demo", "--machine", profile, "--output", "json"]);
        assert!(output.status.success(), "{profile}: {}", text(&output.stderr));
        let events = json_lines(&output.stdout);
        let names: Vec<_> = events.iter().filter_map(|event| event["event"].as_str()).collect();
        for expected in [
            "started",
            "discovered",
            "topology",
            "registered",
            "podAdmitted",
            "podRefused",
            "fault",
            "unhealthy",
            "recovered",
            "kubeletRestarted",
            "finished",
        ] {
            assert!(names.contains(&expected), "{profile} reports no {expected}: {names:?}");
        }
        assert_eq!(events[0]["simulated"], true, "the simulation is not labelled");
        let admission =
            events.iter().find(|event| event["event"] == "podAdmitted").expect("reported");
        let alternative = &admission["containers"][0]["alternative"];
        assert_eq!(alternative.is_null(), profile == "t4-edge", "{profile}: {admission}");
    }
}

#[test]
fn the_demo_supports_other_kinds_of_devices_and_cleans_boards_between_pods() {
    let output = run(&["demo", "--machine", "mi300x", "--device", "darwin3-network:2"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let stdout = text(&output.stdout);
    let messages = [
        "darwin3-network  2 devices",
        "pod on-darwin3 admitted",
        "its clock is set to 333 MHz",
        "the devices of on-darwin3 are clean",
        "its chip is reset",
        "pod after-it admitted",
        "0000:e5:00.0 is pulled out of its slot",
        "AMD7 is Unhealthy: vanished",
        "AMD7 is Healthy again",
        "2 resources registered again",
    ];
    let mut remaining_output = stdout.as_str();
    for expected in messages {
        let split = remaining_output.split_once(expected);
        remaining_output = split.unwrap_or_else(|| panic!("no {expected} in order:\n{stdout}")).1;
    }
}

#[test]
fn the_demo_gives_a_container_one_device_of_a_shared_resource() {
    let output = run(&["demo", "--machine", "t4-edge", "--device", "kvm", "--device", "coral-usb"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let stdout = text(&output.stdout);
    assert!(
        stdout.contains("pod on-kvm admitted") && stdout.contains("GPU0 is Healthy again"),
        "{stdout}"
    );
}

#[test]
fn the_demo_offers_the_configured_resources() {
    let folder = folder();
    let file = folder.path().join("w.yaml");
    fs::write(&file, "resources:\n- {name: rdma/mlx, devices: {kind: nic}}\n").expect("written");
    let file = file.to_str().expect("text");
    let output = run(&["demo", "--machine", "rdma", "--config", file]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("rdma/mlx"), "{}", text(&output.stdout));
}

#[test]
fn the_demo_prints_text_and_says_that_it_is_simulated() {
    let output = run(&["demo"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let stdout = text(&output.stdout);
    for expected in [
        "SIMULATED",
        "NV18",
        "why   all 6 pairs NV18 through NVSwitch, NUMA node 0\n",
        "not   GPU4 GPU5 GPU6 GPU7: equal on every term; ties go to the lower index\n",
        "All 12 steps",
    ] {
        assert!(stdout.contains(expected), "{expected} is missing in\n{stdout}");
    }
    assert!(!stdout.contains('\x1b'), "colour without a terminal");
}

#[test]
fn the_demo_is_at_most_120_columns_wide_on_every_kind_of_machine() {
    for profile in ["dgx-h100", "16-gpu", "mig-a100", "t4-edge"] {
        let output = run(&["demo", "--machine", profile]);
        assert!(output.status.success(), "{profile}: {}", text(&output.stderr));
        let stdout = text(&output.stdout);
        let long_line = stdout.lines().find(|line| line.chars().count() > 120);
        assert_eq!(long_line, None, "{profile}");
        assert!(!stdout.contains("\n\n\n"), "two empty lines in a row:\n{stdout}");
        assert!(!stdout.contains(" 1 devices") && !stdout.contains(" 1 resources"), "{stdout}");
    }
}

#[test]
fn a_demo_that_cannot_start_fails_with_the_reason() {
    let output = windlass(&["demo"]).env("WINDLASS_SIM_DRIVER", "/nowhere.so").output();
    let output = output.expect("windlass runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("/nowhere.so"), "{}", text(&output.stderr));
}

#[test]
fn an_invalid_command_line_exits_with_64_and_a_suggestion() {
    for (arguments, expected) in [
        (vec!["demo", "--machine", "dgx-h1000"], "dgx-h100"),
        (vec!["nod"], "node"),
        (vec!["node", "--log-format", "xml"], "json"),
        (vec!["machine", "fault", "/tmp", "xid@3"], "xid:79@3"),
        (vec!["kubelet", "/tmp/k", "--pod", "trainer"], "NAME:RESOURCE=N"),
        (vec!["kubelet", "/tmp/k", "--pod", "t:gpu=-1"], "write a number from 1"),
        (vec!["node", "--log", "windlass=foo=bar"], "has no valid levels: write one level (info)"),
        (vec!["node", "--node-name", "BAD NAME"], "\"BAD NAME\" cannot be the name of a node"),
        (vec!["node", "--listen", ":9400"], "write it like 0.0.0.0:9400 or [::]:9400"),
    ] {
        let output = run(&arguments);
        assert_eq!(output.status.code(), USAGE, "{arguments:?}");
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    }
}

#[test]
fn a_wrong_configuration_is_code_64_with_file_and_line_and_nothing_is_touched() {
    let folder = folder();
    let file = folder.path().join("w.yaml");
    let kubelet = folder.path().join("kubelet");
    fs::write(&file, "deviceList: cdi\nresourses: []\n").expect("written");
    let (file, dir) = (file.display().to_string(), kubelet.display().to_string());
    let output = run(&["node", "--config", &file, "--kubelet-dir", &dir]);
    assert_eq!(output.status.code(), USAGE);
    let stderr = text(&output.stderr);
    assert!(stderr.contains(&format!("{file}:2: unknown field `resourses`")), "{stderr}");
    assert!(!kubelet.exists());
}

#[test]
fn a_path_that_is_no_folder_is_code_64_and_names_its_flag() {
    let folder = folder();
    let file = folder.path().join("file").display().to_string();
    fs::write(&file, "").expect("written");
    let nested_path = format!("{file}/state");
    for (arguments, flag) in [
        (vec!["node", "--host-root", "/nonexistent"], "--host-root"),
        (vec!["devices", "--host-root", "/nonexistent"], "--host-root"),
        (vec!["topo", "--host-root", &file], "--host-root"),
        (vec!["node", "--kubelet-dir", &file], "--kubelet-dir"),
        (vec!["node", "--cdi-dir", &file], "--cdi-dir"),
        (vec!["node", "--state-dir", &file], "--state-dir"),
        (vec!["node", "--state-dir", &nested_path], "--state-dir"),
        (vec!["devices", "--config", "/nonexistent"], "--config"),
        (vec!["devices", "--config", "/dev/zero"], "it is a device, not a regular file"),
    ] {
        let output = run(&arguments);
        assert_eq!(output.status.code(), USAGE, "{arguments:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(flag), "{}", text(&output.stderr));
    }
}

#[test]
fn an_agent_that_cannot_start_says_so_once_in_the_format_of_its_log() {
    let arguments = ["node", "--host-root", "/nonexistent", "--log-format"];
    let cause = "/nonexistent is not a directory";
    let output = run(&[&arguments[..], &["json"]].concat());
    assert_eq!(output.status.code(), USAGE);
    let stderr = text(&output.stderr);
    let event: Value = serde_json::from_str(&stderr).expect("one JSON event and nothing else");
    assert_eq!(event["level"], "ERROR");
    assert!(event["error"].as_str().is_some_and(|error| error.contains(cause)), "{stderr}");
    let text_formats = [&["json", "--log", "off"], &["text"][..]];
    for format in text_formats {
        let output = run(&[&arguments[..], format].concat());
        let stderr = text(&output.stderr);
        assert_eq!(stderr.matches(cause).count(), 1, "{stderr}");
        assert!(stderr.starts_with("windlass: "), "{stderr}");
    }
}

#[test]
fn the_xid_policy_is_printed_as_table_json_and_yaml() {
    let table = text(&run(&["xids"]).stdout);
    let row = table.lines().find(|line| line.starts_with("79 ")).expect("a row for XID 79");
    for expected in
        ["critical", "GPU has fallen off the bus", "restart the machine", "needs a reset"]
    {
        assert!(row.contains(expected), "{row}");
    }
    let policy: Value = serde_json::from_slice(&run(&["xids", "-o", "json"]).stdout).expect("JSON");
    let verdict = |xid: u64| {
        let rows = policy["xids"].as_array().expect("a list");
        rows.iter().find(|row| row["xid"] == xid).map(|row| row["verdict"].clone())
    };
    assert_eq!(verdict(31), Some("application".into()));
    assert_eq!(verdict(63), Some("informational".into()));
    let action =
        policy["xids"].as_array().and_then(|rows| rows.iter().find(|row| row["xid"] == 48));
    assert_eq!(action.map(|row| row["action"].clone()), Some("reset the GPU".into()));
    assert_eq!(policy["unlisted"], "critical");
    assert!(text(&run(&["xids", "-o", "yaml"]).stdout).contains("verdict: critical"));
}

#[test]
fn the_configuration_in_the_readme_is_one_that_is_accepted() {
    let parse = |name: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
        let readme = fs::read_to_string(&path).expect("a text file");
        let block = readme.split_once("```yaml\n").and_then(|(_, rest)| rest.split_once("```"));
        let (yaml, _) = block.unwrap_or_else(|| panic!("{name} has no YAML"));
        Config::parse(&path, yaml).unwrap_or_else(|error| panic!("{error}"))
    };
    assert_eq!(parse("README.md"), parse("README.zh-CN.md"), "the examples differ");
}

const NVIDIA_CONFIG: &str = "version: v1\nflags: {migStrategy: none, failOnInitError: true}\n\
                     sharing:\n  timeSlicing:\n    resources: [{name: nvidia.com/gpu, replicas: 4}]\n";

#[test]
fn configuration_files_are_checked_with_every_mistake_and_its_line() {
    let folder = folder();
    let write = |name: &str, content: &str| {
        let path = folder.path().join(name);
        fs::write(&path, content).expect("written");
        path.display().to_string()
    };
    let (windlass_file, nvidia_file) =
        (write("w.yaml", "mig: both\nkubletDir: /x\n"), write("v1.yaml", NVIDIA_CONFIG));
    let output = run(&["config", "check", &windlass_file, &nvidia_file]);
    assert_eq!(output.status.code(), USAGE);
    let stdout = text(&output.stdout);
    for expected in [
        format!("{windlass_file}:1: \"both\" is not a known value"),
        format!("{windlass_file}:2: unknown field `kubletDir`"),
        format!("{nvidia_file}:2: warning: failOnInitError has no effect"),
        format!("{nvidia_file}: accepted, in the format of NVIDIA's device plugin"),
    ] {
        assert!(stdout.contains(&expected), "{expected} is missing in\n{stdout}");
    }
    assert!(run(&["config", "check", &nvidia_file]).status.success(), "a warning fails the check");
    assert_eq!(run(&["config", "check", "--strict", &nvidia_file]).status.code(), USAGE);
}

#[test]
fn the_configuration_of_nvidias_plugin_is_converted_without_a_change_of_meaning() {
    let folder = folder();
    let path = folder.path().join("v1.yaml");
    fs::write(&path, NVIDIA_CONFIG).expect("written");
    let output = run(&["config", "convert", &path.display().to_string()]);
    let yaml = text(&output.stdout);
    assert!(yaml.contains("# line 2: failOnInitError has no effect"), "{yaml}");
    let no_flags = NvidiaPluginFlags::default();
    let converted = parse(Path::new("w.yaml"), &yaml, &no_flags).expect("valid");
    assert_eq!(converted.config, load(&path, &no_flags).expect("valid").config, "{yaml}");
}

#[test]
fn the_config_map_of_another_plugin_is_checked_and_converted() {
    let folder = folder();
    let path = folder.path().join("map.yaml");
    let map = "apiVersion: v1\nkind: ConfigMap\ndata:\n  config.json: |\n    {\"configList\": [{\n      \
               \"resourceName\": \"hca\", \"rdmaHcaMax\": 9, \"devices\": [\"ib0\"], \"x\": 1}]}\n";
    fs::write(&path, map).expect("written");
    let name = path.display().to_string();
    let stdout = text(&run(&["config", "check", &name]).stdout);
    assert!(stdout.contains(&format!("{name}:6: warning: unknown key `x` is ignored")), "{stdout}");
    let accepted = format!("{name}: accepted, in the format of k8s-rdma-shared-dev-plugin");
    assert!(stdout.contains(&accepted), "{stdout}");
    let yaml = text(&run(&["config", "convert", &name]).stdout);
    assert!(yaml.starts_with("# Converted from "), "{yaml}");
    let no_flags = NvidiaPluginFlags::default();
    let converted = parse(Path::new("w.yaml"), &yaml, &no_flags).expect("valid");
    assert_eq!(converted.config, load(&path, &no_flags).expect("valid").config, "{yaml}");
}

#[test]
fn device_profiles_are_listed_and_printed_and_an_unknown_name_lists_them() {
    let list = text(&run(&["config", "profiles"]).stdout);
    assert!(list.starts_with("PROFILE"), "{list}");
    assert!(list.contains("hailo.ai/h8"), "{list}");
    let kvm = text(&run(&["config", "profiles", "kvm"]).stdout);
    assert!(kvm.contains("# A pod needs"), "the comment is missing: {kvm}");
    assert!(kvm.contains("find: {nodes: /dev/kvm}"), "{kvm}");
    let profiles = run(&["config", "profiles", "-o", "json"]).stdout;
    let profiles: Value = serde_json::from_slice(&profiles).expect("JSON");
    let first_profile = &profiles[0];
    assert_eq!(
        (&first_profile["name"], &first_profile["resource"]),
        (&"darwin3-files".into(), &"zj.com/darwin3".into())
    );
    let output = run(&["config", "profiles", "hailo9"]);
    assert_eq!(output.status.code(), USAGE);
    assert!(text(&output.stderr).contains("known: darwin3-files"), "{}", text(&output.stderr));
}

#[test]
fn the_schema_of_the_configuration_is_printed() {
    let schema: Value = serde_json::from_slice(&run(&["config", "schema"]).stdout).expect("JSON");
    assert!(schema["properties"]["mig"]["description"].is_string());
}

#[test]
fn flags_and_variables_of_nvidias_plugin_are_validated() {
    let help = text(&run(&["node", "--help"]).stdout);
    for flag in ["As NVIDIA's device plugin", "MIG_STRATEGY", "--imex-channel-ids", "No effect"] {
        assert!(help.contains(flag), "{flag} is missing in\n{help}");
    }
    // All flags except the host root are valid. The agent checks the host root last.
    let mut command = windlass(&["node", "--host-root", "/nonexistent", "--pass-device-specs"]);
    command.args(["--nvidia-driver-root=/d", "--device-id-strategy=index", "--mofed-enabled=true"]);
    command.env("MIG_STRATEGY", "single").env("DEVICE_LIST_STRATEGY", "envvar,cdi-cri");
    command.env("FAIL_ON_INIT_ERROR", "false").env("DP_DISABLE_HEALTHCHECKS", "xids,79");
    let stderr = text(&command.output().expect("windlass runs").stderr);
    assert!(stderr.contains("/nonexistent is not a directory"), "{stderr}");
    for (arguments, expected) in [
        (["--mig-strategy", "both"], "single"),
        (["--imex-channel-ids", "2048"], "2048"),
        (["--kubelet-socket", "/x"], "device-plugins/kubelet.sock"),
        (["--device-list-strategy", "csv"], "volume-mounts"),
        (["--disable-healthchecks", "79;80"], "is not an XID"),
    ] {
        let output = run(&[&["node"], &arguments[..]].concat());
        assert_eq!(output.status.code(), USAGE, "{arguments:?}");
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    }
}

#[test]
fn a_changed_configuration_is_reloaded_and_an_invalid_one_is_reported() {
    let folder = folder();
    let config = folder.path().join("w.yaml");
    fs::write(&config, "mig: mixed\n").expect("written");
    let mut flags = machine(&folder, "t4-edge");
    flags.extend(["--config".to_owned(), config.display().to_string()]);
    let mut node = Node::start(&folder, &flags);
    node.wait_for_message("windlass node started");
    fs::write(&config, "mig: both\n").expect("written");
    let event = node.wait_for_message("configuration invalid, keeping the last valid one");
    assert!(event["error"].as_str().is_some_and(|error| error.contains("w.yaml:1: ")), "{event}");
    fs::write(&config, "mig: single\n").expect("written");
    node.wait_for_message("configuration reloaded");
    node.signal("HUP");
    node.wait_for_message("reloading the configuration");
    node.signal("TERM");
    assert!(node.wait().success());
}

#[test]
fn help_and_version_exit_with_success() {
    for arguments in [vec!["--help"], vec!["node", "--help"], vec!["--version"]] {
        assert!(run(&arguments).status.success(), "{arguments:?}");
    }
}

#[test]
fn the_version_command_prints_the_same_as_the_flag() {
    let [flag, command] = ["--version", "version"].map(|argument| text(&run(&[argument]).stdout));
    assert!(flag.contains("\nfeatures: ") && flag == command, "{command}");
}

#[test]
fn completions_of_each_shell_have_every_command() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = text(&run(&["completions", shell]).stdout);
        for command in ["devices", "extend", "completions"] {
            assert!(script.contains(command), "{shell} completes no {command}");
        }
    }
    // Run the script in bash, and let bash complete a word.
    let words = "source /dev/stdin; COMP_WORDS=(windlass dev); COMP_CWORD=1; \
                 _windlass windlass dev windlass; echo \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash");
    let bash = bash.args(["-c", words]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut bash = bash.spawn().expect("bash runs");
    let script = run(&["completions", "bash"]).stdout;
    bash.stdin.take().expect("piped").write_all(&script).expect("read");
    let output = bash.wait_with_output().expect("a child");
    assert_eq!(text(&output.stdout).trim(), "devices", "{}", text(&output.stderr));
}

#[test]
fn help_explains_placeholders_and_groups_flags() {
    let conformance = text(&run(&["conformance", "--help"]).stdout);
    for placeholder in ["{kubelet}", "{scratch}", "{kubeconfig}", "{node}", "DRA driver"] {
        assert!(conformance.contains(placeholder), "{placeholder} is missing in\n{conformance}");
    }
    let node = text(&run(&["node", "--help"]).stdout);
    for heading in
        ["Host:", "Kubelet and container runtime:", "API server:", "Logging:", "Examples:"]
    {
        assert!(node.lines().any(|line| line == heading), "{heading} is missing in\n{node}");
    }
    let ungrouped_flags = node.split("\nHost:\n").next().expect("text");
    assert!(
        ungrouped_flags.contains("--take-over") && !ungrouped_flags.contains("--host-root"),
        "{ungrouped_flags}"
    );
}

#[test]
fn a_closed_stdout_pipe_is_a_success() {
    let mut command = windlass(&["machine", "list"]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("windlass runs");
    drop(child.stdout.take());
    assert!(child.wait().expect("a child").success());
}

#[test]
fn labels_are_printed_as_table_json_and_nfd_file() {
    let folder = folder();
    let flags = machine(&folder, "mig-a100");
    let labels = |output: &str| {
        let mut command = windlass(&["labels", "--output", output]);
        let output = command.args(&flags).output().expect("windlass runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let table = labels("table");
    assert!(table.starts_with("SIMULATED machine mig-a100"), "{table}");
    assert!(table.contains("nvidia.com/cuda.driver-version.full"), "{table}");
    let file = labels("nfd");
    assert!(file.lines().all(|line| line.split('=').count() == 2), "{file}");
    let document: Value = serde_json::from_str(&labels("json")).expect("JSON");
    let labels = document.as_object().expect("an object");
    assert_eq!(labels.len(), file.lines().count());
    assert_eq!(labels["nvidia.com/cuda.driver-version.full"], "550.163.01");
    assert_eq!(labels["windlass.dev/simulated"], "mig-a100");
}

#[test]
fn devices_and_topology_are_printed_as_tables_and_as_json() {
    let folder = folder();
    let host = machine(&folder, "dgx-h100");
    let host: Vec<&str> = host.iter().map(String::as_str).collect();
    let query = |words: &[&str]| {
        let output = run(&[words, &host[..]].concat());
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let table = query(&["devices"]);
    assert!(table.starts_with("SIMULATED machine dgx-h100"), "{table}");
    let devices: Value = serde_json::from_str(&query(&["devices", "-o", "json"])).expect("JSON");
    let gpu = &devices["devices"][0];
    assert_eq!(gpu["attributes"]["nvidia.com/productName"]["string"], "NVIDIA H100 80GB HBM3");
    assert_eq!(gpu["attributes"]["resource.kubernetes.io/pcieRoot"]["string"], "pci0000:15");
    assert_eq!(gpu["capacity"]["nvidia.com/memory"]["value"], "81559Mi");
    assert!(query(&["devices", "-o", "yaml"]).contains("nvidia.com/productName"));
    let topology: Value = serde_json::from_str(&query(&["topo", "-o", "json"])).expect("JSON");
    assert_eq!(topology["connections"][0][7], "NV18");
    assert_eq!(topology["connections"][0][8], "PIX", "the NIC next to the first GPU");
}

#[test]
fn every_mig_instance_has_a_unique_name() {
    let folder = folder();
    let host = machine(&folder, "mig-a100");
    let host: Vec<&str> = host.iter().map(String::as_str).collect();
    let table = text(&run(&[&["devices"], &host[..]].concat()).stdout);
    let rows = table.lines().skip_while(|line| !line.starts_with("NAME")).skip(1);
    let names: Vec<_> = rows.filter_map(|line| line.split_whitespace().next()).collect();
    let unique: BTreeSet<_> = names.iter().collect();
    assert_eq!(unique.len(), names.len(), "{table}");
    assert!(names.contains(&"GPU0:6"), "{table}");
    assert!(table.contains("A100-SXM4-40GB MIG 1g.5gb"), "{table}");
}

#[test]
fn a_host_without_a_driver_has_no_devices_and_succeeds() {
    let folder = folder();
    let root = folder.path().display().to_string();
    let library = folder.path().join("none.so").display().to_string();
    let output = run(&["devices", "--host-root", &root, "--nvml-library", &library]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("none: cannot load"), "{}", text(&output.stdout));
}

#[test]
fn the_agent_starts_without_a_kubelet_and_ends_gracefully_at_sigterm() {
    let folder = folder();
    let host = machine(&folder, "t4-edge");
    let mut node = Node::start_before_the_kubelet(&folder, &host);
    let event = node.wait_for_message(
        "the kubelet has no such folder, waiting for it: is the kubelet running? --kubelet-dir names another",
    );
    assert_eq!(event["level"], "WARN");
    assert!(!folder.path().join("kubelet").exists(), "only the kubelet may create its folder");
    fs::create_dir(folder.path().join("kubelet")).expect("created");
    node.wait_for_message("serving");
    let event = node.wait_for_message(
        "no kubelet to register with, waiting for its socket: is the kubelet running? --kubelet-dir names \
         another folder",
    );
    let kubelet = folder.path().join("kubelet/device-plugins/kubelet.sock").display().to_string();
    assert_eq!(event["socket"], kubelet.as_str());
    let socket = folder.path().join("kubelet/device-plugins/windlass-nvidia.com_gpu.sock");
    assert!(socket.exists());
    node.signal("TERM");
    assert_eq!(node.wait().code(), Some(0), "{:?}", node.log_lines);
    assert!(!socket.exists());
}

#[test]
fn a_second_agent_is_refused_and_the_first_keeps_serving() {
    let folder = folder();
    let host = machine(&folder, "t4-edge");
    let mut first_agent = Node::start(&folder, &host);
    first_agent.wait_for_message("serving");
    let mut second_agent = Node::start(&folder, &host);
    assert_eq!(second_agent.wait().code(), Some(1));
    first_agent.signal("TERM");
    assert_eq!(first_agent.wait().code(), Some(0));
}

#[test]
fn an_agent_with_the_take_over_variable_stands_by_and_then_serves() {
    let folder = folder();
    let host = machine(&folder, "t4-edge");
    let mut first_agent = Node::start(&folder, &host);
    first_agent.wait_for_message("serving");
    let mut second_agent = Node::start_with(&folder, &host, &[("WINDLASS_TAKE_OVER", "true")]);
    second_agent.wait_for_message("another agent serves: standing by until it ends");
    first_agent.signal("TERM");
    assert_eq!(first_agent.wait().code(), Some(0));
    second_agent.wait_for_message("serving");
    second_agent.signal("TERM");
    assert_eq!(second_agent.wait().code(), Some(0));
}

#[test]
fn a_missing_driver_is_logged_once_and_used_once_it_is_installed() {
    let folder = folder();
    let host = machine(&folder, "t4-edge");
    let library = PathBuf::from(&host[3]);
    let moved_library = library.with_extension("away");
    fs::rename(&library, &moved_library).expect("moved");
    let config = folder.path().join("w.yaml");
    fs::write(&config, "health: {probeInterval: 50ms}\n").expect("written");
    let flags = [&host[..], &["--config".to_owned(), config.display().to_string()]].concat();
    let mut node = Node::start(&folder, &flags);
    node.wait_for_message("no NVIDIA driver: GPUs appear once it is installed");
    fs::rename(&moved_library, &library).expect("moved back");
    node.wait_for_message("serving");
    let warnings = node.log_lines.iter().filter(|line| line.contains("no NVIDIA driver")).count();
    assert_eq!(warnings, 1, "{:#?}", node.log_lines);
    node.signal("INT");
    assert_eq!(node.wait().code(), Some(0));
}

#[test]
fn the_embedded_kubelet_admits_pods_of_a_plugin_that_registers_with_it() {
    let folder = folder();
    let host = machine(&folder, "dgx-h100");
    let dir = folder.path().join("kubelet");
    let mut command = windlass(&["kubelet", &dir.display().to_string()]);
    command.args(["--pod", "first:nvidia.com/gpu=4"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut kubelet = command.spawn().expect("windlass runs");
    let mut stdin = kubelet.stdin.take().expect("piped");
    let mut stdout_lines = BufReader::new(kubelet.stdout.take().expect("piped")).lines();
    let mut node = Node::start(&folder, &host);
    node.wait_for_message("registered, the kubelet reads the device list");
    let mut wait_for_line = |expected: &str| {
        let mut lines = stdout_lines.by_ref().map(|line| line.expect("text"));
        assert!(lines.any(|line| line.contains(expected)), "{expected} was not shown");
    };
    wait_for_line("pod first admitted");
    writeln!(stdin, "run second nvidia.com/gpu=5").expect("write stdin");
    wait_for_line("Requested: 5, Available: 4");
    writeln!(stdin, "delete first\nrun second nvidia.com/gpu=5\nnonsense\nquit")
        .expect("write stdin");
    wait_for_line("pod second admitted");
    wait_for_line("unknown command: nonsense");
    assert!(kubelet.wait().expect("a child").success());
    assert!(Path::new(&dir).join("device-plugins/kubelet_internal_checkpoint").exists());
}

#[test]
fn the_embedded_kubelet_leaves_a_real_kubelets_folder_alone() {
    let folder = folder();
    let dir = folder.path().join("kubelet");
    let plugins = dir.join("device-plugins");
    fs::create_dir_all(&plugins).expect("created");
    let check_refusal = |expected: &str| {
        let output = run(&["kubelet", &dir.display().to_string()]);
        assert_eq!(output.status.code(), USAGE, "{}", text(&output.stderr));
        let stderr = text(&output.stderr);
        assert!(stderr.contains(expected) && stderr.contains("name an empty folder"), "{stderr}");
        let entry_count = fs::read_dir(&dir).expect("readable").count();
        assert_eq!(entry_count, 1, "a file was added beside device-plugins");
    };

    let socket = plugins.join("kubelet.sock");
    let kubelet = UnixListener::bind(&socket).expect("bound");
    check_refusal("a kubelet answers on");
    drop(kubelet);

    let (checkpoint, plugin) =
        (plugins.join("kubelet_internal_checkpoint"), plugins.join("some-plugin.sock"));
    fs::write(&checkpoint, "precious").expect("written");
    let _plugin = UnixListener::bind(&plugin).expect("bound");
    check_refusal("kubelet_internal_checkpoint");
    assert!(plugin.exists() && socket.exists());
    assert_eq!(fs::read_to_string(&checkpoint).expect("there"), "precious");
}

#[test]
fn the_embedded_kubelet_reuses_its_own_folder() {
    let folder = folder();
    let dir = folder.path().join("kubelet");
    for _ in 0..2 {
        let mut command = windlass(&["kubelet", &dir.display().to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let mut kubelet = command.spawn().expect("windlass runs");
        writeln!(kubelet.stdin.take().expect("piped"), "quit").expect("write stdin");
        assert!(kubelet.wait().expect("a child").success());
        let checkpoint = dir.join("device-plugins/kubelet_internal_checkpoint");
        fs::write(checkpoint, "{}").expect("written");
    }
}

#[test]
fn empty_variables_are_ignored_and_variables_of_nvidias_plugin_apply_to_commands() {
    let folder = folder();
    let host = machine(&folder, "mig-a100");
    let devices = |variables: &[(&str, &str)]| {
        let mut command = windlass(&["devices", "-o", "json"]);
        let output = command.args(&host).envs(variables.iter().copied()).output().expect("runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let offerings = document["offerings"].as_object().expect("offerings").clone();
        let names = offerings.values().filter_map(|offering| offering["resource"].as_str());
        names.map(str::to_owned).collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(devices(&[("MIG_STRATEGY", ""), ("CONFIG_FILE", "")]).len(), 4, "by profile");
    assert_eq!(devices(&[("MIG_STRATEGY", "none")]), ["nvidia.com/gpu".to_owned()].into());
    assert_eq!(devices(&[("PASS_DEVICE_SPECS", "false")]).len(), 1, "as NVIDIA's plugin does");
}

#[test]
fn a_resource_without_devices_is_reported() {
    let folder = folder();
    let host = machine(&folder, "t4-edge");
    let config = folder.path().join("w.yaml");
    let rule = "resources:\n- {name: a.com/x, devices: {kind: mig, profiles: [1g.5gb]}}\n";
    fs::write(&config, rule).expect("written");
    let mut command = windlass(&["devices", "--config", &config.display().to_string()]);
    let output = command.args(host).output().expect("runs");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let message = "a.com/x has no device on this node: this node has no device of kind mig";
    assert!(stdout.contains(message), "{stdout}");
}
