//! The kustomizations in `deploy/`, built as kubectl does: resources, components, images and strategic merge patches.

use std::{
    collections::BTreeSet,
    env, fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde::Deserialize;
use serde_json::Value;

use crate::cluster_api::manifests::{documents, first_unknown, known_fields};

const DEPLOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy");
/// Variable with the path of kubectl.
const KUBECTL: &str = "WINDLASS_E2E_KUBECTL";
/// Variable with the kubeconfig of a cluster that checks the objects in a dry run.
const KUBECONFIG: &str = "WINDLASS_E2E_KUBECONFIG";

/// A kustomization or component, with the keys that `deploy/` uses.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Kustomization {
    api_version: String,
    kind: String,
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    components: Vec<String>,
    #[serde(default)]
    images: Vec<Image>,
    #[serde(default)]
    patches: Vec<Patch>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Image {
    name: String,
    new_name: String,
    new_tag: String,
}

/// Part of an object, with the object's name.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Patch {
    patch: String,
}

/// Names of all options.
pub(crate) fn options() -> BTreeSet<String> {
    folders("options")
}

/// The agent's objects with these options.
pub(crate) fn with_options<S: AsRef<str>>(options: impl IntoIterator<Item = S>) -> Vec<Value> {
    let mut objects = build("node");
    for option in options {
        add(&mut objects, &Path::new(DEPLOY).join("options").join(option.as_ref()), "Component");
    }
    objects
}

/// Objects of a folder below `deploy/`.
pub(crate) fn build(folder: &str) -> Vec<Value> {
    let mut objects = Vec::new();
    add(&mut objects, &Path::new(DEPLOY).join(folder), "Kustomization");
    objects
}

fn folders(below: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(Path::new(DEPLOY).join(below)).expect("a folder");
    let names = entries.map(|entry| entry.expect("readable").file_name());
    names.map(|name| name.into_string().expect("text")).collect()
}

fn add(objects: &mut Vec<Value>, folder: &Path, kind: &str) {
    let path = folder.join("kustomization.yaml");
    let path_text = path.display();
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path_text}: {error}"));
    let kustomization: Kustomization =
        serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{path_text}: {error}"));
    let version = if kind == "Component" { "v1alpha1" } else { "v1beta1" };
    assert_eq!(kustomization.kind, kind, "{path_text}");
    assert_eq!(
        kustomization.api_version,
        format!("kustomize.config.k8s.io/{version}"),
        "{path_text}"
    );
    for resource in &kustomization.resources {
        let resource = folder.join(resource);
        if resource.is_dir() {
            add(objects, &resource, "Kustomization");
            continue;
        }
        // Kustomize refuses a file outside the folder, even behind a link.
        let target = resource.canonicalize().unwrap_or_else(|error| panic!("{path_text}: {error}"));
        assert!(
            target.starts_with(folder.canonicalize().expect("a folder")),
            "{path_text}: {}",
            target.display()
        );
        for object in documents(&resource) {
            assert!(
                !objects.iter().any(|other| id(other) == id(&object)),
                "{:?} twice",
                id(&object)
            );
            objects.push(object);
        }
    }
    for component in &kustomization.components {
        add(objects, &folder.join(component), "Component");
    }
    for Patch { patch } in &kustomization.patches {
        let part: Value =
            serde_saphyr::from_str(patch).unwrap_or_else(|error| panic!("{path_text}: {error}"));
        let object = objects.iter_mut().find(|object| id(object) == id(&part));
        merge(object.unwrap_or_else(|| panic!("{path_text}: no {:?}", id(&part))), &part);
    }
    for image in &kustomization.images {
        let renamed =
            objects.iter_mut().map(|object| rename(object, image)).filter(|is_renamed| *is_renamed);
        assert!(renamed.count() > 0, "{path_text}: no image {}", image.name);
    }
}

/// Kind, namespace and name.
fn id(object: &Value) -> [Option<&str>; 3] {
    let metadata = &object["metadata"];
    [object["kind"].as_str(), metadata["namespace"].as_str(), metadata["name"].as_str()]
}

/// Replaces the image of this name in the object's containers. True if there was one.
fn rename(object: &mut Value, image: &Image) -> bool {
    let Some(containers) = object.pointer_mut("/spec/template/spec/containers") else {
        return false;
    };
    let mut is_renamed = false;
    for container in containers.as_array_mut().expect("a list") {
        if container["image"].as_str().is_some_and(|it| it.split(':').next() == Some(&image.name)) {
            container["image"] = format!("{}:{}", image.new_name, image.new_tag).into();
            is_renamed = true;
        }
    }
    is_renamed
}

/// A strategic merge: null removes, as `$patch: delete` does in a list, and items of lists are those with the same key.
fn merge(target: &mut Value, patch: &Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (name, value) in patch {
                if value.is_null() {
                    target.remove(name);
                } else {
                    merge(target.entry(name).or_insert(Value::Null), value);
                }
            }
        }
        (Value::Array(target), Value::Array(patch)) if key(patch).is_some() => {
            let key = key(patch).expect("checked");
            for item in patch {
                if item["$patch"] == "delete" {
                    target.retain(|it| it[key] != item[key]);
                    continue;
                }
                match target.iter_mut().find(|it| it[key] == item[key]) {
                    Some(existing) => merge(existing, item),
                    None => target.push(item.clone()),
                }
            }
        }
        (target, patch) => *target = patch.clone(),
    }
}

/// Merge key of a list's items, as Kubernetes defines it for containers, variables, volumes and mounts.
fn key(items: &[Value]) -> Option<&'static str> {
    ["mountPath", "name"].into_iter().find(|key| items.iter().all(|item| item[*key].is_string()))
}

/// Folders that are applied as they are.
fn applied() -> Vec<String> {
    let overlays = folders("overlays").into_iter().map(|name| format!("overlays/{name}"));
    overlays.chain(["node".to_owned(), "scheduler".to_owned()]).collect()
}

/// A kustomization of the agent with these options, in its own folder.
fn overlay(options: &[String]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let to_root: PathBuf = folder.path().components().skip(1).map(|_| "..").collect();
    let deploy = Path::new(DEPLOY).canonicalize().expect("it is there");
    let deploy = to_root.join(deploy.strip_prefix("/").expect("absolute"));
    let options = options.iter().map(|it| format!("  - {}/options/{it}\n", deploy.display()));
    let options: String = options.collect();
    let text = format!("resources: [{}/node]\ncomponents:\n{options}", deploy.display());
    fs::write(folder.path().join("kustomization.yaml"), text).expect("written");
    folder
}

/// Sorts objects and lists: kubectl chooses its own order.
fn sort(value: &mut Value) {
    match value {
        Value::Object(fields) => fields.values_mut().for_each(sort),
        Value::Array(items) => {
            items.iter_mut().for_each(sort);
            items.sort_by_key(Value::to_string);
        }
        // A text of one line loses its line break.
        Value::String(text) => *text = text.trim_end().to_owned(),
        _ => {}
    }
}

#[expect(clippy::print_stderr, reason = "a skipped test is reported")]
fn kubectl() -> Option<PathBuf> {
    let program = env::var_os(KUBECTL);
    if program.is_none() {
        eprintln!("SKIPPED: set {KUBECTL} to a kubectl to run this");
    }
    program.map(PathBuf::from)
}

/// Objects that kubectl makes of a folder, as text.
fn rendered(kubectl: &Path, folder: &Path) -> String {
    let output = Command::new(kubectl).arg("kustomize").arg(folder).output().expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{}: {errors}", folder.display());
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn every_kustomization_names_existing_files_and_builds_valid_objects() {
    let single = options().into_iter().map(|option| with_options([option]));
    for objects in applied().iter().map(|folder| build(folder)).chain(single) {
        for object in objects {
            assert_eq!(
                first_unknown(&object, &known_fields(&object), ""),
                None,
                "{:?}",
                id(&object)
            );
        }
    }
}

#[test]
fn the_paths_of_the_manifests_have_the_built_objects() {
    for (path, folder) in [("daemonset.yaml", "node"), ("extender.yaml", "scheduler")] {
        assert_eq!(documents(&Path::new(DEPLOY).join(path)), build(folder), "{path}");
    }
    for (path, option) in [
        ("rbac.yaml", "account"),
        ("deviceclasses.yaml", "claims"),
        ("claim-parameters.yaml", "claims"),
        ("networkpolicy.yaml", "pods"),
    ] {
        let (objects, option_objects) =
            (documents(&Path::new(DEPLOY).join(path)), with_options([option]));
        assert!(objects.iter().all(|object| option_objects.contains(object)), "{path}");
    }
}

#[test]
fn a_namespace_is_the_same_in_every_manifest_that_has_it() {
    let namespace = |folder| {
        let objects = build(folder);
        objects.into_iter().find(|object| object["kind"] == "Namespace").expect("one")
    };
    // The labels come from the file that is applied last.
    assert_eq!(namespace("node"), namespace("scheduler"));
}

#[test]
fn kubectl_builds_the_same_objects_and_a_cluster_accepts_them() {
    let Some(kubectl) = kubectl() else { return };
    let all = || options().into_iter().filter(|it| it != "privileged").collect::<Vec<_>>();
    let overlays: Vec<_> = options().into_iter().map(|it| vec![it]).chain([all()]).collect();
    let from_options = overlays.iter().map(|options| {
        let folder = overlay(options);
        (with_options(options), rendered(&kubectl, folder.path()))
    });
    let shipped = applied().into_iter().map(|folder| {
        let rendered = rendered(&kubectl, &Path::new(DEPLOY).join(&folder));
        (build(&folder), rendered)
    });
    for (expected, rendered_text) in from_options.chain(shipped).collect::<Vec<_>>() {
        let objects =
            rendered_text.split("\n---\n").map(|text| serde_saphyr::from_str(text).expect("YAML"));
        let (mut expected, mut objects) = (Value::Array(expected), Value::Array(objects.collect()));
        sort(&mut expected);
        sort(&mut objects);
        assert_eq!(expected, objects);
        check_accepted(&kubectl, &rendered_text);
    }
}

/// Has the cluster, if there is one, check the objects in a dry run.
#[expect(clippy::print_stderr, reason = "a skipped check is reported")]
fn check_accepted(kubectl: &Path, objects: &str) {
    let Some(kubeconfig) = env::var_os(KUBECONFIG) else {
        eprintln!("SKIPPED: set {KUBECONFIG} to check with a cluster too");
        return;
    };
    // The manifests create their own namespace, which a dry run does not have.
    let objects = objects.replace("namespace: windlass-system", "namespace: default");
    let mut command = Command::new(kubectl);
    command.arg("--kubeconfig").arg(kubeconfig).args(["create", "--dry-run=server", "-f", "-"]);
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = piped.spawn().expect("it runs");
    child.stdin.take().expect("piped").write_all(objects.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("a child");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert!(!errors.contains("unknown field"), "{errors}");
}
