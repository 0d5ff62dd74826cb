//! The page in a real browser: every view shows the state in both languages, and text of the cluster stays text.
//!
//! The browser is `chromium` of `PATH`, or the program that `WINDLASS_CHROMIUM` names. Without a browser the tests are
//! skipped, and print that. The server sends the state, then a change, then answers without a change.

#[path = "browser/devtools.rs"]
mod devtools;
#[path = "browser/dom.rs"]
mod dom;
#[path = "browser/server.rs"]
mod server;

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::Value;

use crate::{
    devtools::Browser,
    dom::Element,
    server::{Answer, Server},
};

const FIRST: &str = include_str!("browser/first.json");
const CHANGE: &str = include_str!("browser/change.json");
const UNCHANGED: &str = r#"{"revision": "2", "complete": false}"#;

/// Time for which an unchanged state is held back, as the real servers do for longer.
const LONG_POLL_DELAY: Duration = Duration::from_millis(100);

/// Words that the views show besides the texts of the state, in one language.
struct Words {
    language: &'static str,
    nav: &'static str,
    health_summary: &'static str,
    over_limit: &'static str,
    separator: &'static str,
    whole: &'static str,
    simulated: &'static str,
    fault: &'static str,
}

const LANGUAGES: [Words; 2] = [
    Words {
        language: "en",
        nav: "Pending2",
        health_summary: "1 device unhealthy on 1 node",
        over_limit: "over its limit",
        separator: " of ",
        whole: "whole device",
        simulated: "SIMULATED",
        fault: "fault",
    },
    Words {
        language: "zh",
        nav: "等待中2",
        health_summary: "1 个设备不健康（1 个节点）",
        over_limit: "超出上限",
        separator: " / ",
        whole: "整个设备",
        simulated: "模拟",
        fault: "故障",
    },
];

type Check = fn(&Element, &State, &Words);

/// Address of each view, with the check of its contents.
const VIEWS: [(&str, Check); 6] = [
    ("", tiles),
    ("table", table),
    ("node/gpu-17", node),
    ("pod/ml/train-0", pod),
    ("pending", pending),
    ("history", history),
];

#[test]
fn every_view_shows_the_state_in_english() {
    every_view(&LANGUAGES[0]);
}

#[test]
fn every_view_shows_the_state_in_chinese() {
    every_view(&LANGUAGES[1]);
}

fn every_view(words: &Words) {
    let Some(mut browser) = browser() else { return };
    let state = State::new();
    for view in &VIEWS {
        one_view(&mut browser, view, &state, words);
    }
    browser.end();
}

fn one_view(browser: &mut Browser, (view, check): &(&str, Check), state: &State, words: &Words) {
    let server = Server::start(|path| match path {
        "state" => Answer::json(FIRST),
        "state?after=1" => Answer::json(CHANGE),
        "state?after=2" => Answer::json(UNCHANGED).delayed(LONG_POLL_DELAY),
        asset => Answer::asset(&assets(), asset),
    });
    // The page requests the state after a change once it has applied the change.
    let url = server.url(&format!("#/{view}?lang={}", words.language));
    let page = browser.page(&url, &has_responses("state?after=2", 1));
    header(&page, state, words);
    check(&page, state, words);
    check_no_injection(&page);
    // The view of one node requests the state of its agent, which this server does not have.
    let mut not_found = server.not_found();
    not_found.retain(|request| !(request.contains("/node/") && request.contains("/state ")));
    assert_eq!(not_found, [""; 0], "{view}: requests without an answer");
}

/// Condition of a page that has so many answers to this request.
fn has_responses(request: &str, times: usize) -> String {
    format!(
        "performance.getEntriesByType('resource').filter((it) => it.name.endsWith('/{request}')).length >= {times}"
    )
}

#[test]
fn a_reader_without_a_token_is_asked_for_one() {
    let Some(mut browser) = browser() else { return };
    let server = Server::start(|path| match path {
        "state" => Answer::refusal("401 Unauthorized"),
        asset => Answer::asset(&assets(), asset),
    });
    let has_token_form = "document.getElementById('token-form')";
    let page = browser.page(&server.url("#/?lang=en"), has_token_form);
    let form = page.single_with_value("id", "token-form");
    assert!(form.text().contains("kubectl create token"), "{}", form.text());
    assert_eq!(form.single_with_value("id", "token").attribute("type"), Some("password"));
    browser.end();
}

#[test]
fn a_reader_without_permission_gets_the_reason() {
    let Some(mut browser) = browser() else { return };
    let server = Server::start(|path| match path {
        "state" => Answer::refusal("403 Forbidden"),
        asset => Answer::asset(&assets(), asset),
    });
    let has_reason =
        "document.getElementById('header')?.textContent.includes('the reason in words')";
    browser.page(&server.url("#/?lang=en"), has_reason);
    browser.end();
}

/// A state in which every part has a wrong type, or is missing.
const MALFORMED_STATE: &str = r#"{
    "revision": 5, "summary": "?", "time": [], "version": {}, "simulated": 1, "pending": {"a": 1}, "gone": 7,
    "nodes": [null, 7, {"name": {}}, {"name": "no list", "devices": "x"}, {
        "name": "__proto__", "idleGpus": "many", "links": [null, {"a": 9, "b": -1}, {"a": 0, "b": 1}],
        "devices": [null, 3, {"id": 1, "holders": "x", "kind": {}, "memoryBytes": "9", "utilization": -1}, {
            "id": "LONG", "kind": "constructor", "health": "toString", "enforcement": "valueOf", "parent": "LONG",
            "holders": [null, {"memoryBytes": -5, "compute": "x"}, {"pod": "LONG"}]
        }]
    }],
    "history": [null, {"kind": "constructor", "time": 7}, {"kind": "LONG", "time": "9999999-01-01", "text": "LONG"}]
}"#;

#[test]
fn a_state_of_wrong_types_and_long_names_breaks_nothing() {
    let Some(mut browser) = browser() else { return };
    let state = MALFORMED_STATE.replace("LONG", &"n".repeat(10_000));
    let server = Server::start(move |path| match path {
        // Without a revision the page asks again after 200 ms.
        "state" => Answer::json(&state).delayed(LONG_POLL_DELAY),
        asset => Answer::asset(&assets(), asset),
    });
    let mut page_of = |view: &str| browser.page(&server.url(view), &has_responses("state", 2));
    assert_eq!(
        page_of("#/table").with_attribute("data-health").len(),
        8,
        "four devices, each with its cell"
    );
    assert_eq!(
        page_of("#/node/__proto__")
            .single_with_value("data-section", "devices")
            .with_attribute("data-id")
            .len(),
        4
    );
    assert_eq!(page_of("#/history").with_attribute("data-kind").len(), 3);
    assert_eq!(
        page_of("#/%E0%A4/x?colour=constructor").with_attribute_value("role", "listitem").len(),
        2
    );
    browser.end();
}

#[test]
fn every_text_exists_in_both_languages_with_the_same_placeholders() {
    let source = fs::read_to_string(assets().join("words.js")).expect("a text file");
    let table = source.split("export const words = {").nth(1).expect("the table");
    let table = table.split("\n};").next().expect("its end");
    // `key: ['English', '中文'],` on one line, or with each text on a separate line.
    let entries: Vec<_> = table.split("],\n").filter(|entry| entry.contains(": [")).collect();
    assert!(entries.len() > 100, "{} words: the table has another format", entries.len());
    for entry in entries {
        let (key, texts) = entry.split_once(": [").expect("a key");
        let texts: Vec<_> = texts.split('\'').skip(1).step_by(2).collect();
        let [english, chinese] = texts[..] else { panic!("{key} has {} texts", texts.len()) };
        assert!(!english.is_empty() && !chinese.is_empty(), "{key} is empty");
        let many = english.split('|').next_back().expect("a text");
        assert_eq!(placeholders(many), placeholders(chinese), "{key}");
    }
}

/// Names in braces.
fn placeholders(text: &str) -> BTreeSet<&str> {
    text.split('{').skip(1).filter_map(|rest| rest.split('}').next()).collect()
}

#[test]
fn the_assets_load_nothing_from_other_servers_and_never_turn_data_into_markup() {
    // An XML namespace, which browsers do not load.
    let svg = "http://www.w3.org/2000/svg";
    let words =
        ["http:", "https:", "//cdn", "innerHTML", "outerHTML", "insertAdjacentHTML", "eval("];
    let mut count = 0;
    for file in fs::read_dir(assets()).expect("a folder") {
        let path = file.expect("readable").path();
        let text = fs::read_to_string(&path).expect("a text file").replace(svg, "");
        let word = words.iter().find(|word| text.contains(**word));
        assert!(word.is_none(), "{} has {word:?}", path.display());
        // The policy allows neither; a browser would ignore them.
        let inline = [" style=\"", " onclick=\"", "<script>"].iter().find(|it| text.contains(**it));
        assert!(inline.is_none(), "{} has {inline:?}", path.display());
        count += 1;
    }
    assert!(count > 20, "{count} assets");
}

fn assets() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("assets")
}

// === Expected state ===

/// The state after the change.
struct State {
    nodes: Vec<Value>,
    /// Events of the first answer; the change has the later events.
    first_events: Vec<Value>,
    change: Value,
}

impl State {
    fn new() -> Self {
        let first: Value = serde_json::from_str(FIRST).expect("JSON");
        let change: Value = serde_json::from_str(CHANGE).expect("JSON");
        let is_gone = |node: &&Value| list(&change["gone"]).contains(&node["name"]);
        let kept = list(&first["nodes"]).iter().filter(|node| !is_gone(node)).cloned();
        let nodes = kept.chain(list(&change["nodes"]).iter().cloned()).collect();
        let first_events = list(&first["history"]).to_vec();
        Self { nodes, first_events, change }
    }

    fn events(&self) -> impl Iterator<Item = &Value> {
        self.first_events.iter().chain(list(&self.change["history"]))
    }

    fn node(&self, name: &str) -> &Value {
        self.nodes.iter().find(|node| node["name"] == *name).expect("a node of the state")
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Text of an amount. Amounts of the state are whole numbers of GiB.
fn gib(value: &Value) -> Option<String> {
    value
        .as_u64()
        .map(|bytes| if bytes == 0 { "0 B".into() } else { format!("{} GiB", bytes >> 30) })
}

/// The pod of a holder, or its claim.
fn holder_name(holder: &Value) -> &str {
    holder["pod"].as_str().unwrap_or_else(|| text(&holder["claim"]))
}

/// Number of devices that are not partitions.
fn whole_device_count(node: &Value) -> usize {
    list(&node["devices"]).iter().filter(|device| device["parent"].is_null()).count()
}

// === Checks of the views ===

fn header(page: &Element, state: &State, words: &Words) {
    for name in ["gpus", "freeGpus", "idleGpus", "fragmentedGpus"] {
        let shown = page.single_with_value("data-figure", name).first("dd").text();
        assert_eq!(shown, state.change["summary"][name].to_string(), "{name}");
    }
    let nodes = page.single_with_value("data-figure", "nodes").first("dd").text();
    assert_eq!(nodes, state.nodes.len().to_string());
    let text = page.single_with_value("id", "header").text();
    for part in [words.nav, words.health_summary, words.simulated] {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    assert_eq!(page.first("body").attribute("data-connection"), Some("live"));
    assert_eq!(page.first("title").text(), "(1) Windlass");
}

fn tiles(page: &Element, state: &State, _: &Words) {
    assert_eq!(page.with_attribute_value("role", "listitem").len(), state.nodes.len());
    for node in &state.nodes {
        let tile = page.single_with_value("data-node", text(&node["name"]));
        let cells = tile.with_attribute("data-health");
        assert_eq!(cells.len(), whole_device_count(node), "{}", node["name"]);
        for cell in cells {
            let position: usize =
                cell.attribute("data-at").expect("a place").parse().expect("a number");
            let device = &node["devices"][position];
            assert_eq!(cell.attribute("data-health"), device["health"].as_str());
            let label = cell.attribute("aria-label").expect("a label");
            for part in [&node["name"], &device["product"], &device["reason"]] {
                assert!(label.contains(text(part)), "{part} is not in {label:?}");
            }
        }
    }
    let entries = page.with_attribute("data-entry");
    let sum: f64 =
        entries.iter().map(|it| it.first("b").text().parse::<f64>().expect("a number")).sum();
    let devices: usize = state.nodes.iter().map(whole_device_count).sum();
    assert_eq!(sum.to_string(), devices.to_string(), "the legend counts every device once");
}

fn table(page: &Element, state: &State, words: &Words) {
    assert_eq!(page.with_attribute_value("role", "rowgroup").len(), state.nodes.len());
    for node in &state.nodes {
        let group = page.single_with_value("data-node", text(&node["name"]));
        devices(group, node, words);
        assert!(group.text().contains(text(&node["name"])));
    }
}

fn node(page: &Element, state: &State, words: &Words) {
    let node = state.node("gpu-17");
    let table = page.single_with_value("data-section", "devices");
    devices(table, node, words);
    for device in list(&node["devices"]) {
        let row = table.single_with_value("data-id", text(&device["id"])).text();
        for name in ["id", "action", "resource"] {
            assert!(row.contains(text(&device[name])), "{name} is not in {row:?}");
        }
    }
    let places = page.single_with_value("data-section", "places");
    assert_eq!(places.with_attribute("data-at").len(), whole_device_count(node));
    assert!(places.text().contains("NUMA 0") && places.text().contains("NUMA 1"));
    assert_eq!(places.single_with_value("data-bus", "NV18").text(), "NV18 × 4");
    for link in list(&node["links"]) {
        for pair in [format!("{}-{}", link["a"], link["b"]), format!("{}-{}", link["b"], link["a"])]
        {
            assert_eq!(
                page.single_with_value("data-pair", &pair).text(),
                text(&link["kind"]),
                "{pair}"
            );
        }
    }
    let events = page.single_with_value("data-section", "history").with_attribute("data-kind");
    let node_events = state.events().filter(|event| event["node"] == node["name"]);
    assert_eq!(events.len(), node_events.count());
}

/// Checks the rows of a node's devices: exactly one row per device, with its health, amounts and holders.
fn devices(rows: &Element, node: &Value, words: &Words) {
    let shown = rows.with_attribute("data-id");
    assert_eq!(shown.len(), list(&node["devices"]).len(), "{}", node["name"]);
    for device in list(&node["devices"]) {
        let row = rows.single_with_value("data-id", text(&device["id"]));
        assert_eq!(row.attribute("data-health"), device["health"].as_str());
        let mut expected =
            vec![text(&device["product"]).to_owned(), text(&device["reason"]).to_owned()];
        let amounts = (gib(&device["memoryUsedBytes"]), gib(&device["memoryBytes"]));
        if let (Some(used), Some(total)) = amounts {
            expected.push(format!("{used}{}{total}", words.separator));
        }
        if let Some(part) = device["utilization"].as_f64() {
            expected.push(format!("{:.0} %", 100.0 * part));
        }
        for part in expected {
            assert!(row.text().contains(&part), "{part:?} is not in {:?}", row.text());
        }
        let holders = row.with_attribute("data-holder");
        assert_eq!(holders.len(), list(&device["holders"]).len(), "{}", device["id"]);
        for (line, holder) in holders.iter().zip(list(&device["holders"])) {
            assert_eq!(line.attribute("data-holder"), Some(holder_name(holder)));
            share(line, holder, words);
        }
    }
}

/// Checks the share of a holder, and its memory in use.
fn share(line: &Element, holder: &Value, words: &Words) {
    let shown = line.text();
    let mut expected =
        vec![text(&holder["container"]).to_owned(), text(&holder["claim"]).to_owned()];
    expected.extend(gib(&holder["memoryBytes"]));
    expected.extend(gib(&holder["memoryUsedBytes"]));
    expected.extend(holder["compute"].as_f64().map(|part| format!("{:.0} %", 100.0 * part)));
    if holder["memoryBytes"].is_null() && holder["compute"].is_null() {
        expected.push(words.whole.to_owned());
    }
    for part in expected {
        assert!(shown.contains(&part), "{part:?} is not in {shown:?}");
    }
    let is_over = holder["overLimit"] == true;
    assert_eq!(shown.contains(words.over_limit), is_over, "{shown:?}");
}

fn pod(page: &Element, state: &State, words: &Words) {
    let mut count = 0;
    for node in &state.nodes {
        for device in list(&node["devices"]) {
            for holder in
                list(&device["holders"]).iter().filter(|it| holder_name(it) == "ml/train-0")
            {
                let line = page.single_with_value("data-id", text(&device["id"]));
                assert_eq!(line.attribute("data-node"), node["name"].as_str());
                share(line, holder, words);
                count += 1;
            }
        }
    }
    assert_eq!((page.with_attribute("data-id").len(), count), (2, 2));
    assert_eq!(page.with_attribute("data-kind").len(), 1, "the pod has one event");
}

fn pending(page: &Element, state: &State, _: &Words) {
    let pods = list(&state.change["pending"]);
    assert_eq!(page.with_attribute("data-pod").len(), pods.len());
    for pod in pods {
        let item = page.single_with_value("data-pod", text(&pod["pod"]));
        for name in ["request", "help"] {
            assert!(item.text().contains(text(&pod[name])), "{name} is not in {:?}", item.text());
        }
        let reasons = item.with_attribute("data-nodes");
        assert_eq!(reasons.len(), list(&pod["reasons"]).len());
        for (line, reason) in reasons.iter().zip(list(&pod["reasons"])) {
            assert_eq!(line.attribute("data-nodes"), Some(reason["nodes"].to_string().as_str()));
            assert!(line.text().contains(text(&reason["reason"])), "{}", line.text());
        }
    }
}

fn history(page: &Element, state: &State, words: &Words) {
    let events: Vec<_> = state.events().collect();
    let lines = page.with_attribute("data-kind");
    assert_eq!(lines.len(), events.len());
    for (line, event) in lines.iter().rev().zip(events) {
        assert_eq!(line.attribute("data-kind"), event["kind"].as_str());
        for name in ["node", "pod", "text"] {
            assert!(line.text().contains(text(&event[name])), "{name} is not in {:?}", line.text());
        }
        let time = line.first("time").attribute("datetime").expect("a time");
        assert_eq!(time.replace(".000Z", "Z"), text(&event["time"]));
        assert_eq!(line.text().contains(words.fault), event["kind"] == "fault");
    }
}

/// Checks that names from the cluster created no element and ran no script.
fn check_no_injection(page: &Element) {
    let images: Vec<_> = page.named("img").iter().filter_map(|it| it.attribute("src")).collect();
    assert_eq!(images, ["icon.svg"]);
    assert_eq!(page.named("script").len(), 1, "main.js is the only script");
    assert!(page.with_attribute_value("onerror", "document.title='owned'").is_empty());
}

/// A browser, if this machine has one.
#[expect(clippy::print_stderr, reason = "a test that is left out says so")]
fn browser() -> Option<Browser> {
    let configured = env::var_os("WINDLASS_CHROMIUM").map(PathBuf::from);
    let paths = env::var_os("PATH").unwrap_or_default();
    let in_path =
        || env::split_paths(&paths).map(|dir| dir.join("chromium")).find(|it| it.is_file());
    let program = configured.or_else(in_path);
    if program.is_none() {
        eprintln!("left out: no chromium in PATH, and WINDLASS_CHROMIUM names none");
    }
    program.as_deref().map(Browser::start)
}
