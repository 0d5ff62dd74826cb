//! The sources that deploy/Dockerfile copies suffice for its build.

use std::{
    fs,
    path::{Component, Path, PathBuf},
};

/// Keywords that include a file in a build, up to their argument.
const INCLUDES: [&str; 3] = ["include_str!(", "include_bytes!(", "include!("];

/// Start of code that the image does not compile.
const TESTS: [&str; 2] = ["#[cfg(test)]\nmod tests", "#[cfg(test)]\npub(crate) mod tests"];

fn root() -> PathBuf {
    lexical(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")))
}

/// Removes `..` from a path, whose folders need not exist.
fn lexical(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut result, component| {
        if component == Component::ParentDir {
            result.pop();
        } else {
            result.push(component);
        }
        result
    })
}

/// Source files of a folder that are compiled into the program.
fn sources(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("readable").path();
        let name = path.file_name().expect("a name");
        if path.is_dir() && name != "tests" && name != "benches" && name != "examples" {
            sources(&path, files);
        } else if path.extension().is_some_and(|kind| kind == "rs") && name != "tests.rs" {
            files.push(path);
        }
    }
}

/// Files that a source includes by a literal path. If a macro completes the path, its literal beginning: a folder.
fn included_files(file: &Path) -> Vec<PathBuf> {
    let text = fs::read_to_string(file).expect("a text file");
    let end = TESTS.iter().filter_map(|start| text.find(start)).min();
    let text = &text[..end.unwrap_or(text.len())];
    let folder = file.parent().expect("a folder");
    let arguments = INCLUDES.iter().flat_map(|include| text.split(include).skip(1));
    let literal_path = |argument: &str| {
        let argument = argument.strip_prefix("concat!(").unwrap_or(argument);
        // A path without a literal is in the folder of the build's output.
        let path = argument.strip_prefix('"')?.split('"').next()?;
        Some(lexical(&folder.join(path)))
    };
    arguments.filter_map(literal_path).collect()
}

/// Paths that the build stage copies from the repository.
fn copied_paths() -> Vec<PathBuf> {
    let text = fs::read_to_string(root().join("deploy/Dockerfile")).expect("a Dockerfile");
    let copies = text.lines().filter_map(|line| line.strip_prefix("COPY "));
    let words = copies.filter(|line| !line.starts_with("--from")).flat_map(|line| {
        let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        words[..words.len() - 1].to_vec()
    });
    words.map(|word| root().join(word)).collect()
}

#[test]
fn the_image_is_built_from_all_files_that_are_compiled_into_the_program() {
    let (mut files, copied_paths) = (Vec::new(), copied_paths());
    sources(&root().join("crates"), &mut files);
    let missing_files: Vec<_> = files
        .iter()
        .flat_map(|file| included_files(file).into_iter().map(move |path| (file, path)))
        .filter(|(_, path)| !copied_paths.iter().any(|copied_path| path.starts_with(copied_path)))
        .collect();
    assert!(missing_files.is_empty(), "deploy/Dockerfile does not copy {missing_files:#?}");
    let includes = |name: &str| {
        files.iter().flat_map(|file| included_files(file)).any(|path| path.ends_with(name))
    };
    assert!(includes("deploy/options/claims/deviceclasses.yaml") && includes("profiles/devices"));
}

#[test]
fn copied_paths_exist_and_are_not_ignored() {
    let ignore_file = fs::read_to_string(root().join(".dockerignore")).expect("a .dockerignore");
    for path in copied_paths() {
        assert!(path.exists(), "{} is not there", path.display());
        let is_ignored = ignore_file.lines().any(|line| path.starts_with(root().join(line)));
        assert!(!is_ignored, "{} is ignored", path.display());
    }
}
