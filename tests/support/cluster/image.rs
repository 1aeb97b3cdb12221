//! Container images built from files of this machine.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::ensure;

use super::layout::Layout;
use crate::node::{akri, built_components};

/// The pause image, which every kubelet needs.
pub(super) const PAUSE: &str = "localhost/pause:1";

/// A shell, for the pods of stories.
pub const BUSYBOX: &str = "localhost/busybox:1";

/// The project's own image, as `make image` makes it, but with the program as it was built for development.
pub const AKRI: &str = "localhost/akri:0.1.0";

/// Builds the images that every node has. Returns their archives.
pub(super) fn make_base(layout: &Layout) -> anyhow::Result<[PathBuf; 2]> {
    let root = tempfile::tempdir()?;
    let bin = root.path().join("bin");
    fs::create_dir(&bin)?;
    fs::create_dir(root.path().join("tmp"))?;
    fs::copy(Layout::program("busybox"), bin.join("busybox"))?;
    for applet in applets()?.lines().filter(|applet| *applet != "busybox") {
        symlink("busybox", bin.join(applet))?;
    }
    let pause = make(layout, PAUSE, root.path(), r#"["sleep","infinity"]"#)?;
    Ok([pause, make(layout, BUSYBOX, root.path(), r#"["sh"]"#)?])
}

fn applets() -> anyhow::Result<String> {
    let output = Command::new(Layout::program("busybox")).arg("--list").output()?;
    Ok(String::from_utf8(output.stdout)?)
}

/// Builds the project's image. Returns its archive.
pub(super) fn make_akri(layout: &Layout) -> anyhow::Result<PathBuf> {
    let root = tempfile::tempdir()?;
    let output = Command::new(script("root.sh")).arg(akri()).arg(built_components()).arg(root.path()).output()?;
    ensure!(output.status.success(), "no files for {AKRI}: {}", String::from_utf8_lossy(&output.stderr).trim());
    make(layout, AKRI, root.path(), r#"["/usr/bin/akri"]"#)
}

/// A script that makes images.
fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/image").join(name)
}

fn make(layout: &Layout, name: &str, root: &Path, command: &str) -> anyhow::Result<PathBuf> {
    let file = name.replace(['/', ':'], "-") + ".tar";
    let archive = layout.run().join(file);
    let output = Command::new(script("archive.sh")).arg(&archive).args([name, command, ""]).arg(root).output()?;
    ensure!(output.status.success(), "cannot make {name}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(archive)
}
