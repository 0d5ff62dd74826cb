//! Alerts and dashboards of `deploy/monitoring`, and the recipes of their page: they use documented
//! metrics, and Prometheus accepts them.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    io::ErrorKind,
    path::Path,
    process::Command,
};

use serde_json::{Value, json};

use crate::program::{folder, text};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

const RULES: &str = "deploy/monitoring/rules.yaml";
const CASES: &str = "deploy/monitoring/rules.test.yaml";
const DASHBOARDS: &str = "deploy/monitoring/dashboards";
const PAGE: &str = "docs/monitoring.md";

/// Variable with the path of kubectl.
const KUBECTL: &str = "WINDLASS_E2E_KUBECTL";

/// Number of columns of a dashboard.
const COLUMNS: u64 = 24;

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Documents of a YAML file.
fn documents(path: &str) -> Vec<Value> {
    let file = read(path);
    let documents = file.split("\n---\n").map(serde_saphyr::from_str);
    documents.map(|result| result.unwrap_or_else(|error| panic!("{path}: {error}"))).collect()
}

fn string(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Rules in Prometheus' format, converted as by the command in docs/monitoring.md.
fn rules_file() -> String {
    let file = read(RULES);
    let (_, spec) = file.split_once("\nspec:\n").expect("a specification");
    let lines = spec.lines().map(|line| line.strip_prefix("  ").unwrap_or(line));
    lines.collect::<Vec<_>>().join("\n")
}

fn alerts() -> Vec<Value> {
    let rules: Value =
        serde_saphyr::from_str(&rules_file()).unwrap_or_else(|error| panic!("{RULES}: {error}"));
    list(&rules["groups"]).flat_map(|group| list(&group["rules"])).cloned().collect()
}

fn alert_names() -> BTreeSet<String> {
    alerts().iter().map(|alert| string(&alert["alert"])).collect()
}

/// Dashboards by the names of their files.
fn dashboards() -> BTreeMap<String, Value> {
    let entries = fs::read_dir(Path::new(ROOT).join(DASHBOARDS)).expect("a folder");
    let names = entries.map(|entry| entry.expect("readable").file_name());
    let names = names.map(|name| name.into_string().expect("text"));
    let dashboard = |name: String| {
        let file = read(&format!("{DASHBOARDS}/{name}"));
        let document =
            serde_json::from_str(&file).unwrap_or_else(|error| panic!("{name}: {error}"));
        (name, document)
    };
    names.map(dashboard).collect()
}

/// Panels of a dashboard, with those of folded rows.
fn panels(dashboard: &Value) -> Vec<&Value> {
    let top_level = list(&dashboard["panels"]);
    top_level.flat_map(|panel| list(&panel["panels"]).chain([panel])).collect()
}

/// Queries of alerts, dashboards and recipes, each with its origin.
fn queries() -> Vec<(String, String)> {
    let alerts = alerts();
    let alert_queries =
        alerts.iter().map(|alert| (string(&alert["alert"]), string(&alert["expr"])));
    let mut queries: Vec<_> = alert_queries.collect();
    for (name, dashboard) in dashboards() {
        for panel in panels(&dashboard) {
            let place = format!("{name}, {}", string(&panel["title"]));
            let targets = list(&panel["targets"]);
            queries.extend(targets.map(|target| (place.clone(), string(&target["expr"]))));
        }
    }
    let page = read(PAGE);
    let recipes = page.split("```promql\n").skip(1).filter_map(|rest| rest.split("```").next());
    queries.extend(recipes.map(|recipe| (PAGE.to_owned(), recipe.to_owned())));
    queries
}

/// Queries for the values of dashboards' variables, each with its origin.
fn variables() -> Vec<(String, String)> {
    let mut variable_queries = Vec::new();
    for (name, dashboard) in dashboards() {
        let variables = list(&dashboard["templating"]["list"]);
        let queries = variables.filter_map(|variable| variable["query"]["query"].as_str());
        variable_queries.extend(queries.map(|query| (name.clone(), query.to_owned())));
    }
    variable_queries
}

/// Names of our metrics in a query.
fn metrics(query: &str) -> impl Iterator<Item = &str> {
    let words = query.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    words.filter(|word| word.starts_with("windlass_") || word.starts_with("process_"))
}

/// Names of all metrics, by the pages that list them.
fn documented_metrics() -> BTreeSet<String> {
    let pages = ["docs/metrics.md", "docs/cluster.md"].map(read).join("\n");
    let prefixes = ["| `windlass_", "| `process_"];
    let rows = pages.lines().filter(|line| prefixes.iter().any(|prefix| line.starts_with(prefix)));
    let cells = rows.filter_map(|row| row.split(" | ").next());
    let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let full_name = |name: &str| {
        let name = name.split('{').next().unwrap_or_default();
        // docs/cluster.md abbreviates names such as `windlass_cluster_pods`.
        if name.starts_with('_') { format!("windlass_cluster{name}") } else { name.to_owned() }
    };
    names.map(full_name).collect()
}

/// Runs promtool in a folder with these files.
#[expect(clippy::print_stderr, reason = "a skipped test is reported")]
fn promtool(arguments: &[&str], files: &[(&str, String)]) {
    let folder = folder();
    for (name, content) in files {
        fs::write(folder.path().join(name), content).expect("written");
    }
    match Command::new("promtool").args(arguments).current_dir(folder.path()).output() {
        Ok(output) => {
            let printed_text = text(&output.stdout) + &text(&output.stderr);
            assert!(output.status.success(), "{printed_text}");
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!("SKIPPED: no promtool in PATH (Debian has it in the package prometheus)");
        }
        Err(error) => panic!("promtool: {error}"),
    }
}

#[test]
fn alerts_dashboards_and_recipes_use_documented_metrics() {
    let (documented, queries, variables) = (documented_metrics(), queries(), variables());
    assert!(queries.len() > 100 && variables.len() > 1, "only {} queries", queries.len());
    let mut unknown = BTreeSet::new();
    for (place, query) in queries.iter().chain(&variables) {
        for name in metrics(query) {
            // The page documents a histogram without the suffix.
            let base_name = name.strip_suffix("_bucket").unwrap_or(name);
            if !documented.contains(base_name) {
                unknown.insert(format!("{place}: {name}"));
            }
        }
    }
    assert!(unknown.is_empty(), "not in docs/metrics.md or docs/cluster.md: {unknown:#?}");
}

#[test]
fn every_alert_has_a_duration_a_severity_and_a_description() {
    for alert in alerts() {
        let name = string(&alert["alert"]);
        assert!(alert["for"].is_string(), "{name} has no duration");
        let severity = string(&alert["labels"]["severity"]);
        assert!(["critical", "warning", "info"].contains(&severity.as_str()), "{name}: {severity}");
        let annotations = &alert["annotations"];
        assert!(annotations["summary"].is_string(), "{name} has no summary");
        assert!(annotations["description"].is_string(), "{name} has no description");
        let runbook = format!("https://example.com/windlass/{PAGE}#{}", name.to_lowercase());
        assert_eq!(string(&annotations["runbook_url"]), runbook, "{name}");
    }
}

#[test]
fn every_alert_has_a_section_with_meaning_check_and_remedy() {
    let page = read(PAGE);
    let (_, sections) = page.split_once("\n## Alerts\n").expect("a chapter");
    let (sections, _) = sections.split_once("\n## ").expect("a next chapter");
    let sections = sections.split("\n### ").skip(1);
    let sections: BTreeMap<_, _> =
        sections.filter_map(|section| section.split_once('\n')).collect();
    for (name, section) in &sections {
        for label in ["- **Means:** ", "- **Look:** ", "- **Do:** "] {
            assert!(section.contains(label), "{name} lacks {label}");
        }
    }
    let names: BTreeSet<_> = sections.into_keys().map(str::to_owned).collect();
    assert_eq!(names, alert_names());
}

#[test]
fn every_alert_has_a_firing_and_a_silent_case() {
    let (mut firing_alerts, mut silent_alerts) = (BTreeSet::new(), BTreeSet::new());
    for case in documents(CASES).iter().flat_map(|file| list(&file["tests"])) {
        for step in list(&case["alert_rule_test"]) {
            let is_firing = list(&step["exp_alerts"]).next().is_some();
            let names = if is_firing { &mut firing_alerts } else { &mut silent_alerts };
            names.insert(string(&step["alertname"]));
        }
    }
    assert_eq!(firing_alerts, alert_names());
    assert_eq!(silent_alerts, alert_names());
}

#[test]
fn the_monitors_select_the_pods_of_the_manifests_and_their_ports() {
    let monitors = documents("deploy/monitoring/podmonitors.yaml");
    for (name, manifest, kind) in [
        ("windlass-node", "deploy/daemonset.yaml", "DaemonSet"),
        ("windlass-scheduler", "deploy/extender.yaml", "Deployment"),
    ] {
        let monitor = monitors.iter().find(|monitor| monitor["metadata"]["name"] == name);
        let monitor = monitor.unwrap_or_else(|| panic!("no monitor {name}"));
        let objects = documents(manifest);
        let workload = objects.iter().find(|object| object["kind"] == kind);
        let workload = workload.unwrap_or_else(|| panic!("no {kind}"));
        let pod = &workload["spec"]["template"];
        let labels = monitor["spec"]["selector"]["matchLabels"].as_object().expect("labels");
        for (key, value) in labels {
            assert_eq!(pod["metadata"]["labels"][key.as_str()], *value, "{name}: {key}");
        }
        let port = &monitor["spec"]["podMetricsEndpoints"][0]["port"];
        let mut ports =
            list(&pod["spec"]["containers"]).flat_map(|container| list(&container["ports"]));
        assert!(ports.any(|candidate| candidate["name"] == *port), "{name}: no port {port}");
        let namespace = |object: &Value| string(&object["metadata"]["namespace"]);
        assert_eq!(namespace(monitor), namespace(workload), "{name}");
    }
}

#[test]
fn dashboards_use_the_selected_data_source_and_panels_do_not_overlap() {
    let kustomization = read("deploy/monitoring/kustomization.yaml");
    for (name, dashboard) in dashboards() {
        assert!(kustomization.contains(&format!("dashboards/{name}")), "{name} is not applied");
        let (mut ids, mut places) = (BTreeSet::new(), BTreeSet::new());
        for panel in panels(&dashboard) {
            let title = string(&panel["title"]);
            assert!(ids.insert(panel["id"].as_u64()), "{name}: the id of {title} is not unique");
            let source = panel["datasource"]["uid"].as_str();
            let is_row = panel["type"] == "row";
            assert!(is_row || source == Some("${datasource}"), "{name}: {title} uses {source:?}");
            let number = |key: &str| panel["gridPos"][key].as_u64().expect("a number");
            let (x, y, width, height) = (number("x"), number("y"), number("w"), number("h"));
            assert!(x + width <= COLUMNS, "{name}: {title} is too wide");
            for column in x..x + width {
                for row in y..y + height {
                    assert!(places.insert((column, row)), "{name}: {title} covers another panel");
                }
            }
        }
    }
}

#[test]
fn the_example_overlay_sets_the_label_and_the_runbook_addresses() {
    let Some(kubectl) = env::var_os(KUBECTL) else {
        eprintln!("SKIPPED: set {KUBECTL} to a kubectl to run this");
        return;
    };
    let mut command = Command::new(kubectl);
    command.args(["kustomize", "deploy/examples/monitoring"]).current_dir(ROOT);
    let output = command.output().expect("kubectl runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let objects = text(&output.stdout);
    assert_eq!(objects.matches("\n    release: kube-prometheus-stack\n").count(), 4, "{objects}");
    let addresses = objects.matches("https://git.example.com/windlass/docs/monitoring.md#windlass");
    assert_eq!(addresses.count(), alerts().len());
}

#[test]
fn prometheus_passes_the_cases_of_each_alert() {
    let files = [("windlass.rules.yaml", rules_file()), ("rules.test.yaml", read(CASES))];
    promtool(&["check", "rules", "windlass.rules.yaml"], &files);
    promtool(&["test", "rules", "rules.test.yaml"], &files);
}

#[test]
fn prometheus_parses_every_query() {
    // promtool does not check plain queries, so each query becomes a recording rule.
    let rule = |(number, (place, query)): (usize, (String, String))| {
        let expr = query.replace("$__rate_interval", "5m");
        json!({"record": format!("query:{number}"), "expr": expr, "labels": {"place": place}})
    };
    let rules: Vec<_> = queries().into_iter().enumerate().map(rule).collect();
    let file = json!({"groups": [{"name": "queries", "rules": rules}]});
    promtool(&["check", "rules", "queries.yaml"], &[("queries.yaml", file.to_string())]);
}
