//! The admission policy of claims' parameters, evaluated as an API server would, compared with the agent's own check.

use std::path::Path;

use serde_json::{Value, json};
use windlass_node::documents::check_parameters;

use crate::cluster_api::{
    admission::{Numbers, evaluate_policy},
    manifests::documents,
};

const WINDLASS_API_VERSION: &str = "windlass.dev/v1alpha1";

const NVIDIA_API_VERSION: &str = "resource.nvidia.com/v1beta1";

/// The shipped policy.
struct Policy(Value);

// === impl Policy ===

impl Policy {
    fn shipped() -> Self {
        let [policy, binding] = shipped();
        assert_eq!(binding["spec"]["policyName"], policy["metadata"]["name"]);
        Self(policy)
    }

    /// Verdict on storing an object; on refusal its message.
    fn admit(&self, resource: &str, object: &Value, numbers: Numbers) -> Result<(), String> {
        let request = json!({"resource": {"group": "resource.k8s.io", "resource": resource}});
        evaluate_policy(&self.0, &[("object", object), ("request", &request)], numbers)
    }

    /// Verdict on a claim with these parameters for the driver.
    fn parameters(&self, parameters: &Value, numbers: Numbers) -> Result<(), String> {
        let claim =
            json!({"spec": {"devices": {"config": [opaque_config("windlass.dev", parameters)]}}});
        self.admit("resourceclaims", &claim, numbers)
    }
}

/// The policy and its binding.
pub(crate) fn shipped() -> [Value; 2] {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/claim-parameters.yaml");
    documents(Path::new(path)).try_into().expect("two documents")
}

/// A claim's configuration for a driver.
pub(crate) fn opaque_config(driver: &str, parameters: &Value) -> Value {
    json!({"opaque": {"driver": driver, "parameters": parameters}})
}

/// Parameters of every kind, each with settings in the spelling of its vendor.
fn of_every_kind(settings: &Value) -> Vec<Value> {
    let kinds = [
        (WINDLASS_API_VERSION, "DeviceConfig"),
        (NVIDIA_API_VERSION, "GpuConfig"),
        (NVIDIA_API_VERSION, "MigDeviceConfig"),
    ];
    let document = |(version, kind): (&str, &str)| {
        let mut sharing = settings.to_string();
        if version == NVIDIA_API_VERSION {
            for (own_name, nvidia_name) in [
                ("\"timeSlicing\"", "\"timeSlicingConfig\""),
                ("\"mps\"", "\"mpsConfig\""),
                ("\"activeThreadPercentage\"", "\"defaultActiveThreadPercentage\""),
                ("\"pinnedMemoryLimit\"", "\"defaultPinnedDeviceMemoryLimit\""),
            ] {
                sharing = sharing.replace(own_name, nvidia_name);
            }
        }
        let sharing: Value = serde_json::from_str(&sharing).expect("still a document");
        json!({"apiVersion": version, "kind": kind, "sharing": sharing})
    };
    kinds.map(document).into()
}

/// Valid and invalid parameters.
fn settings() -> Vec<Value> {
    let mut settings = vec![
        Value::Null,
        json!({}),
        json!("MPS"),
        json!({"strategie": "MPS"}),
        json!({"strategy": null}),
        json!({"strategy": 1}),
        json!({"strategy": "mps"}),
        json!({"strategy": "MPS", "timeSlicing": {}}),
        json!({"strategy": "MPS", "timeSlicing": null}),
        json!({"strategy": "TimeSlicing", "mps": {}}),
        json!({"strategy": "TimeSlicing", "mps": null}),
        json!({"strategy": "TimeSlicing", "replicas": 2}),
        // Settings of the other vendor, for either.
        json!({"strategy": "MPS", "mpsConfig": {}}),
        json!({"strategy": "MPS", "mps": {"defaultActiveThreadPercentage": 50}}),
        json!({"strategy": "MPS", "mps": {"activeThreadPercentage": 50}}),
        json!({"strategy": "MPS", "mps": {"defaultPerDevicePinnedMemoryLimit": {"0": "1Gi"}}}),
        json!({"strategy": "MPS", "mps": {"defaultPerDevicePinnedMemoryLimit": null}}),
    ];
    for part in [json!(null), json!({}), json!("Short"), json!(7), json!({"turn": "Short"})] {
        settings.push(json!({"strategy": "TimeSlicing", "timeSlicing": part}));
        settings.push(json!({"strategy": "MPS", "mps": part}));
    }
    let intervals = ["Default", "Short", "Medium", "Long", "short", ""].map(Value::from);
    for interval in intervals.into_iter().chain([json!(null), json!(3), json!({})]) {
        settings.push(json!({"strategy": "TimeSlicing", "timeSlicing": {"interval": interval}}));
    }
    for percent in [json!(null), json!(0), json!(1), json!(100), json!(101), json!(-1), json!(9.5)]
    {
        settings.push(json!({"strategy": "MPS", "mps": {"activeThreadPercentage": percent}}));
    }
    for percent in [json!("50"), json!([]), json!(true), json!(i64::MAX)] {
        settings.push(json!({"strategy": "MPS", "mps": {"activeThreadPercentage": percent}}));
    }
    let amounts = ["10Gi", "1Mi", "1048576", "1048575", "1023Ki", "1M", "2M", "0", "-1Gi", "1e9"];
    let texts = ["", "10GB", "lots", "1.5Gi", "1048575500m", "99999999Ei"];
    for limit in amounts.into_iter().chain(texts).map(Value::from) {
        settings.push(json!({"strategy": "MPS", "mps": {"pinnedMemoryLimit": limit}}));
    }
    for limit in [json!(null), json!(1 << 30), json!({}), json!(["1Gi"])] {
        settings.push(json!({"strategy": "MPS", "mps": {"pinnedMemoryLimit": limit}}));
    }
    settings
}

/// Valid and invalid parameters of every kind.
pub(crate) fn all_parameters() -> Vec<Value> {
    let headers = [
        json!({}),
        json!({"kind": "DeviceConfig"}),
        json!({"apiVersion": WINDLASS_API_VERSION}),
        json!({"apiVersion": WINDLASS_API_VERSION, "kind": "DeviceConfig"}),
        json!({"apiVersion": WINDLASS_API_VERSION, "kind": "GpuConfig"}),
        json!({"apiVersion": NVIDIA_API_VERSION, "kind": "GpuConfig"}),
        json!({"apiVersion": NVIDIA_API_VERSION, "kind": "VfioDeviceConfig"}),
        json!({"apiVersion": NVIDIA_API_VERSION, "kind": "DeviceConfig"}),
        json!({"apiVersion": 1, "kind": "DeviceConfig"}),
        json!({"apiVersion": WINDLASS_API_VERSION, "kind": ["DeviceConfig"]}),
        json!({"apiVersion": WINDLASS_API_VERSION, "kind": "DeviceConfig", "shared": {}}),
    ];
    settings().iter().flat_map(of_every_kind).chain(headers).collect()
}

#[test]
fn the_policy_admits_the_parameters_that_the_agent_accepts_and_no_others() {
    let (policy, all) = (Policy::shipped(), all_parameters());
    let mut accepted = 0;
    for (parameters, numbers) in
        all.iter().flat_map(|it| [(it, Numbers::Integer), (it, Numbers::Float)])
    {
        let (agent, policy) =
            (check_parameters(parameters.clone()), policy.parameters(parameters, numbers));
        assert_eq!(
            agent.is_ok(),
            policy.is_ok(),
            "{parameters}, {numbers:?}\n agent: {agent:?}\npolicy: {policy:?}"
        );
        accepted += usize::from(agent.is_ok());
    }
    assert!(accepted > 100 && accepted < all.len(), "{accepted} of {} are accepted", 2 * all.len());
}

#[test]
fn a_refusal_names_the_mistake_and_the_allowed_values() {
    let policy = Policy::shipped();
    let device_config = |sharing: Value| json!({"apiVersion": WINDLASS_API_VERSION, "kind": "DeviceConfig", "sharing": sharing});
    for (parameters, message) in [
        (
            device_config(json!({"strategie": "MPS"})),
            r#"sharing has no field "strategie": it has strategy, timeSlicing and mps"#,
        ),
        (
            device_config(json!({"strategy": "Mps"})),
            r#"sharing has no strategy "Mps": write TimeSlicing or MPS"#,
        ),
        (
            device_config(json!({"strategy": "TimeSlicing", "timeSlicing": {"interval": "Tiny"}})),
            r#"no interval "Tiny" is known: write Default, Short, Medium or Long"#,
        ),
        (
            device_config(json!({"strategy": "MPS", "mps": {"pinnedMemoryLimit": "10GB"}})),
            r#""10GB" is not a limit of pinned memory of 1Mi or more: write 10Gi, for example"#,
        ),
        (
            device_config(json!({"strategy": "MPS", "mps": {"threads": 50}})),
            r#"mps has no field "threads": it has activeThreadPercentage and pinnedMemoryLimit"#,
        ),
        (
            json!({"apiVersion": WINDLASS_API_VERSION, "kind": "Config"}),
            "no kind \"Config\" in \"windlass.dev/v1alpha1\" is known: write DeviceConfig of \
             windlass.dev/v1alpha1, or GpuConfig or MigDeviceConfig of resource.nvidia.com/v1beta1",
        ),
        (
            json!({"apiVersion": NVIDIA_API_VERSION, "kind": "GpuConfig", "replicas": 2}),
            r#"no field "replicas" is known beside apiVersion, kind and sharing"#,
        ),
    ] {
        assert_eq!(policy.parameters(&parameters, Numbers::Integer), Err(message.to_owned()));
    }
}

#[test]
fn parameters_for_this_driver_are_checked_in_claims_templates_and_classes() {
    let policy = Policy::shipped();
    let invalid = opaque_config("windlass.dev", &json!({"strategie": "MPS"}));
    let other_driver = opaque_config("gpu.nvidia.com", &json!({"strategie": "MPS"}));
    let valid = opaque_config(
        "windlass.dev",
        &json!({"apiVersion": WINDLASS_API_VERSION, "kind": "DeviceConfig"}),
    );
    let no_config = json!({"requests": []});
    for (config, is_admitted) in [
        (json!([invalid]), false),
        (json!([valid, invalid]), false),
        (json!([other_driver, valid]), true),
        (json!([{"requests": ["a"]}]), true),
        (json!([]), true),
    ] {
        let devices = json!({"config": config});
        for (resource, spec) in [
            ("resourceclaims", json!({"devices": devices})),
            ("resourceclaimtemplates", json!({"spec": {"devices": devices}})),
            ("deviceclasses", devices.clone()),
        ] {
            let answer = policy.admit(resource, &json!({"spec": spec}), Numbers::Integer);
            assert_eq!(answer.is_ok(), is_admitted, "{resource}: {spec}: {answer:?}");
        }
    }
    for (resource, spec) in [
        ("resourceclaims", json!({})),
        ("resourceclaims", json!({"devices": no_config})),
        ("resourceclaimtemplates", json!({"spec": {}})),
        ("deviceclasses", json!({})),
    ] {
        assert_eq!(policy.admit(resource, &json!({"spec": spec}), Numbers::Integer), Ok(()));
    }
}
