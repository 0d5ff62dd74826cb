//! `windlass explain`: hypothetical questions, questions about this node, and recorded choices.

use std::{
    fs,
    io::{BufRead as _, BufReader, Lines, Write as _},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use crate::program::{Node, folder, machine, run, text, windlass};
use serde_json::Value;
use tempfile::TempDir;

/// Explanation of a request on a simulated machine, as text.
fn answer_text(machine: &str, flags: &str) -> String {
    let output = explain(machine, flags);
    assert!(output.status.success(), "{flags}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn explain(machine: &str, flags: &str) -> std::process::Output {
    let flags: Vec<_> = flags.split_whitespace().collect();
    run(&[&["explain", "--machine", machine], &flags[..]].concat())
}

fn document(machine: &str, flags: &str) -> Value {
    let text = answer_text(machine, &format!("{flags} -o json"));
    serde_json::from_str(&text).expect("JSON")
}

/// Names of the chosen devices.
fn chosen_names(document: &Value) -> Vec<&str> {
    let ids = document["explanation"]["choice"]["devices"].as_array().expect("devices");
    let name = |id: &Value| document["names"][id.as_str().expect("an id")].as_str();
    ids.iter().filter_map(name).collect()
}

#[test]
fn an_answer_has_the_choice_the_alternative_and_the_deciding_term() {
    let answer = answer_text("dgx-a100", "--free 0,1,2,5 --size 2");
    for expected in [
        "SIMULATED machine dgx-a100\n\n2 of nvidia.com/gpu, aligned\n  free         GPU0 GPU1 GPU2 GPU5\n",
        "  chosen       GPU0 GPU1: the pair over NV12 through NVSwitch, NUMA node 3\n",
        "  alternative  GPU2 GPU5: the pair over NV12 through NVSwitch, NUMA nodes 1 and 7\n",
        "  why not      less in PCIe inside the set: 10 against 50\n",
        "  exact        no set is better; ",
        "  PCIe inside the set           50      10           decides\n",
        "  GPU5  NV12  NV12  NV12  X     7\n",
    ] {
        assert!(answer.contains(expected), "{expected} is missing in\n{answer}");
    }
    assert!(!answer.contains('\x1b'), "colour without a terminal");
}

#[test]
fn the_program_file_suffices_for_a_simulated_machine() {
    // On the same file system, so that a hard link serves as a copy.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary folder");
    let program = folder.path().join("windlass");
    fs::hard_link(env!("CARGO_BIN_EXE_windlass"), &program).expect("linked");
    let mut command = Command::new(&program);
    command.args(["explain", "--machine", "t4-edge", "--size", "1"]);
    let output = command.env_remove("WINDLASS_SIM_DRIVER").output().expect("windlass runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("1 of nvidia.com/gpu"), "{}", text(&output.stdout));
}

#[test]
fn json_has_the_question_and_the_explanation() {
    let explanation = document("dgx-a100", "--free 0,1,2,5 --size 2");
    assert_eq!(explanation["simulated"], "dgx-a100");
    assert_eq!(explanation["question"]["policy"], "aligned");
    assert_eq!(explanation["question"]["devices"]["available"].as_array().expect("ids").len(), 4);
    assert_eq!(chosen_names(&explanation), ["GPU0", "GPU1"]);
    assert_eq!(explanation["explanation"]["choice"]["exact"], true);
    assert_eq!(explanation["explanation"]["alternative"]["lostBy"], "pcie");
    assert_eq!(explanation["verdict"], "less in PCIe inside the set: 10 against 50");
    assert!(answer_text("dgx-a100", "--size 2 -o yaml").contains("lostBy: "));
}

#[test]
fn the_documented_answer_is_current() {
    let page = include_str!("../../../docs/placement.md");
    let example = page.split("```\n$ windlass explain ").nth(1).expect("an example");
    let (question, answer_and_rest) = example.split_once('\n').expect("more lines");
    let (answer, _) = answer_and_rest.split_once("```").expect("an end");
    let output =
        run(&[&["explain"], &question.split_whitespace().collect::<Vec<_>>()[..]].concat());
    assert_eq!(text(&output.stdout), answer);
}

#[test]
fn devices_are_named_by_number_range_name_and_id() {
    let whole_machine = document("dgx-h100", "--size 1");
    let id = whole_machine["question"]["devices"]["available"][6].as_str().expect("an id");
    let flags = format!("--free 0-2,gpu4,GPU5,{id} --require 2 --near NIC7,mlx5_0,NIC7 --size 3");
    let explanation = document("dgx-h100", &flags);
    let names = explanation["names"].as_object().expect("names").values();
    let mut names: Vec<_> = names.filter_map(Value::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["GPU0", "GPU1", "GPU2", "GPU4", "GPU5", "GPU6", "mlx5_0", "mlx5_7"]);
    assert_eq!(chosen_names(&explanation), ["GPU0", "GPU1", "GPU2"]);
    // A GPU stands for its instances if the resource offers instances.
    let mig_flags = "--resource nvidia.com/mig-1g.5gb --size 2";
    assert_eq!(
        chosen_names(&document("mig-a100", &format!("{mig_flags} --free 0"))),
        ["GPU0:0", "GPU0:1"]
    );
    let mig_explanation = document("mig-a100", &format!("{mig_flags} --free 0/3,0:5,GPU1"));
    assert_eq!(chosen_names(&mig_explanation), ["GPU0:3", "GPU0:5"]);
}

#[test]
fn each_policy_can_be_tried() {
    for (policy, free, expected) in [
        ("aligned", "0,3-5", ["GPU4", "GPU5"]),
        ("packed", "0,2,4-7", ["GPU0", "GPU2"]),
        ("distributed", "0,3-5", ["GPU0", "GPU4"]),
        ("numa-strict", "0,3-5", ["GPU4", "GPU5"]),
        ("first", "0,3-5", ["GPU0", "GPU3"]),
    ] {
        let flags = format!("--free {free} --size 2 --policy {policy}");
        let explanation = document("l40s-pcie", &flags);
        assert_eq!(chosen_names(&explanation), expected, "{policy}");
        assert_eq!(explanation["question"]["policy"], policy);
    }
}

#[test]
fn an_invalid_request_exits_with_64_and_lists_valid_names() {
    for (machine, flags, expected) in [
        ("dgx-h100", "", "--size <N>"),
        ("dgx-h100", "--size 0", "write a number of devices, from 1"),
        ("dgx-h100", "--size 2 --past", "cannot be used with"),
        ("dgx-h100", "--size 2 --policy best", "aligned, packed, distributed, numa-strict, first"),
        ("dgx-h100", "--size 2 --free 0-8", "is named \"GPU8\"; there are GPU0 GPU1"),
        ("dgx-h100", "--size 2 --near mlx5_9", "is named \"mlx5_9\"; there are GPU0 GPU1"),
        ("dgx-h100", "--size 2 --require 1::0", "GPU1 has 0 replicas in nvidia.com/gpu"),
        (
            "dgx-h100",
            "--size 2 --resource a.com/x",
            "unknown resource a.com/x; offered: nvidia.com/gpu",
        ),
        ("dgx-h100", "--size 2 --resource gpu", "write it like nvidia.com/gpu"),
        ("mig-a100", "--size 2 --free 0", "no device of nvidia.com/gpu is named \"GPU0\""),
        ("dgx-h100", "--size -1", "'-1' for '--size <N>': write a number of devices, from 1"),
        (
            "dgx-h100",
            "--size 2 --host-root /",
            "--host-root belongs to this host and cannot be used with",
        ),
        (
            "dgx-h100",
            "--size 2 --state-dir /",
            "--state-dir belongs to this host and cannot be used with",
        ),
        ("atari", "--size 2", "dgx-h100"),
    ] {
        let output = explain(machine, flags);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{flags}: {stderr}");
        assert!(stderr.contains(expected), "{flags}: {expected} is missing in\n{stderr}");
        assert!(output.stdout.is_empty(), "{flags}: {}", text(&output.stdout));
    }
    assert!(text(&run(&["explain", "--pod", "a/b/c"]).stderr).contains("write a pod's name"));
}

#[test]
fn a_refused_request_exits_with_1_and_the_numbers() {
    for (flags, expected) in [
        ("--size 9", "9 devices requested, 8 available"),
        ("--size 5 --policy numa-strict", "no node has more than 4 available"),
        ("--size 1 --require 0,1", "2 devices are required in a choice of 1"),
        (
            "--size 2 --free 0-3 --require 1,5",
            "GPU5 is required and not free: --free does not name it",
        ),
        (
            "--size 1 --nics 1 --free 0,mlx5_1 --require mlx5_0",
            "mlx5_0 is required and not free: --free",
        ),
    ] {
        let output = explain("l40s-pcie", flags);
        assert_eq!(output.status.code(), Some(1), "{flags}");
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
        assert!(text(&output.stdout).contains("free         GPU0"), "{}", text(&output.stdout));
    }
    let stdout = text(&explain("t4-edge", "--size 1 --nics 1").stdout);
    assert!(stdout.contains("free NICs    none\n"), "{stdout}");
    let output = explain("l40s-pcie", "--size 2 --free 0-3 --require 5 -o json");
    let explanation: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let id = explanation["question"]["devices"]["required"][0].as_str().expect("an id");
    assert_eq!(explanation["names"][id], "GPU5");
    let output = explain("l40s-pcie", "--size 9 -o json");
    let explanation: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(explanation["refused"], "9 devices requested, 8 available");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn gpus_and_nics_are_chosen_together_and_each_pair_has_its_level() {
    let answer = answer_text("l40s-pcie", "--free 0,2-5 --size 3 --nics 1");
    for expected in [
        "note: --free names no NIC, so all healthy NICs are free\n",
        "3 of nvidia.com/gpu and 1 NIC\n  free         GPU0 GPU2 GPU3 GPU4 GPU5\n  \
         free NICs    mlx5_0 mlx5_1\n",
        "  chosen       GPU0 GPU2 GPU3: pairs 2 x NODE, 1 x PIX, NUMA node 0\n               mlx5_0\n",
        "  exact        no choice is better; ",
        "  GPU   NIC     OVER\n  GPU0  mlx5_0  PIX\n  GPU2  mlx5_0  NODE\n  GPU3  mlx5_0  NODE\n",
        "  pairs over NODE                    2\n",
        "  mlx5_0  PIX   NODE  NODE  X       0\n",
    ] {
        assert!(answer.contains(expected), "{expected} is missing in\n{answer}");
    }
    let explanation = document("dgx-a100", "--size 2 --nics 2 --require 3 --within pix");
    let pairs = explanation["choice"]["pairs"].as_array().expect("pairs").iter();
    let name = |id: &Value| explanation["names"][id.as_str().expect("an id")].clone();
    let pairs: Vec<_> = pairs.map(|pair| [name(&pair["gpu"]), name(&pair["nic"])]).collect();
    assert_eq!(pairs, [["GPU2", "mlx5_2"], ["GPU3", "mlx5_3"]]);
    assert_eq!(explanation["question"]["within"], "PIX");
    let answer = answer_text(
        "l40s-pcie",
        "--free 0,2-5,NIC1 --size 1 --nics 1 --within PHB --require mlx5_1",
    );
    assert!(answer.contains("free NICs    mlx5_1\n  required     mlx5_1\n"), "{answer}");
    assert!(!answer.contains("note: "), "{answer}");
}

#[test]
fn an_impossible_level_is_refused_with_the_nearest_possible_one() {
    let output = explain("l40s-pcie", "--size 6 --nics 2 --within pix");
    assert_eq!(output.status.code(), Some(1));
    let expected = "6 GPUs and 2 NICs requested, paired within PIX; the nearest possible \
                    level is NODE";
    assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("free NICs    mlx5_0"), "{}", text(&output.stdout));
    let output = explain("t4-edge", "--size 1 --nics 1");
    let expected = "NICs: 1 devices requested, 0 available";
    assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    for (flags, expected) in [
        ("--size 1 --within pix", "--nics <N>"),
        ("--size 1 --nics 1 --within near", "[possible values: pix, pxb, phb, node, sys]"),
        ("--size 1 --nics 1 --near mlx5_0", "cannot be used with"),
        ("--size 1 --nics 1 --policy first", "cannot be used with"),
        ("--size 1 --nics 0", "write a number of devices, from 1"),
        ("--size 1 --nics 1 --free mlx5_0", "--free: no GPU is named"),
    ] {
        let output = explain("l40s-pcie", flags);
        assert_eq!(output.status.code(), Some(64), "{flags}");
        assert!(text(&output.stderr).contains(expected), "{flags}: {}", text(&output.stderr));
    }
}

#[test]
fn a_question_about_nics_cannot_add_nics() {
    let folder = folder();
    let path = folder.path().join("nics.yaml");
    fs::write(&path, "resources:\n- name: example.com/rdma\n  devices: {kind: nic}\n")
        .expect("written");
    let flags = format!("--config {} --resource example.com/rdma --size 2", path.display());
    assert_eq!(chosen_names(&document("l40s-pcie", &flags)), ["mlx5_0", "mlx5_1"]);
    let output = explain("l40s-pcie", &format!("{flags} --nics 1"));
    assert_eq!(output.status.code(), Some(64));
    let expected = "--nics: example.com/rdma consists of NICs; use --size alone";
    assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
}

#[test]
fn variables_of_this_host_are_ignored_with_another_machine() {
    let mut command = windlass(&["explain", "--machine", "t4-edge", "--size", "1"]);
    let output = command.env("WINDLASS_HOST_ROOT", "/").env("WINDLASS_STATE_DIR", "/").output();
    let output = output.expect("windlass runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn replicas_of_shared_devices_are_listed_by_device() {
    let folder = folder();
    let config = write_shared_config(&folder);
    let flags = format!("--config {config} --size 3 --free 0,1::2,2-3 --require 1::2");
    let answer = answer_text("dgx-h100", &flags);
    for expected in [
        "3 of nvidia.com/gpu, distributed\n  required     GPU1::2\n",
        "  chosen       1 of GPU0, 1 of GPU1, 1 of GPU2: all 3 pairs NV18 through NVSwitch, NUMA node 0\n",
        "  next         GPU3 would give one more\n",
        "  GPU1    3       1     1\n",
        "  GPU7    4       0     0\n",
    ] {
        assert!(answer.contains(expected), "{expected} is missing in\n{answer}");
    }
    let near_answer = answer_text("dgx-h100", &format!("--config {config} --size 1 --near mlx5_3"));
    for expected in ["  near         mlx5_3\n", "  chosen       1 of GPU3: "] {
        assert!(near_answer.contains(expected), "{expected} is missing in\n{near_answer}");
    }
    let explanation = document("dgx-h100", &format!("--config {config} --size 5 --policy packed"));
    let replicas = explanation["explanation"]["choice"]["replicas"].as_array().expect("replicas");
    assert_eq!(replicas.len(), 5);
    for (flags, expected) in [
        ("--require 1", "name a replica of GPU1, such as GPU1::0"),
        ("--free 1::4", "GPU1 has 4 replicas in nvidia.com/gpu"),
        ("--nics 1", "--nics: nvidia.com/gpu is shared, and replicas cannot be paired with NICs"),
    ] {
        let output = explain("dgx-h100", &format!("--config {config} --size 1 {flags}"));
        assert_eq!(output.status.code(), Some(64), "{flags}");
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    }
}

fn write_shared_config(folder: &TempDir) -> String {
    let rule = "resources:\n\
                - name: nvidia.com/gpu\n  devices: {kind: gpu}\n  \
                sharing: {method: timeSlicing, replicas: 4}\n";
    let path = folder.path().join("shared.yaml");
    fs::write(&path, rule).expect("written");
    path.display().to_string()
}

/// An embedded kubelet in a folder; killed when dropped.
struct Kubelet {
    child: Child,
    stdin: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Kubelet {
    /// Starts a kubelet with a pod, which it admits once the pod's devices are registered.
    fn start(folder: &TempDir, pod: &str) -> Self {
        let dir = folder.path().join("kubelet").display().to_string();
        let mut command = windlass(&["kubelet", &dir, "--pod", pod]);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("windlass runs");
        let stdin = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped")).lines();
        Self { child, stdin, output }
    }

    fn send(&mut self, command: &str) {
        writeln!(self.stdin, "{command}").expect("written");
    }

    fn wait_for_line(&mut self, expected: &str) {
        let mut lines = self.output.by_ref().map(|line| line.expect("text"));
        assert!(lines.any(|line| line.contains(expected)), "{expected} was not shown");
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Flags that select the folders of this node.
fn node_flags(folder: &TempDir, host: &[String]) -> Vec<String> {
    let path = |name: &str| folder.path().join(name).display().to_string();
    let folders = ["--kubelet-dir".into(), path("kubelet"), "--state-dir".into(), path("state")];
    [host, &folders].concat()
}

/// Starts a kubelet and an agent, with a pod of four GPUs.
fn start_trainer(folder: &TempDir, host: &[String]) -> (Kubelet, Node) {
    let mut kubelet = Kubelet::start(folder, "trainer:nvidia.com/gpu=4");
    let node = Node::start(folder, host);
    kubelet.wait_for_line("pod trainer admitted");
    (kubelet, node)
}

fn explain_on_node(flags: &[String], question: &str) -> std::process::Output {
    let question: Vec<_> = question.split_whitespace().collect();
    windlass(&["explain"]).args(question).args(flags).output().expect("windlass runs")
}

#[test]
fn without_a_kubelet_all_healthy_devices_are_free_with_a_note() {
    let folder = folder();
    let host = machine(&folder, "t4-edge");
    let output = explain_on_node(&node_flags(&folder, &host), "--size 1");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let stdout = text(&output.stdout);
    assert!(stdout.contains("note: holders unknown"), "{stdout}");
    assert!(stdout.contains("pod-resources/kubelet.sock"), "{stdout}");
    assert!(stdout.contains("free         GPU0"), "{stdout}");
    let stderr = text(&explain_on_node(&node_flags(&folder, &host), "--pod web").stderr);
    assert!(stderr.contains("--kubelet-dir"), "{stderr}");
    assert_eq!(stderr.matches("No such file").count(), 1, "{stderr}");
}

#[test]
fn allocated_and_failed_devices_are_not_free() {
    let folder = folder();
    let host = machine(&folder, "dgx-h100");
    let flags = node_flags(&folder, &host);
    let (mut kubelet, mut node) = start_trainer(&folder, &host);
    let dir = folder.path().join("machine").display().to_string();
    assert!(run(&["machine", "fault", &dir, "xid:79@7"]).status.success());
    kubelet.wait_for_line("8 devices, 7 healthy");
    let output = explain_on_node(&flags, "--size 2");
    let stdout = text(&output.stdout);
    for expected in [
        "free         GPU4 GPU5 GPU6\n",
        "not free     GPU0 GPU1 GPU2 GPU3: held by default/trainer\n",
        "GPU7: XID 79, GPU has fallen off the bus\n",
        "chosen       GPU4 GPU5: the pair over NV18 through NVSwitch, NUMA node 1\n",
    ] {
        assert!(stdout.contains(expected), "{expected} is missing in\n{stdout}");
    }
    // The agent withholds the repaired GPU for its quiet period. Without the agent's state, the reason is unknown.
    assert!(run(&["machine", "fault", &dir, "recover@7"]).status.success());
    let other_state_dir = folder.path().join("elsewhere").display().to_string();
    let other_state_flags = [&flags[..flags.len() - 1], &[other_state_dir]].concat();
    let output = explain_on_node(&other_state_flags, "--size 4");
    let stdout = text(&output.stdout);
    assert!(stdout.contains("GPU7: withheld by the agent\n"), "{stdout}");
    assert_eq!(output.status.code(), Some(1));
    let expected = "4 devices requested, 3 available";
    assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    let output = explain_on_node(&flags, "--size 2 --require 4,0");
    let expected = "GPU0 is required and not free: held by default/trainer";
    assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    // Devices named by --free count as free, even if a container holds them.
    assert!(explain_on_node(&flags, "--size 2 --free 0-1").status.success());
    kubelet.send("delete trainer");
    kubelet.wait_for_line("pod trainer deleted");
    assert!(explain_on_node(&flags, "--size 4").status.success());
    node.signal("TERM");
    assert_eq!(node.wait().code(), Some(0));
}

#[test]
fn replicas_that_containers_hold_are_in_use() {
    let folder = folder();
    let host = machine(&folder, "t4-edge");
    let config = ["--config".to_owned(), write_shared_config(&folder)];
    let mut kubelet = Kubelet::start(&folder, "web:nvidia.com/gpu=1");
    let mut node = Node::start(&folder, &[&host[..], &config].concat());
    node.wait_for_message("registered, the kubelet reads the device list");
    kubelet.wait_for_line("pod web admitted");
    let flags = [&node_flags(&folder, &host)[..], &config].concat();
    let stdout = text(&explain_on_node(&flags, "--size 1").stdout);
    assert!(stdout.contains("  GPU0    1       3     1\n"), "{stdout}");
    let dir = folder.path().join("machine").display().to_string();
    assert!(run(&["machine", "fault", &dir, "xid:79@0"]).status.success());
    let output = explain_on_node(&flags, "--size 1");
    assert!(text(&output.stdout).contains("not free     GPU0: XID 79, GPU has fallen off the bus"));
    let expected = "1 replicas requested, 0 available";
    assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
}

#[test]
fn a_pods_replicas_are_explained_with_their_memory_and_its_enforcement() {
    let folder = folder();
    let host = machine(&folder, "t4-edge");
    let rule = "resources:\n\
                - name: nvidia.com/gpu\n  devices: {kind: gpu}\n  \
                sharing: {method: timeSlicing, memory: 5Gi}\n";
    let path = folder.path().join("memory.yaml");
    fs::write(&path, rule).expect("written");
    let config = ["--config".to_owned(), path.display().to_string()];
    let mut kubelet = Kubelet::start(&folder, "web:nvidia.com/gpu=2");
    let _node = Node::start(&folder, &[&host[..], &config].concat());
    kubelet.wait_for_line("pod web admitted");
    let flags = [&node_flags(&folder, &host)[..], &config].concat();
    let output = explain_on_node(&flags, "--pod web");
    let stdout = text(&output.stdout);
    assert!(stdout.contains("default/web, 2 replicas of GPU0 (GPU-"), "{stdout}");
    assert!(stdout.contains("  memory: 10240 of 15360 MiB, enforcement: none; "), "{stdout}");
    let document = text(&explain_on_node(&flags, "--pod web -o json").stdout);
    let document: Value = serde_json::from_str(&document).expect("JSON");
    let share = &document["shares"][0];
    assert_eq!((&share["by"]["replicas"], &share["memoryMib"]), (&2.into(), &10_240.into()));
    assert_eq!(share["podUids"].as_array().map(Vec::len), Some(1), "{share}");
}

#[test]
fn a_pod_is_explained_by_its_recorded_choice_and_later_changes() {
    let folder = folder();
    let host = machine(&folder, "dgx-h100");
    let flags = node_flags(&folder, &host);
    let (_kubelet, mut node) = start_trainer(&folder, &host);
    node.signal("TERM");
    assert_eq!(node.wait().code(), Some(0));

    let ask = |question: &str, code: i32| {
        let output = explain_on_node(&flags, question);
        assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
        text(&output.stdout) + &text(&output.stderr)
    };
    let choices_table = ask("--past", 0);
    let row = "  nvidia.com/gpu  aligned  4     8   GPU0 GPU1 GPU2 GPU3\n";
    assert!(choices_table.contains(row), "{choices_table}");
    let document: Value = serde_json::from_str(&ask("--past -o json", 0)).expect("JSON");
    assert_eq!(document["simulated"], "dgx-h100", "the simulation is not labelled");
    assert_eq!(document["choices"][0]["size"], 4);
    let answer = ask("--pod trainer", 0);
    for expected in [
        "container main, nvidia.com/gpu: GPU0 GPU1 GPU2 GPU3\n  newest choice of exactly these devices, at 20",
        "Z; an earlier pod's, if the kubelet had no alternative for this one\n  today's answer is the same\n\n4 of nvidia.com/gpu, aligned\n  free         GPU0 GPU1 GPU2",
        "  chosen       GPU0 GPU1 GPU2 GPU3: all 6 pairs NV18",
    ] {
        assert!(answer.contains(expected), "{expected} is missing in\n{answer}");
    }
    let dir = folder.path().join("machine").display().to_string();
    assert!(run(&["machine", "fault", &dir, "remove@3"]).status.success());
    let changed_answer = ask("--pod default/trainer", 0);
    let expected = "today's answer differs: gone since: GPU-0bdc3c71-";
    assert!(changed_answer.contains(expected), "{changed_answer}");
    let pod_document: Value = serde_json::from_str(&ask("--pod trainer -o json", 0)).expect("JSON");
    let recorded_choice = &pod_document["containers"][0]["past"];
    assert_eq!(
        recorded_choice["caveat"],
        "an earlier pod's, if the kubelet had no alternative for this one"
    );
    let current_answer = &recorded_choice["today"];
    assert_eq!(
        chosen_names(current_answer),
        ["GPU3", "GPU4", "GPU5", "GPU6"],
        "the remaining GPUs have new numbers"
    );

    assert!(ask("--pod a/b", 1).contains("a/b has no device of this node; default/trainer has"));
    fs::write(folder.path().join("state/choices.json"), r#"{"version":1,"choices":[]}"#)
        .expect("written");
    let answer_without_record = ask("--pod trainer", 1);
    assert!(answer_without_record.contains("\n  no recorded choice: "), "{answer_without_record}");
    let output = explain_on_node(&flags, "--pod trainer -o json");
    let pod_document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(pod_document["containers"][0]["ids"].as_array().expect("ids").len(), 4);
}

#[test]
fn choices_are_listed_with_times_in_seconds() {
    let folder = folder();
    let host = machine(&folder, "t4-edge");
    let choice = r#"{"at":"2026-01-02T03:04:05.9Z","resource":"a.com/x","policy":"first","size":1,"exact":true,"devices":{"available":["a"],"chosen":["a"]}}"#;
    fs::create_dir(folder.path().join("state")).expect("created");
    let file = format!(r#"{{"version":1,"choices":[{choice}]}}"#);
    fs::write(folder.path().join("state/choices.json"), file).expect("written");
    let output = explain_on_node(&node_flags(&folder, &host), "--past");
    let stdout = text(&output.stdout);
    assert!(stdout.contains("2026-01-02T03:04:05Z  a.com/x"), "{stdout}{}", text(&output.stderr));
}
