//! Watch lists of Go's informers, bookmarks, and expired pages.

use http_body_util::BodyExt as _;
use hyper::Request;
use k8s_openapi::api::resource::v1::DeviceClass;
use kube::{Client, Config, client::Body};
use serde_json::{Value, json};
use windlass_cluster_sim::api::ApiServer;

const CLASSES: &str = "/apis/resource.k8s.io/v1/deviceclasses";

/// First query of client-go's reflector (KEP-3157).
const WATCH_LIST: &str =
    "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";

fn client(server: &ApiServer) -> Client {
    Client::try_from(Config::new(server.url().parse().expect("a url"))).expect("a client")
}

fn put(server: &ApiServer, name: &str) -> DeviceClass {
    let class = json!({"metadata": {"name": name}, "spec": {}});
    server.objects().put(&serde_json::from_value(class).expect("a class"))
}

async fn body(client: &Client, query: &str) -> Body {
    let request = Request::get(format!("{CLASSES}?{query}")).body(Body::empty());
    client.send(request.expect("a request")).await.expect("a response").into_body()
}

/// Receives the next events of a watch.
async fn next(body: &mut Body) -> Option<Vec<Value>> {
    let data = body.frame().await?.expect("a frame").into_data().expect("data");
    let lines = serde_json::Deserializer::from_slice(&data).into_iter();
    Some(lines.map(|line| line.expect("a line of JSON")).collect())
}

/// Receives all documents until the response ends.
async fn all(client: &Client, query: &str) -> Vec<Value> {
    let data = body(client, query).await.collect().await.expect("an end").to_bytes();
    let lines = serde_json::Deserializer::from_slice(&data).into_iter();
    lines.map(|line| line.expect("a line of JSON")).collect()
}

fn summary(event: &Value) -> String {
    let metadata = &event["object"]["metadata"];
    let name = metadata["name"].as_str().unwrap_or_default();
    format!("{} {name}", event["type"].as_str().unwrap_or_default())
}

#[tokio::test]
async fn a_watch_list_sends_existing_objects_then_a_bookmark_then_changes() {
    let server = ApiServer::start();
    put(&server, "a");
    let version = put(&server, "b").metadata.resource_version.expect("a version");
    let mut watch = body(&client(&server), WATCH_LIST).await;
    let initial_events = next(&mut watch).await.expect("events");
    assert_eq!(
        initial_events.iter().map(summary).collect::<Vec<_>>(),
        ["ADDED a", "ADDED b", "BOOKMARK "]
    );
    let expected = json!({
        "kind": "DeviceClass", "apiVersion": "resource.k8s.io/v1",
        "metadata": {
            "resourceVersion": version, "annotations": {"k8s.io/initial-events-end": "true"},
        },
    });
    assert_eq!(initial_events[2]["object"], expected);
    put(&server, "c");
    let later_events = next(&mut watch).await.expect("an event");
    assert_eq!(later_events.iter().map(summary).collect::<Vec<_>>(), ["ADDED c"]);
}

#[tokio::test]
async fn a_watch_list_without_objects_starts_with_the_bookmark() {
    let server = ApiServer::start();
    let initial_events = next(&mut body(&client(&server), WATCH_LIST).await).await.expect("events");
    assert_eq!(initial_events.iter().map(summary).collect::<Vec<_>>(), ["BOOKMARK "]);
}

#[tokio::test(start_paused = true)]
async fn bookmarks_are_sent_every_minute_and_before_the_end_if_requested() {
    let server = ApiServer::start();
    let version = put(&server, "a").metadata.resource_version.expect("a version");
    let query = format!("watch=true&resourceVersion={version}&timeoutSeconds=90");
    let events = all(&client(&server), &format!("{query}&allowWatchBookmarks=true")).await;
    let versions: Vec<_> =
        events.iter().map(|event| &event["object"]["metadata"]["resourceVersion"]).collect();
    assert_eq!(events.iter().map(summary).collect::<Vec<_>>(), ["BOOKMARK ", "BOOKMARK "]);
    assert_eq!(versions, [&version, &version]);
    assert_eq!(all(&client(&server), &query).await, [Value::Null; 0]);
}

#[tokio::test]
async fn an_expired_page_is_refused_with_a_token_to_continue() {
    let server = ApiServer::start();
    for name in ["a", "b", "c"] {
        put(&server, name);
    }
    let client = client(&server);
    let first_page = all(&client, "limit=1").await.remove(0);
    let token = first_page["metadata"]["continue"].as_str().expect("a token");
    put(&server, "aa");
    let second_page = all(&client, &format!("limit=5&continue={token}")).await.remove(0);
    assert_eq!(
        second_page["items"].as_array().map(Vec::len),
        Some(2),
        "the list has the version of the first page"
    );
    server.objects().compact();
    let refusal = all(&client, &format!("limit=1&continue={token}")).await.remove(0);
    assert_eq!((&refusal["code"], &refusal["reason"]), (&json!(410), &json!("Expired")));
    let token = refusal["metadata"]["continue"].as_str().expect("a token");
    let last_page = all(&client, &format!("continue={token}")).await.remove(0);
    assert_eq!(
        last_page["items"].as_array().map(Vec::len),
        Some(3),
        "the list has the current version"
    );
    let old_version = first_page["metadata"]["resourceVersion"].as_str().expect("a version");
    let exact = format!("resourceVersion={old_version}&resourceVersionMatch=Exact");
    assert_eq!(all(&client, &exact).await[0]["code"], 410);
}
