//! Cost of the watchdog: 64 containers on eight shared GPUs, measured each second.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod as PodObject;
use serde_json::json;
use tokio::time::sleep;
use windlass_cluster_sim::api::ApiServer;
use windlass_kubelet_sim::{Container, Pod};
use windlass_machine::state::Process;

use crate::{
    proc::ticks,
    report::Row,
    stage::{ServingAgent, Testbed},
};

const MEASUREMENT_TIME: Duration = Duration::from_secs(20);

const PODS: u32 = 64;

/// GPU memory that each container requests. Nine such requests fit on a GPU.
const REQUEST_GIB: u64 = 8;

const MEMORY_RESOURCE: &str = "windlass.dev/gpu-memory";

/// Id of the first simulated process: above any real one.
const FIRST_PID: u32 = 5_000_000;

/// Budget of the additional processor time, in percent of a core.
const BUDGET_PERCENT: f64 = 0.2;

/// Compares an agent that measures with one that does not. The simulated driver reads the machine's state in each call,
/// which costs more than a call of a real driver.
pub(crate) async fn measure() -> Result<Vec<Row>> {
    let off_time = processor_time("off").await?;
    let kill_time = processor_time("kill").await?;
    let percent =
        100.0 * (kill_time.as_secs_f64() - off_time.as_secs_f64()) / MEASUREMENT_TIME.as_secs_f64();
    Ok(vec![
        Row::single_value(
            format!("watchdog, {PODS} containers on 8 GPUs"),
            format!("{percent:.2} %"),
        )
        .with_comparison(format!(
            "{kill_time:?} of a core in {MEASUREMENT_TIME:?}, {off_time:?} without"
        ))
        .with_budget(percent, BUDGET_PERCENT, " %"),
    ])
}

/// Processor time of an agent whose watchdog has this action.
async fn processor_time(action: &str) -> Result<Duration> {
    let api = ApiServer::start();
    let testbed = Testbed::create("dgx-h100")?;
    let kubeconfig = testbed.path("kubeconfig");
    fs::write(&kubeconfig, api.kubeconfig())?;
    let config = testbed.path("windlass.yaml");
    let kubeconfig = kubeconfig.display();
    fs::write(
        &config,
        format!(
            "cluster: {{kubeconfig: {kubeconfig}, nodeName: n1}}\nshares: {{memory: {MEMORY_RESOURCE}}}\nwatchdog: {{action: {action}}}\n"
        ),
    )?;
    let serving_agent = testbed.serve(&["--config".as_ref(), config.as_ref()]).await?;
    serving_agent
        .wait_for(|node| node.counts(MEMORY_RESOURCE).is_some_and(|(_, free)| free > 0))
        .await?;
    for number in 0..PODS {
        start(&serving_agent, &api, number).await?;
    }
    let agent = serving_agent.agent.id();
    // The agent finds its own process in this `/proc`, as in the host's PID namespace.
    write_proc_file(
        &serving_agent,
        agent,
        "stat",
        &fs::read_to_string(format!("/proc/{agent}/stat"))?,
    )?;
    let start_ticks = ticks(agent)?;
    sleep(MEASUREMENT_TIME).await;
    // A tick is 10 ms.
    Ok(Duration::from_millis(10 * (ticks(agent)? - start_ticks)))
}

/// Starts a pod whose process uses half of its share.
async fn start(serving_agent: &ServingAgent, api: &ApiServer, number: u32) -> Result<()> {
    let (name, uid) = (format!("p{number}"), format!("{number:032}"));
    let machine = &serving_agent.testbed.machine;
    let index = usize::try_from(number)? % 8;
    let gpu = machine.model()?.gpus[index].uuid.clone();
    let placement = json!({"devices": [{"id": gpu, "memoryMib": REQUEST_GIB * 1024}]}).to_string();
    let object = json!({
        "metadata": {"name": name, "namespace": "default", "uid": uid,
                     "annotations": {"windlass.dev/placement": placement}},
        "spec": {"nodeName": "n1", "containers": [{"name": "main", "image": "i"}]},
    });
    api.objects().put::<PodObject>(&serde_json::from_value(object)?);
    let container = Container::new("main").limit(MEMORY_RESOURCE, REQUEST_GIB);
    let pod = Pod { uid: uid.clone(), ..Pod::new(&name).container(container) };
    serving_agent.kubelet.admit(pod).await.context("the pod is not admitted")?;
    serving_agent
        .kubelet
        .start_container(&uid, "main")
        .await
        .context("the container does not start")?;
    let pid = FIRST_PID + number;
    write_proc_file(
        serving_agent,
        pid,
        "cgroup",
        &format!("0::/kubepods/pod{uid}/{number:064x}\n"),
    )?;
    let process = Process { pid, memory_mib: REQUEST_GIB * 512, gpu_instance: None, sm_percent: 0 };
    machine.update(|model| model.gpus[index].live.processes.push(process))?;
    Ok(())
}

/// Writes a file of a process to the simulated machine's `/proc`.
fn write_proc_file(serving_agent: &ServingAgent, pid: u32, file: &str, text: &str) -> Result<()> {
    let folder = serving_agent.testbed.machine.host_root().join(format!("proc/{pid}"));
    fs::create_dir_all(&folder)?;
    Ok(fs::write(folder.join(file), text)?)
}
