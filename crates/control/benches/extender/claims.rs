//! Benchmark of rankings for pods with claims, in clusters with MIG on a twentieth of the nodes.

use k8s_openapi::api::{
    core::v1::Node,
    resource::v1::{DeviceClass, ResourceClaim, ResourceSlice},
};
use serde_json::{Value, json};
use windlass_cluster_sim::api::ApiServer;
use windlass_sched::random::Random;

use super::{Budget, Client, Extender, GPUS, REQUESTS, name, object, percentiles, row};

/// Memory slices of the partitions that a GPU in MIG mode may have, with their names.
const PARTITIONS: [(&str, std::ops::Range<usize>); 14] = [
    ("1g.10gb", 6..7),
    ("1g.10gb", 5..6),
    ("1g.10gb", 4..5),
    ("1g.10gb", 3..4),
    ("1g.10gb", 2..3),
    ("1g.10gb", 1..2),
    ("1g.10gb", 0..1),
    ("2g.20gb", 4..6),
    ("2g.20gb", 2..4),
    ("2g.20gb", 0..2),
    ("3g.40gb", 4..8),
    ("3g.40gb", 0..4),
    ("4g.40gb", 0..4),
    ("7g.80gb", 0..8),
];
/// Number of rankings for claims of a new shape.
const NEW_SHAPES: usize = 50;

/// Measures rankings. Returns true if all budgets are met.
pub(super) async fn measure(budget: Budget) -> bool {
    let Budget { nodes, answer, new_shape, .. } = budget;
    let server = ApiServer::start();
    let claims = fill(&server, nodes);
    let (mut extender, started) = Extender::start(&server).await;
    let client = &mut extender.client;
    let baseline = client.measure("GET", "/healthz", "").await.0;
    let names: Vec<_> = (0..nodes).map(name).collect();
    let mut within_budget = true;
    for (case, spec) in cases() {
        let body = add_pod(&server, case, &spec, &names);
        wait_for_rank(client, case, &body).await;
        let mut times = Vec::with_capacity(REQUESTS);
        for request in 0..REQUESTS {
            toggle(&server, request * 7 % nodes);
            times.push(client.time("POST", "/prioritize", &body).await.0);
        }
        within_budget &= row(nodes, case, percentiles(times), Some(answer), baseline);
    }
    let mut times = Vec::with_capacity(NEW_SHAPES);
    for gib in 1..=NEW_SHAPES {
        let larger =
            format!("device.capacity['gpu.nvidia.com'].memory.isGreaterThan(quantity('{gib}Gi'))");
        let body = add_pod(&server, &format!("new-{gib}"), &spec(2, &larger, true), &names);
        // The watch must deliver the claim before the pod is measured.
        wait_for_claims(client, claims + cases().len() + gib + 1).await;
        times.push(client.time("POST", "/prioritize", &body).await.0);
    }
    within_budget &= row(nodes, "claims, new", percentiles(times), Some(new_shape), baseline);
    extender.report(nodes, started, (None, &format!("slices and {claims} claims")));
    extender.stop().await;
    within_budget
}

fn cases() -> [(&'static str, Value); 3] {
    let partition = "device.attributes['gpu.nvidia.com'].?profile.orValue('') == '1g.10gb'";
    [
        ("one GPU", spec(1, "true", false)),
        (
            "four GPUs",
            spec(4, "device.attributes['gpu.nvidia.com'].productName.contains('H100')", true),
        ),
        ("a partition", object_of("mig", 1, partition)),
    ]
}

fn spec(count: usize, expression: &str, is_same_root: bool) -> Value {
    let mut spec = object_of("gpu", count, expression);
    if is_same_root {
        spec["devices"]["constraints"] =
            json!([{"matchAttribute": "resource.kubernetes.io/pcieRoot"}]);
    }
    spec
}

fn object_of(class: &str, count: usize, expression: &str) -> Value {
    let selectors = json!([{"cel": {"expression": expression}}]);
    let exactly = json!({"deviceClassName": class, "count": count, "selectors": selectors});
    json!({"devices": {"requests": [{"name": "r", "exactly": exactly}]}})
}

/// Adds a claim, and returns the prioritize request of a pod with it.
fn add_pod(server: &ApiServer, name: &str, spec: &Value, names: &[String]) -> String {
    let name = name.replace(' ', "-").to_lowercase();
    let claim: ResourceClaim =
        object(json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec}));
    server.objects().put(&claim);
    let pod = json!({
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {
            "containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "2"}}}],
            "resourceClaims": [{"name": "devices", "resourceClaimName": name}],
        },
    });
    json!({"Pod": pod, "NodeNames": names}).to_string()
}

/// Waits until the view has the pod's claim and ranks nodes for it.
async fn wait_for_rank(client: &mut Client, case: &str, body: &str) {
    for _ in 0..1000 {
        if client.time("POST", "/prioritize", body).await.1.contains("Host") {
            return;
        }
    }
    panic!("{case} fits no node");
}

async fn wait_for_claims(client: &mut Client, count: usize) {
    let line = format!("windlass_cluster_claims {count}.0\n");
    for _ in 0..1000 {
        if client.time("GET", "/metrics", "").await.1.contains(&line) {
            return;
        }
    }
    panic!("the view does not reach {count} claims");
}

/// Moves the claim `toggled` to the last GPU of a node.
fn toggle(server: &ApiServer, n: usize) {
    server.objects().put(&allocated_claim("toggled", n, &device_name(n, GPUS - 1)));
}

/// Fills a cluster, and returns the number of claims.
fn fill(server: &ApiServer, nodes: usize) -> usize {
    let objects = server.objects();
    for kind in ["gpu", "mig"] {
        let expression = format!("device.attributes['gpu.nvidia.com'].type == '{kind}'");
        objects.put::<DeviceClass>(&object(json!({
            "metadata": {"name": kind},
            "spec": {"selectors": [{"cel": {"expression": expression}}]},
        })));
    }
    let (mut random, mut claims) = (Random::new(11), 0);
    for n in 0..nodes {
        objects.put::<Node>(&object(json!({
            "metadata": {"name": name(n)},
            "status": {"allocatable": {"cpu": "96", "memory": "768Gi", "pods": "110"}},
        })));
        for slice in slices(n) {
            objects.put::<ResourceSlice>(&slice);
        }
        for g in 0..GPUS - 1 {
            let device = device_name(n, g);
            let device = match (is_partitioned(n), random.below(4)) {
                (true, 0) => format!("{device}-mig-0"),
                (true, 1) => format!("{device}-mig-10"),
                (false, 0 | 1) => device,
                _ => continue,
            };
            objects.put(&allocated_claim(&format!("held-{n}-{g}"), n, &device));
            claims += 1;
        }
    }
    claims
}

fn allocated_claim(claim: &str, n: usize, device: &str) -> ResourceClaim {
    let result = json!({
        "request": "r", "driver": "windlass.dev", "pool": format!("{}/nvidia", name(n)), "device": device,
    });
    object(json!({
        "metadata": {"name": claim, "namespace": "jobs"}, "spec": {},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }))
}

fn is_partitioned(n: usize) -> bool {
    n % 20 == 19
}

fn device_name(n: usize, g: usize) -> String {
    format!("gpu-{n:08x}-0000-4000-8000-{g:012x}")
}

/// A node's slices: whole GPUs of one of three products, or the partitions of each GPU, and the counters.
fn slices(n: usize) -> Vec<ResourceSlice> {
    let contents: Vec<Value> = if is_partitioned(n) {
        let sets = (0..GPUS)
            .map(|g| json!({"name": counter_set_name(n, g), "counters": counters(&(0..8))}));
        let partitions = |g| json!({"devices": (0..PARTITIONS.len()).map(|p| partition(n, g, p)).collect::<Vec<_>>()});
        let counters = json!({"sharedCounters": sets.collect::<Vec<_>>()});
        std::iter::once(counters).chain((0..GPUS).map(partitions)).collect()
    } else {
        vec![json!({"devices": (0..GPUS).map(|g| gpu(n, g)).collect::<Vec<_>>()})]
    };
    let count = contents.len();
    let slice = |(index, content): (usize, Value)| {
        let mut spec = json!({
            "driver": "windlass.dev", "nodeName": name(n),
            "pool": {
                "name": format!("{}/nvidia", name(n)), "generation": 1 + n % 5, "resourceSliceCount": count,
            },
        });
        spec.as_object_mut().expect("a map").extend(content.as_object().expect("a map").clone());
        object(json!({"metadata": {"name": format!("{}-{index:03}", name(n))}, "spec": spec}))
    };
    contents.into_iter().enumerate().map(slice).collect()
}

fn counter_set_name(n: usize, g: usize) -> String {
    format!("{}-counters", device_name(n, g))
}

fn counters(slices: &std::ops::Range<usize>) -> Value {
    let mut counters = json!({
        "memory": {"value": format!("{}Mi", 9984 * slices.len())},
        "multiprocessors": {"value": (16 * slices.len()).to_string()},
        "copy-engines": {"value": slices.len().to_string()},
    });
    for slice in slices.clone() {
        counters[format!("memory-slice-{slice}")] = json!({"value": "1"});
    }
    counters
}

fn gpu(n: usize, g: usize) -> Value {
    let product = ["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA L40S"][n % 3];
    json!({
        "name": device_name(n, g),
        "attributes": {
            "gpu.nvidia.com/architecture": {"string": "Hopper"},
            "gpu.nvidia.com/brand": {"string": "Nvidia"},
            "gpu.nvidia.com/cudaComputeCapability": {"version": "9.0.0"},
            "gpu.nvidia.com/cudaDriverVersion": {"version": "13.0.0"},
            "gpu.nvidia.com/driverVersion": {"version": "580.95.5"},
            "gpu.nvidia.com/productName": {"string": product},
            "gpu.nvidia.com/type": {"string": "gpu"},
            "gpu.nvidia.com/uuid": {"string": format!("GPU-{n:08x}-0000-4000-8000-{g:012x}")},
            "resource.kubernetes.io/numaNode": {"int": g / 4},
            "resource.kubernetes.io/pciBusID": {"string": format!("0000:{g:02x}:00.0")},
            "resource.kubernetes.io/pcieRoot": {"string": format!("pci0000:{:02x}", g / 4)},
            "windlass.dev/source": {"string": "nvidia"},
            "windlass.dev/type": {"string": "gpu"},
        },
        "capacity": {
            "gpu.nvidia.com/memory": {"value": "80Gi"},
            "gpu.nvidia.com/multiprocessors": {"value": "132"},
        },
    })
}

fn partition(n: usize, g: usize, index: usize) -> Value {
    let (profile, slices) = &PARTITIONS[index];
    let mut device = gpu(n, g);
    device["name"] = format!("{}-mig-{index}", device_name(n, g)).into();
    let attributes = &mut device["attributes"];
    for kind in ["gpu.nvidia.com/type", "windlass.dev/type"] {
        attributes[kind]["string"] = "mig".into();
    }
    attributes["gpu.nvidia.com/parentUUID"] = attributes["gpu.nvidia.com/uuid"].take();
    attributes.as_object_mut().expect("a map").remove("gpu.nvidia.com/uuid");
    attributes["gpu.nvidia.com/profile"] = json!({"string": profile});
    device["capacity"]["gpu.nvidia.com/memory"]["value"] =
        format!("{}Mi", 9984 * slices.len()).into();
    device["consumesCounters"] =
        json!([{"counterSet": counter_set_name(n, g), "counters": counters(slices)}]);
    device
}
