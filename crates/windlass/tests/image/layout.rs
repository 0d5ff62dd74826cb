//! Images of `deploy/image`: digests, equal bytes, every library of the program, and the list of parts.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::program;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Stand-in for `windlass-hook`, whose tests are in its crate.
const HOOK: &str = "#!/bin/sh\n";

/// Unpacked image, with its list of parts.
struct Image {
    folder: TempDir,
    index: Value,
    manifest: Value,
    config: Value,
    sbom: Value,
}

fn make(program: &Path, folder: &Path, epoch: Option<&str>) -> Output {
    let mut command = Command::new(Path::new(ROOT).join("deploy/image"));
    command.arg(program).arg(folder.join("image.tar")).env_remove("SOURCE_DATE_EPOCH");
    command.envs(epoch.map(|epoch| ("SOURCE_DATE_EPOCH", epoch)));
    command.output().expect("bash runs")
}

/// True on Debian; prints a notice elsewhere.
#[expect(clippy::print_stderr, reason = "a skipped test is reported")]
fn has_debian() -> bool {
    let is_debian = Command::new("dpkg-query").arg("--version").output().is_ok();
    if !is_debian {
        eprintln!("SKIPPED: deploy/image copies glibc of a Debian");
    }
    is_debian
}

fn output_of(command: &mut Command) -> String {
    let output = command.output().expect("the command runs");
    assert!(output.status.success(), "{command:?}: {}", program::text(&output.stderr));
    program::text(&output.stdout)
}

fn json(path: &Path) -> Value {
    let name = path.display();
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{name}: {error}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Script that prints the version of a `windlass` with these features, and a hook beside it.
fn fake_program(features: &str, folder: &Path) -> PathBuf {
    let path = folder.join("windlass");
    let version = format!(
        "windlass 0.1.0\ncommit:   0a1b2c3d of 2026-01-02\ntarget:   any\nfeatures: {features}"
    );
    script(&path, &format!("#!/bin/sh\necho '{version}'\n"));
    script(&folder.join("windlass-hook"), HOOK);
    path
}

fn script(path: &Path, text: &str) {
    fs::write(path, text).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("mode changed");
}

// === impl Image ===

impl Image {
    fn of(program: &Path) -> Self {
        let folder = program::folder();
        let output = make(program, folder.path(), None);
        assert!(output.status.success(), "{}", program::text(&output.stderr));
        let tar = folder.path().join("image.tar");
        output_of(Command::new("tar").arg("xf").arg(&tar).arg("-C").arg(folder.path()));
        let index = json(&folder.path().join("index.json"));
        let blob = |part: &Value| folder.path().join(blob_path(part));
        let manifest = json(&blob(&index["manifests"][0]));
        let config = json(&blob(&manifest["config"]));
        let sbom = json(&folder.path().join("image.cdx.json"));
        Self { folder, index, manifest, config, sbom }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Unpacks the files of the image.
    fn files(&self) -> PathBuf {
        let files = self.path("files");
        fs::create_dir_all(&files).expect("created");
        let layer = self.path(&blob_path(&self.manifest["layers"][0]));
        let mut tar = Command::new("tar");
        output_of(tar.arg("xf").arg(layer).arg("--no-same-owner").arg("-C").arg(&files));
        files
    }

    fn name(&self) -> &str {
        let annotations = &self.index["manifests"][0]["annotations"];
        annotations["io.containerd.image.name"].as_str().expect("a name")
    }

    /// Version of each part, by its kind and name.
    fn versions(&self) -> BTreeMap<String, &Value> {
        let parts = self.sbom["components"].as_array().expect("a list");
        let package_url = |part: &Value| {
            let purl = part["purl"].as_str().expect("a purl");
            purl.split('@').next().expect("a name").to_owned()
        };
        parts.iter().map(|part| (package_url(part), &part["version"])).collect()
    }
}

fn blob_path(part: &Value) -> String {
    let digest = part["digest"].as_str().expect("a digest");
    format!("blobs/{}", digest.replace(':', "/"))
}

#[test]
fn every_blob_has_its_digest_and_size_and_every_reference_a_blob() {
    if !has_debian() {
        return;
    }
    let program = program::folder();
    let image = Image::of(&fake_program("none", program.path()));
    let blobs = image.path("blobs/sha256");
    let names =
        fs::read_dir(&blobs).expect("blobs").map(|entry| entry.expect("readable").file_name());
    let names: Vec<_> = names.map(|name| name.into_string().expect("text")).collect();
    let sums = output_of(Command::new("sha256sum").args(&names).current_dir(&blobs));
    let is_valid = |line: &str| line.split_once("  ").is_some_and(|(sum, name)| sum == name);
    assert!(sums.lines().count() == 3 && sums.lines().all(is_valid), "{sums}");
    let parts =
        [&image.index["manifests"][0], &image.manifest["config"], &image.manifest["layers"][0]];
    for part in parts {
        let size = fs::metadata(image.path(&blob_path(part))).expect("a blob").len();
        assert_eq!(part["size"].as_u64(), Some(size));
    }
    assert_eq!(image.config["rootfs"]["diff_ids"][0], image.manifest["layers"][0]["digest"]);
    let docker = &json(&image.path("manifest.json"))[0];
    assert_eq!(docker["Config"], blob_path(&image.manifest["config"]));
    assert_eq!(docker["Layers"][0], blob_path(&image.manifest["layers"][0]));
    assert_eq!(docker["RepoTags"][0], "windlass:0.1.0");
}

#[test]
fn equal_inputs_give_equal_images() {
    if !has_debian() {
        return;
    }
    let images = ["0", "4102444800"].map(|modification_time| {
        let folder = program::folder();
        let program = fake_program("cluster", folder.path());
        let date = format!("@{modification_time}");
        output_of(Command::new("touch").args(["-d", &date]).arg(&program));
        assert!(make(&program, folder.path(), None).status.success());
        ["image.tar", "image.cdx.json"]
            .map(|name| fs::read(folder.path().join(name)).expect("created"))
    });
    assert!(images[0] == images[1], "the bytes differ");
    let folder = program::folder();
    let program = fake_program("cluster", folder.path());
    assert!(make(&program, folder.path(), Some("1")).status.success());
    assert!(fs::read(folder.path().join("image.tar")).expect("created") != images[0][0]);
}

#[test]
fn the_features_of_the_program_name_the_image_and_its_parts() {
    if !has_debian() {
        return;
    }
    for (features, name, expected_parts) in [
        ("none", "windlass", [false, false]),
        ("cluster", "windlass-cluster", [true, false]),
        ("cluster, laboratory", "windlass-laboratory", [true, true]),
    ] {
        let folder = program::folder();
        let image = Image::of(&fake_program(features, folder.path()));
        assert_eq!(image.name(), format!("docker.io/library/{name}:0.1.0"));
        let versions = image.versions();
        let has_parts = ["windlass-sched", "windlass-nvml-sim"];
        let has_parts = has_parts.map(|part| versions.contains_key(&format!("pkg:cargo/{part}")));
        assert_eq!(has_parts, expected_parts, "{features}");
        assert!(versions.contains_key("pkg:deb/debian/coreutils"), "chroot is a part");
        assert!(versions.contains_key("pkg:cargo/windlass-hook"), "{features}");
        let hook = image.files().join("usr/bin/windlass-hook");
        assert_eq!(fs::read_to_string(&hook).expect("the hook"), HOOK);
        let mode = fs::metadata(&hook).expect("the hook").permissions().mode();
        assert_eq!(mode & 0o7777, 0o755);
        let config = &image.config["config"];
        assert_eq!(config["Entrypoint"][0], "/usr/bin/windlass");
        assert_eq!(config["Labels"]["org.opencontainers.image.revision"], "0a1b2c3d");
        assert_eq!(image.config["created"], "2026-01-02T00:00:00Z");
        let variables = config["Env"].as_array().expect("variables");
        assert!(variables.contains(&Value::from("MALLOC_ARENA_MAX=1")), "as in the Dockerfile");
    }
}

#[test]
fn the_list_of_parts_has_crates_as_locked_with_licences_that_are_expressions() {
    if !has_debian() {
        return;
    }
    let folder = program::folder();
    let image = Image::of(&fake_program("none", folder.path()));
    let lock = fs::read_to_string(Path::new(ROOT).join("Cargo.lock")).expect("a lock file");
    let lock: toml::Value = toml::from_str(&lock).expect("TOML");
    let mut crates = 0;
    for part in image.sbom["components"].as_array().expect("a list") {
        if !part["purl"].as_str().expect("a purl").starts_with("pkg:cargo/") {
            continue;
        }
        crates += 1;
        let locked_package = lock["package"].as_array().expect("packages").iter().find(|package| {
            package["name"].as_str() == part["name"].as_str()
                && package["version"].as_str() == part["version"].as_str()
        });
        let checksum =
            locked_package.unwrap_or_else(|| panic!("{part} is not locked")).get("checksum");
        assert_eq!(
            checksum.and_then(|checksum| checksum.as_str()),
            part["hashes"][0]["content"].as_str()
        );
        let licence = part["licenses"][0]["expression"].as_str().expect("a licence");
        assert!(spdx::Expression::parse(licence).is_ok(), "{part}");
    }
    assert!(crates > 100, "only {crates} crates");
    let digest = &image.sbom["metadata"]["component"]["hashes"][0]["content"];
    let manifest = image.index["manifests"][0]["digest"].as_str().expect("a digest");
    assert_eq!(manifest.strip_prefix("sha256:"), digest.as_str());
}

#[test]
fn a_program_needs_only_the_libraries_of_its_image() {
    if !has_debian() {
        return;
    }
    let folder = program::folder();
    let program = folder.path().join("windlass");
    symlink(env!("CARGO_BIN_EXE_windlass"), &program).expect("linked");
    script(&folder.path().join("windlass-hook"), HOOK);
    let image = Image::of(&program);
    let files = image.files();
    let library_list =
        output_of(Command::new("find").arg(files.join("usr/lib")).args(["-name", "*.so*"]));
    let libraries: Vec<_> = library_list.lines().map(Path::new).collect();
    // NVIDIA's libraries need these libraries; Windlass itself does not.
    for name in ["libdl.so.2", "libpthread.so.0", "librt.so.1"] {
        assert!(
            libraries.iter().any(|path| path.ends_with(name)),
            "{name} is missing: {library_list}"
        );
    }
    let is_loader = |path: &&&Path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ld-linux"))
    };
    let loader = libraries.iter().find(is_loader).expect("a loader");
    let folder = loader.parent().expect("a folder");
    for program in ["usr/bin/windlass", "usr/sbin/chroot"] {
        let mut command = Command::new(loader);
        command.args(["--inhibit-cache", "--library-path"]).arg(folder).arg("--list");
        let list = output_of(command.arg(files.join(program)));
        let paths = list.lines().filter_map(|line| line.split_once("=> ")?.1.split(' ').next());
        let other_paths: Vec<_> =
            paths.filter(|path| !Path::new(path).starts_with(&files)).collect();
        assert!(other_paths.is_empty(), "{program} loads {other_paths:?}");
    }
    let mut command = Command::new(loader);
    command.args(["--inhibit-cache", "--library-path"]).arg(folder);
    let version = output_of(command.arg(files.join("usr/bin/windlass")).arg("--version"));
    assert!(version.starts_with("windlass "), "{version}");
}

#[test]
fn a_wrong_command_line_creates_no_file() {
    if !has_debian() {
        return;
    }
    let folder = program::folder();
    let output = make(&folder.path().join("nothing"), folder.path(), None);
    assert_eq!(output.status.code(), Some(1), "{}", program::text(&output.stderr));
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
    let without_hook = fake_program("none", folder.path());
    fs::remove_file(folder.path().join("windlass-hook")).expect("removed");
    let output = make(&without_hook, folder.path(), None);
    assert_eq!(output.status.code(), Some(1));
    assert!(program::text(&output.stderr).contains("windlass-hook is no program: build it"));
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
    let output = Command::new(Path::new(ROOT).join("deploy/image")).output().expect("bash runs");
    assert_eq!(output.status.code(), Some(64));
    assert!(program::text(&output.stderr).starts_with("usage: deploy/image PROGRAM"));
}
