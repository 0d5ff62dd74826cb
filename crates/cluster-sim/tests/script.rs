//! Script of requests, with the responses of Kubernetes 1.36. The test runs it on the embedded server, and on a real
//! server if `WINDLASS_E2E_API_SERVER` names the kubeconfig of an administrator of an empty cluster.

use std::{env, fmt::Write as _};

use http_body_util::BodyExt as _;
use hyper::{Request, Response};
use kube::{
    Client, Config,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::Value;
use windlass_cluster_sim::api::ApiServer;

/// Request and a summary of the expected response. `{next}` is the last continue token, `{first}` the version of the
/// first list.
struct Step {
    request: &'static str,
    /// `Accept`, or `Content-Type` if there is a body.
    media: &'static str,
    body: &'static str,
    expected: &'static str,
}

const CLASSES: &str = "/apis/resource.k8s.io/v1/deviceclasses";

const fn get(request: &'static str, expected: &'static str) -> Step {
    Step { request, media: "", body: "", expected }
}

const fn accepting(media: &'static str, request: &'static str, expected: &'static str) -> Step {
    Step { request, media, body: "", expected }
}

const fn with_body(
    (media, body): (&'static str, &'static str),
    request: &'static str,
    expected: &'static str,
) -> Step {
    Step { request, media, body, expected }
}

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

const SCRIPT: &[Step] = &[
    get("GET *", "200 DeviceClassList"),
    with_body((JSON, r#"{"metadata": {"name": "a"}}"#), "POST *", "201 DeviceClass a"),
    with_body((JSON, r#"{"metadata": {"name": "b"}}"#), "POST *", "201 DeviceClass b"),
    with_body((JSON, r#"{"metadata": {"name": "c"}}"#), "POST *", "201 DeviceClass c"),
    with_body(
        (JSON, r#"{"metadata": {"name": "a"}}"#),
        "POST *",
        "409 AlreadyExists: deviceclasses.resource.k8s.io \"a\" already exists",
    ),
    // Pages.
    get("GET *?limit=2", "200 DeviceClassList a b, 1 remaining, continue"),
    with_body((JSON, r#"{"metadata": {"name": "d"}}"#), "POST *", "201 DeviceClass d"),
    get("GET *?limit=2&continue={next}", "200 DeviceClassList c"),
    get("GET *?limit=2", "200 DeviceClassList a b, 2 remaining, continue"),
    get("GET *?limit=1&continue={next}", "200 DeviceClassList c, 1 remaining, continue"),
    get("GET *?continue=nonsense", "400 BadRequest: invalid continue token"),
    get("GET *?limit=x", "400 BadRequest"),
    // Versions.
    get("GET *?resourceVersion={first}&resourceVersionMatch=Exact", "200 DeviceClassList"),
    get(
        "GET *?resourceVersion={first}&resourceVersionMatch=NotOlderThan",
        "200 DeviceClassList a b c d",
    ),
    get(
        "GET *?resourceVersion=0&resourceVersionMatch=Exact",
        "422 Invalid: ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
    ),
    get(
        "GET *?resourceVersionMatch=Exact",
        "422 Invalid: ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
    ),
    get(
        "GET *?sendInitialEvents=true",
        "422 Invalid: ListOptions.meta.k8s.io \"\" is invalid: sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list",
    ),
    // Watches.
    get("GET *?watch=true&timeoutSeconds=1", "200 ADDED a, ADDED b, ADDED c, ADDED d"),
    get(
        "GET *?watch=true&timeoutSeconds=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
        "200 ADDED a, ADDED b, ADDED c, ADDED d, BOOKMARK initial-events-end",
    ),
    get(
        "GET *?watch=true&timeoutSeconds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
        "200 ADDED a, ADDED b, ADDED c, ADDED d",
    ),
    get(
        "GET *?watch=true&timeoutSeconds=1&resourceVersion={first}",
        "200 ADDED a, ADDED b, ADDED c, ADDED d",
    ),
    get(
        "GET *?watch=true&timeoutSeconds=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan",
        "200",
    ),
    get(
        "GET *?watch=true&sendInitialEvents=true",
        "422 Invalid: ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
    ),
    get(
        "GET *?watch=true&resourceVersionMatch=NotOlderThan",
        "422 Invalid: ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
    ),
    get(
        "GET *?watch=true&timeoutSeconds=9&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=999999999",
        "200 ERROR",
    ),
    // Response forms.
    accepting(
        "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
        "GET *?limit=2",
        "200 Table a b, 2 remaining, continue",
    ),
    accepting(
        "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
        "GET */a",
        "200 PartialObjectMetadata a",
    ),
    accepting(
        "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
        "GET *",
        "200 PartialObjectMetadataList a b c d",
    ),
    accepting(
        "application/json;as=APIGroupDiscoveryList;v=v2;g=apidiscovery.k8s.io,application/json",
        "GET /apis",
        "200 APIGroupDiscoveryList",
    ),
    accepting("text/plain", "GET */a", "406 NotAcceptable"),
    // Bodies.
    with_body(("text/plain", "{}"), "POST *", "415 UnsupportedMediaType"),
    with_body((JSON, "{}"), "PATCH */a", "415 UnsupportedMediaType"),
    with_body((JSON, "{"), "POST *", "400 BadRequest"),
    with_body(
        (JSON, r#"{"metadata": {"name": "x"}, "spec": {"colour": "red"}}"#),
        "POST *?fieldValidation=Strict",
        "400 BadRequest: DeviceClass in version \"v1\" cannot be handled as a DeviceClass: strict decoding error: unknown field \"spec.colour\"",
    ),
    with_body(
        (MERGE, r#"{"metadata": {"labels": {"x": "1"}}}"#),
        "PATCH */a",
        "200 DeviceClass a x=1",
    ),
    with_body(
        (STRATEGIC, r#"{"metadata": {"labels": {"x": null}}}"#),
        "PATCH */a",
        "200 DeviceClass a",
    ),
    with_body(
        (
            "application/json-patch+json",
            r#"[{"op": "add", "path": "/metadata/labels", "value": {"x": "2"}}]"#,
        ),
        "PATCH */a",
        "200 DeviceClass a x=2",
    ),
    // Server-side apply.
    with_body(
        (
            APPLY,
            r#"{"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "e", "labels": {"x": "1"}}}"#,
        ),
        "PATCH */e?fieldManager=one",
        "201 DeviceClass e x=1",
    ),
    with_body(
        (
            APPLY,
            r#"{"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "e", "labels": {"x": "2"}}}"#,
        ),
        "PATCH */e?fieldManager=two",
        "409 Conflict: Apply failed with 1 conflict: conflict with \"one\": .metadata.labels.x",
    ),
    with_body(
        (
            APPLY,
            r#"{"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "e", "labels": {"x": "2"}}}"#,
        ),
        "PATCH */e?fieldManager=two&force=true",
        "200 DeviceClass e x=2",
    ),
    with_body(
        (
            APPLY,
            r#"{"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "e"}}"#,
        ),
        "PATCH */e?fieldManager=one",
        "200 DeviceClass e x=2",
    ),
    with_body(
        (
            APPLY,
            r#"{"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "e"}}"#,
        ),
        "PATCH */e?fieldManager=two",
        "200 DeviceClass e",
    ),
    with_body(
        (
            APPLY,
            r#"{"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "e"}}"#,
        ),
        "PATCH */e",
        "422 Invalid",
    ),
    // Deletion.
    get("DELETE */a", "200 DeviceClass a x=2"),
    get("GET */a", "404 NotFound: deviceclasses.resource.k8s.io \"a\" not found"),
    get("DELETE *", "200 DeviceClassList b c d e"),
    get("GET /openapi/v3", "200"),
];

#[tokio::test]
async fn the_embedded_server_responds_as_in_the_script() {
    let server = ApiServer::start();
    let config = Config::new(server.url().parse().expect("a url"));
    run(&Client::try_from(config).expect("a client")).await;
}

#[tokio::test]
async fn a_real_server_responds_as_in_the_script() {
    let Ok(path) = env::var("WINDLASS_E2E_API_SERVER") else {
        eprintln!("left out: WINDLASS_E2E_API_SERVER names no kubeconfig");
        return;
    };
    let file = Kubeconfig::read_from(&path).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
    run(&Client::try_from(config.expect("a context")).expect("a client")).await;
}

/// Runs the whole script. Panics with every response that differs.
async fn run(client: &Client) {
    let (mut next, mut first, mut differences) = (String::new(), String::new(), Vec::new());
    for step in SCRIPT {
        let request = step.request.replace('*', CLASSES).replace("{next}", &next);
        let request = request.replace("{first}", &first);
        let response = client.send(step.request(&request)).await.expect("a response");
        let (actual, document) = summary(response).await;
        if let Some(token) = document["metadata"]["continue"].as_str() {
            token.clone_into(&mut next);
        }
        if first.is_empty() {
            let version = document["metadata"]["resourceVersion"].as_str();
            version.unwrap_or_default().clone_into(&mut first);
        }
        // The expected summary can leave out the text after a colon.
        let is_expected = actual == step.expected
            || actual.strip_prefix(step.expected).is_some_and(|detail| detail.starts_with(": "));
        if !is_expected {
            differences.push(format!(
                "{request} {}\n  received {actual}\n  expected {}",
                step.body, step.expected
            ));
        }
    }
    assert!(
        differences.is_empty(),
        "{} responses differ:\n{}",
        differences.len(),
        differences.join("\n")
    );
}

impl Step {
    fn request(&self, request: &str) -> Request<Body> {
        let (method, path) = request.split_once(' ').expect("a method and a path");
        let header = if self.body.is_empty() { "Accept" } else { "Content-Type" };
        let mut builder = Request::builder().method(method).uri(path);
        if !self.media.is_empty() {
            builder = builder.header(header, self.media);
        }
        builder.body(Body::from(self.body.as_bytes().to_vec())).expect("a request")
    }
}

/// Summary of a response, and its document.
async fn summary(response: Response<Body>) -> (String, Value) {
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.expect("a body").to_bytes();
    let documents = serde_json::Deserializer::from_slice(&bytes).into_iter::<Value>();
    let documents: Vec<Value> = documents.map_while(Result::ok).collect();
    let mut text = code.to_string();
    let [document] = documents.as_slice() else {
        let _ = write!(text, " {}", documents.iter().map(event).collect::<Vec<_>>().join(", "));
        return (text.trim_end().to_owned(), Value::Null);
    };
    if document["type"].is_string() {
        let _ = write!(text, " {}", event(document));
    } else if document["kind"] == "Status" {
        let field = |key: &str| document[key].as_str().unwrap_or_default().to_owned();
        let _ = match field("reason").as_str() {
            "" => write!(text, " {}", field("status")),
            reason => write!(text, " {reason}: {}", field("message")),
        };
    } else if let Some(kind) = document["kind"].as_str() {
        let _ = write!(text, " {kind}{}", content(document));
    }
    (text.trim_end().to_owned(), document.clone())
}

fn event(event: &Value) -> String {
    let metadata = &event["object"]["metadata"];
    let is_end = metadata["annotations"]["k8s.io/initial-events-end"] == "true";
    let name = metadata["name"].as_str().unwrap_or_default();
    let subject = if is_end { "initial-events-end" } else { name };
    format!("{} {subject}", event["type"].as_str().unwrap_or_default())
}

/// Names and labels of a document's objects, and the continuation of a list.
fn content(document: &Value) -> String {
    let mut text = String::new();
    let mut push = |part: &str| text.push_str(part);
    if let Some(name) = document["metadata"]["name"].as_str() {
        push(&format!(" {name}"));
    }
    for (key, value) in document["metadata"]["labels"].as_object().into_iter().flatten() {
        push(&format!(" {key}={}", value.as_str().unwrap_or_default()));
    }
    let rows = document["rows"].as_array().into_iter().flatten().map(|row| &row["object"]);
    if document["kind"] != "APIGroupDiscoveryList" {
        for item in document["items"].as_array().into_iter().flatten().chain(rows) {
            push(&format!(" {}", item["metadata"]["name"].as_str().unwrap_or_default()));
        }
    }
    if let Some(remaining) = document["metadata"]["remainingItemCount"].as_u64() {
        push(&format!(", {remaining} remaining"));
    }
    if document["metadata"]["continue"].as_str().is_some_and(|token| !token.is_empty()) {
        push(", continue");
    }
    text
}
