//! The admission policy of claims' parameters at a real API server, if there is one: its verdicts have to be those of
//! the tests' own evaluation.
//!
//! Runs if `WINDLASS_E2E_KUBECONFIG` names a cluster, with an administrator's rights. Only the policy is stored, under
//! its own name, and deleted afterwards.

use std::{env, path::Path, time::Duration};

use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    resource::v1::ResourceClaim,
};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};
use tokio::time::timeout;
use windlass_node::documents::check_parameters;
use windlass_testkit::until;

use crate::cluster_api::{
    parameters::{all_parameters, opaque_config, shipped},
    real_slices::client,
};

const KUBECONFIG: &str = "WINDLASS_E2E_KUBECONFIG";

/// Deadline of a policy's effect: an API server reads new policies every second, and the schemas of their objects.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Answer to a dry-run claim.
async fn admit(claims: &Api<ResourceClaim>, parameters: &Value) -> Result<(), String> {
    let request = json!({"name": "gpu", "exactly": {"deviceClassName": "windlass-gpu"}});
    let config = opaque_config("windlass.dev", parameters);
    let claim = json!({
        "metadata": {"generateName": "windlass-e2e-"},
        "spec": {"devices": {"requests": [request], "config": [config]}},
    });
    let claim = serde_json::from_value(claim).expect("a claim");
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    claims.create(&dry_run, &claim).await.map(drop).map_err(|error| error.to_string())
}

/// Compares the API server's verdicts and messages with the agent's; returns the differences.
async fn compare_with_agent(claims: &Api<ResourceClaim>) -> Result<(), String> {
    let invalid = json!({
        "apiVersion": "windlass.dev/v1alpha1", "kind": "DeviceConfig",
        "sharing": {"strategie": "MPS"},
    });
    // A policy takes effect some time after its creation.
    let refusal = async || admit(claims, &invalid).await.map_or_else(Ok, Err);
    let message = until("the policy is in effect", refusal).await;
    if !message.contains("sharing has no field \"strategie\": it has strategy, timeSlicing and mps")
    {
        return Err(message);
    }
    for parameters in all_parameters() {
        let agent = check_parameters(parameters.clone());
        let policy = admit(claims, &parameters).await;
        if agent.is_ok() != policy.is_ok() {
            return Err(format!("{parameters}\n agent: {agent:?}\npolicy: {policy:?}"));
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_real_api_server_admits_the_parameters_that_the_agent_accepts_and_no_others() {
    let Some(kubeconfig) = env::var_os(KUBECONFIG) else {
        eprintln!("SKIPPED: set {KUBECONFIG} to run this on a real cluster");
        return;
    };
    let kube = client(Path::new(&kubeconfig)).await;
    let name = format!("windlass-e2e-parameters-{}", std::process::id());
    let [mut policy, mut binding] = shipped();
    policy["metadata"]["name"] = name.as_str().into();
    binding["metadata"]["name"] = name.as_str().into();
    binding["spec"]["policyName"] = name.as_str().into();
    let policy = serde_json::from_value(policy).expect("a policy");
    let binding = serde_json::from_value(binding).expect("a binding");

    let policies: Api<ValidatingAdmissionPolicy> = Api::all(kube.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(kube.clone());
    let params = PostParams::default();
    policies.create(&params, &policy).await.expect("the policy is created");
    let created = bindings.create(&params, &binding).await;
    let claims = Api::namespaced(kube, "default");
    let outcome = timeout(TIMEOUT, compare_with_agent(&claims)).await;
    let type_checking = policies.get(&name).await.ok().and_then(|it| it.status?.type_checking);
    let delete = DeleteParams::default();
    let deleted = bindings.delete(&name, &delete).await.map(drop);
    policies.delete(&name, &delete).await.map(drop).expect("the policy is deleted");
    created.expect("the policy was bound");
    deleted.expect("the binding is deleted");
    assert_eq!(outcome.expect("in time"), Ok(()));
    let warnings = type_checking.and_then(|it| it.expression_warnings).unwrap_or_default();
    assert_eq!(warnings, [], "every expression fits the types of its fields");
}
