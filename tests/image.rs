//! The image as `make image` makes it, of the program that was built for development.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::support::node::{akri, built_components};

fn script(name: &str) -> Command {
    Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/image").join(name))
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Makes an archive and unpacks it. Returns the directory and the digest of the image.
fn make(directory: &Path, name: &str, root: &Path) -> (PathBuf, String) {
    let archive = directory.join(format!("{name}.tar"));
    let digest =
        run(script("archive.sh").arg(&archive).args(["localhost/akri:test", r#"["/usr/bin/akri"]"#, "1"]).arg(root));
    let unpacked = directory.join(name);
    fs::create_dir(&unpacked).unwrap();
    run(Command::new("tar").arg("--extract").arg("--file").arg(&archive).arg("--directory").arg(&unpacked));
    fs::remove_file(archive).unwrap();
    (unpacked, digest.trim().to_owned())
}

fn sha256(path: &Path) -> String {
    Sha256::digest(fs::read(path).unwrap()).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn image_is_the_same_each_time_and_holds_no_shell() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("root");
    run(script("root.sh").arg(akri()).arg(built_components()).arg(&root));
    let (first, digest) = make(directory.path(), "first", &root);
    // A time is nothing of it, and the compiler makes the same code each time.
    run(script("root.sh").arg(akri()).arg(built_components()).arg(&root));
    run(Command::new("touch").arg(root.join("usr/bin/akri")));
    let (_, again) = make(directory.path(), "again", &root);
    assert_eq!(digest, again);

    let index = read(&first.join("index.json"));
    assert_eq!(index["manifests"][0]["digest"], *digest);
    for blob in fs::read_dir(first.join("blobs/sha256")).unwrap().map(|entry| entry.unwrap().path()) {
        assert_eq!(blob.file_name().unwrap().to_str(), Some(&*sha256(&blob)));
    }
    let blob = |digest: &Value| first.join("blobs").join(digest.as_str().unwrap().replace(':', "/"));
    let manifest = read(&blob(&index["manifests"][0]["digest"]));
    let config = read(&blob(&manifest["config"]["digest"]));
    let layer = blob(&manifest["layers"][0]["digest"]);
    let saved = read(&first.join("manifest.json"));
    assert_eq!(saved[0]["Layers"][0], *layer.strip_prefix(&first).unwrap().to_str().unwrap());
    let contents = run(Command::new("sh").args(["-c", "gunzip --stdout \"$0\" | sha256sum"]).arg(&layer));
    assert_eq!(config["rootfs"]["diff_ids"][0], format!("sha256:{}", &contents[..64]));
    let files = run(Command::new("tar").arg("--list").arg("--file").arg(layer));
    let records: BTreeSet<&str> = files
        .lines()
        .filter_map(|line| line.strip_prefix("./usr/share/akri/compiled/records/"))
        .filter(|name| !name.is_empty())
        .collect();
    let components = fs::read_dir(built_components()).unwrap().map(|entry| entry.unwrap().path());
    let wasm = components.filter(|path| path.extension().is_some_and(|extension| extension == "wasm"));
    let digests: BTreeSet<String> = wasm.map(|path| sha256(&path)).collect();
    assert!(records.iter().copied().eq(digests.iter().map(String::as_str)), "machine code of each component: {files}");
    for file in ["./usr/bin/akri", "./usr/lib/akri/components/udev.wasm", "./etc/ssl/certs/ca-certificates.crt"] {
        assert!(files.lines().any(|line| line == file), "{file} is not in {files}");
    }
    let programs: Vec<&str> = files.lines().filter(|line| line.contains("bin/") && !line.ends_with('/')).collect();
    assert_eq!(programs, ["./usr/bin/akri"]);
}

#[test]
fn archive_of_several_platforms_is_an_index_of_images() {
    let directory = tempfile::tempdir().unwrap();
    let names = ["linux/amd64", "linux/arm64", "linux/arm/v7"];
    let roots = names.map(|name| {
        let root = directory.path().join(name).join("root");
        fs::create_dir_all(&root).unwrap();
        fs::write(root.join("platform"), name).unwrap();
        format!("{name}={}", root.display())
    });
    let archive = directory.path().join("akri.tar");
    let mut script = script("archive.sh");
    let digest = run(script.arg(&archive).args(["localhost/akri:test", r#"["/usr/bin/akri"]"#, "1"]).args(roots));
    run(Command::new("tar").arg("--extract").arg("--file").arg(&archive).arg("--directory").arg(directory.path()));
    let blob = |described: &Value| {
        let blob = directory.path().join("blobs").join(described["digest"].as_str().unwrap().replace(':', "/"));
        assert_eq!(blob.metadata().unwrap().len(), described["size"].as_u64().unwrap());
        blob
    };
    let top = read(&directory.path().join("index.json"));
    let [image] = top["manifests"].as_array().unwrap().as_slice() else { panic!("one name: {top}") };
    assert_eq!((image["digest"].as_str(), top["manifests"][0]["annotations"].is_object()), (Some(digest.trim()), true));
    let index = read(&blob(image));
    let manifests = index["manifests"].as_array().unwrap();
    assert_eq!(
        read(&directory.path().join("manifest.json")).as_array().map(Vec::len),
        Some(1),
        "the first, for `docker load`"
    );
    for (manifest, name) in manifests.iter().zip(names) {
        let platform = &manifest["platform"];
        let parts = ["os", "architecture", "variant"].map(|part| platform[part].as_str());
        assert_eq!(parts.into_iter().flatten().collect::<Vec<_>>().join("/"), name);
        let image = read(&blob(manifest));
        let config = read(&blob(&image["config"]));
        assert_eq!((&config["architecture"], &config["variant"]), (&platform["architecture"], &platform["variant"]));
        let file = run(Command::new("tar")
            .args(["--extract", "--to-stdout", "--file"])
            .arg(blob(&image["layers"][0]))
            .arg("./platform"));
        assert_eq!(file, name);
    }
    assert_eq!(manifests.len(), names.len());
}
