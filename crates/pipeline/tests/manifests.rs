//! Manifests of the three layouts, deserialised into the Kubernetes types.

use std::path::Path;

use k8s_openapi::api::{
    apps::v1::Deployment, core::v1::Service, policy::v1::PodDisruptionBudget,
    resource::v1::ResourceClaimTemplate,
};
use serde_json::{Value, from_value};
use windlass_pipeline::{Fleet, Layout, Pipeline, Plan, manifests::manifests};

const PIPELINE: &str = "
name: door
stages:
- {name: grab, image: stage:1, output: 1MB, on: [{cpus: 1, time: 1ms}]}
- {name: decode, image: stage:1, command: [windlass, stage], output: 10kB, on: [{cpus: 1, time: 2ms}]}
- name: detect
  image: stage:1
  replicas: 2
  batch: 4
  output: 100
  on:
  - {deviceClass: npu, match: 'device.attributes[\"npu.example.com\"].tops > 10', time: 20ms}
- {name: join, image: stage:1, on: [{resource: coral.ai/tpu, time: 1ms}]}
links:
- {from: grab, to: decode}
- {from: decode, to: detect}
- {from: decode, to: join}
- {from: detect, to: join}
";

const BOARDS: &str = "
nodes:
- {name: a, board: raspberry-pi-5, rate: 100Mbit}
- {name: b, board: coral-dev-board}
- {name: c, cpus: 4, devices: [{deviceClass: npu, driver: npu.example.com, attributes: {tops: 13}, count: 2}]}
";

fn objects(layout: Layout, text: &str) -> Vec<Value> {
    let pipeline = Pipeline::parse(Path::new("p.yaml"), text).expect("a pipeline");
    let fleet = Fleet::parse(Path::new("b.yaml"), BOARDS).expect("boards");
    let plan = Plan::of(&pipeline, &fleet, layout).expect("a plan");
    manifests(&pipeline, &fleet, &plan).expect("manifests")
}

/// Deserialises each object into the type of its kind; panics on an unknown kind or a wrong type.
fn check_types(objects: &[Value]) -> Vec<Deployment> {
    let mut deployments = Vec::new();
    for object in objects {
        let object = object.clone();
        let result = match object["kind"].as_str().expect("a kind") {
            "Deployment" => from_value(object).map(|deployment| deployments.push(deployment)),
            "Service" => from_value::<Service>(object).map(drop),
            "PodDisruptionBudget" => from_value::<PodDisruptionBudget>(object).map(drop),
            "ResourceClaimTemplate" => from_value::<ResourceClaimTemplate>(object).map(drop),
            kind => panic!("{kind}"),
        };
        result.expect("the types of its kind");
    }
    deployments
}

fn arguments(deployment: &Deployment, container: usize) -> String {
    let pod = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref()).expect("a pod");
    pod.containers[container].args.clone().unwrap_or_default().join(" ")
}

#[test]
fn in_the_layout_pods_each_stage_has_a_deployment_and_finds_the_next_by_its_service() {
    let objects = objects(Layout::Pods, PIPELINE);
    let deployments = check_types(&objects);
    let names: Vec<_> =
        deployments.iter().filter_map(|deployment| deployment.metadata.name.as_deref()).collect();
    assert_eq!(names, ["door-grab", "door-decode", "door-detect", "door-join"]);
    assert_eq!(
        arguments(&deployments[1], 0),
        "--name decode --listen 0.0.0.0:7001 --next detect=door-detect:7002 --next join=door-join:7003"
    );
    assert_eq!(
        arguments(&deployments[2], 0),
        "--name detect --listen 0.0.0.0:7002 --next join=door-join:7003 --batch 4"
    );
    assert_eq!(
        arguments(&deployments[3], 0),
        "--name join --listen 0.0.0.0:7003 --from decode --from detect"
    );
    let detect = serde_json::to_value(&deployments[2]).expect("JSON");
    let pod = &detect["spec"]["template"]["spec"];
    assert_eq!(pod["resourceClaims"][0]["resourceClaimTemplateName"], "door-detect-1");
    assert_eq!(pod["containers"][0]["resources"]["claims"][0]["name"], "detect");
    assert_eq!((&detect["spec"]["replicas"], &pod["affinity"]), (&2.into(), &Value::Null));
    assert_eq!(detect["spec"]["strategy"]["rollingUpdate"]["maxSurge"], 0);
    let budgets = objects.iter().filter(|object| object["kind"] == "PodDisruptionBudget").count();
    assert_eq!(budgets, 1);
}

#[test]
fn planned_stages_of_one_node_share_a_pod_that_prefers_the_node() {
    let deployments = check_types(&objects(Layout::Planned, PIPELINE));
    let shared = deployments
        .iter()
        .find(|deployment| deployment.metadata.name.as_deref() == Some("door-grab"))
        .expect("one");
    assert!(
        arguments(shared, 0).ends_with("--next decode=127.0.0.1:7001"),
        "{}",
        arguments(shared, 0)
    );
    let document = serde_json::to_value(shared).expect("JSON");
    let pod = &document["spec"]["template"];
    assert_eq!(pod["metadata"]["labels"]["windlass.dev/stage-decode"], "door");
    let preference = &pod["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        [0];
    let nodes = &preference["preference"]["matchFields"][0]["values"];
    assert!(nodes.as_array().is_some_and(|nodes| nodes.len() == 1), "{nodes}");
}

#[test]
fn in_the_layout_pod_all_stages_are_containers_of_one_pod() {
    let text = PIPELINE.replace(
        "deviceClass: npu, match: 'device.attributes[\"npu.example.com\"].tops > 10'",
        "cpus: 1",
    );
    let deployments = check_types(&objects(Layout::Pod, &text));
    assert_eq!(deployments.len(), 1);
    assert_eq!(
        arguments(&deployments[0], 2),
        "--name detect --listen 0.0.0.0:7002 --next join=127.0.0.1:7003 --batch 4"
    );
}

#[test]
fn the_arguments_of_a_program_end_before_those_of_the_stage() {
    let exec = PIPELINE
        .replace("command: [windlass, stage]", "command: [windlass, stage, --exec, sh, -c, cat]");
    let deployments = check_types(&objects(Layout::Pods, &exec));
    let decode = deployments
        .iter()
        .find(|deployment| deployment.metadata.name.as_deref() == Some("door-decode"));
    let decode = arguments(decode.expect("a Deployment"), 0);
    assert!(decode.starts_with("; --name decode --listen "), "{decode}");
    let terminated = exec.replace("-c, cat]", "-c, cat, ';']");
    let deployments = check_types(&objects(Layout::Pods, &terminated));
    assert!(deployments.iter().all(|deployment| arguments(deployment, 0).starts_with("--name ")));
}

#[test]
fn a_stage_without_an_image_is_reported_by_name() {
    let text = PIPELINE.replacen("image: stage:1, ", "", 1);
    let pipeline = Pipeline::parse(Path::new("p.yaml"), &text).expect("a pipeline");
    let fleet = Fleet::parse(Path::new("b.yaml"), BOARDS).expect("boards");
    let plan = Plan::of(&pipeline, &fleet, Layout::Planned).expect("a plan");
    let error = manifests(&pipeline, &fleet, &plan).expect_err("no image").to_string();
    assert_eq!(error, "stage \"grab\" has no image: write one in the pipeline's file");
}

#[test]
fn fields_of_kubernetes_are_added_to_the_pod_and_the_container() {
    let text = PIPELINE
        .replace(
            "{name: grab, image: stage:1, output: 1MB, on: [{cpus: 1, time: 1ms}]}",
            "{name: grab, image: stage:1, output: 1MB, on: [{cpus: 1, memory: 64MiB, time: 1ms}],
   pod: {nodeSelector: {kubernetes.io/hostname: a}, volumes: [{name: v, emptyDir: {}}], terminationGracePeriodSeconds: 90},
   container: {env: [{name: A, value: b}], resources: {limits: {memory: 128Mi}}, livenessProbe: {periodSeconds: 5}}}",
        )
        .replace("{cpus: 1, time: 2ms}]}", "{cpus: 1, time: 2ms}], pod: {volumes: [{name: v, emptyDir: {}}]}}");
    let deployments = check_types(&objects(Layout::Planned, &text));
    let deployment = |name: &str| {
        let matching =
            deployments.iter().find(|deployment| deployment.metadata.name.as_deref() == Some(name));
        serde_json::to_value(matching.expect("a deployment")).expect("JSON")
    };
    let pod = &deployment("door-grab")["spec"]["template"]["spec"];
    assert_eq!(pod["nodeSelector"]["kubernetes.io/hostname"], "a");
    assert_eq!(pod["volumes"], serde_json::json!([{"name": "v", "emptyDir": {}}]));
    assert_eq!(pod["terminationGracePeriodSeconds"], 90);
    let container = &pod["containers"][0];
    assert_eq!(container["env"][0]["value"], "b");
    assert_eq!(container["resources"]["requests"]["memory"], "67108864");
    assert_eq!(container["resources"]["limits"]["memory"], "128Mi");
    assert_eq!(
        (
            &container["livenessProbe"]["periodSeconds"],
            &container["livenessProbe"]["tcpSocket"]["port"]
        ),
        (&5.into(), &7000.into())
    );
}

#[test]
fn stages_of_one_pod_must_agree_on_its_fields() {
    let text = "name: p\nstages:\n- {name: a, image: i, output: 1, on: [{time: 1ms}], pod: {volumes: [{name: v, emptyDir: {}}]}}\n\
        - {name: b, image: i, on: [{time: 1ms}], pod: {volumes: [{name: v, hostPath: {path: /v}}]}}\nlinks: [{from: a, to: b}]";
    let pipeline = Pipeline::parse(Path::new("p.yaml"), text).expect("a pipeline");
    let fleet = Fleet::parse(Path::new("b.yaml"), BOARDS).expect("boards");
    let render = |layout| {
        let plan = Plan::of(&pipeline, &fleet, layout).expect("a plan");
        manifests(&pipeline, &fleet, &plan)
    };
    let error = render(Layout::Pod).expect_err("two volumes of one name").to_string();
    assert!(
        error.starts_with("stages a, b share a pod, but set pod.volumes.v to different values"),
        "{error}"
    );
    check_types(&render(Layout::Pods).expect("a pod for each"));
}
