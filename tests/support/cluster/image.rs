//! Container images, made of files of this machine.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use super::layout::Layout;
use crate::node::{akri, built_components};

/// The image of a pod's own network, of which a kubelet needs one; nothing has to be done in it.
pub(super) const PAUSE: &str = "localhost/pause:1";

/// A shell and what goes with it, for the pods of stories.
pub const BUSYBOX: &str = "localhost/busybox:1";

/// The project's own image, as `deploy/` describes it, with the program as it was built for development.
pub const AKRI: &str = "localhost/akri:0.1.0";

/// The images that every node has. Returns their archives.
pub(super) fn make_base(layout: &Layout) -> anyhow::Result<[PathBuf; 2]> {
    let root = tempfile::tempdir()?;
    let bin = root.path().join("bin");
    fs::create_dir(&bin)?;
    fs::create_dir(root.path().join("tmp"))?;
    fs::copy(layout.bin().join("busybox"), bin.join("busybox"))?;
    for applet in applets(layout)?.lines().filter(|applet| *applet != "busybox") {
        symlink("busybox", bin.join(applet))?;
    }
    let pause = make(layout, PAUSE, root.path(), r#"["sleep","infinity"]"#)?;
    Ok([pause, make(layout, BUSYBOX, root.path(), r#"["sh"]"#)?])
}

fn applets(layout: &Layout) -> anyhow::Result<String> {
    let output = Command::new(layout.bin().join("busybox")).arg("--list").output()?;
    Ok(String::from_utf8(output.stdout)?)
}

/// The project's image. Returns its archive.
pub(super) fn make_akri(layout: &Layout) -> anyhow::Result<PathBuf> {
    let root = tempfile::tempdir()?;
    copy(&akri(), root.path(), Path::new("/usr/bin/akri"))?;
    for file in fs::read_dir(built_components())? {
        let file = file?;
        copy(&file.path(), root.path(), &Path::new("/usr/lib/akri/components").join(file.file_name()))?;
    }
    for library in libraries(&akri())? {
        copy(&library, root.path(), &library)?;
    }
    make(layout, AKRI, root.path(), r#"["/usr/bin/akri"]"#)
}

/// The shared libraries of a program, which are glibc's, and its loader.
fn libraries(program: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("cannot run ldd")?;
    let text = String::from_utf8(output.stdout)?;
    let paths = text.split_whitespace().filter(|word| word.starts_with('/'));
    Ok(paths.map(PathBuf::from).collect())
}

fn copy(from: &Path, root: &Path, to: &Path) -> anyhow::Result<()> {
    let to = root.join(to.strip_prefix("/")?);
    fs::create_dir_all(to.parent().context("no directory")?)?;
    fs::copy(from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(())
}

fn make(layout: &Layout, name: &str, root: &Path, command: &str) -> anyhow::Result<PathBuf> {
    let file = name.replace(['/', ':'], "-") + ".tar";
    let archive = layout.run().join(file);
    let script = Layout::sources().join("image.sh");
    let output = Command::new(script).arg(&archive).arg(name).arg(root).arg(command).output()?;
    ensure!(output.status.success(), "cannot make {name}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(archive)
}
