//! The pages that put Akri on a cluster: their blocks `sh cluster` run one after the other, as a reader pastes them.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::documentation::{Block, blocks, pages};
use crate::support::cluster::{BUSYBOX, Installation, Story, program};

/// The pages, each of which takes away what it has made.
const PAGES: [&str; 2] = ["docs/tutorials/k3s.md", "docs/how-to/install.md"];

/// Replaces what only readers have: K3s, the adapter of the tutorial, images of the internet.
fn replaced(script: &str) -> String {
    let adapter = r#"SUBSYSTEM=="tty", ATTRS{idVendor}=="10c4", ATTRS{idProduct}=="ea60", ATTRS{serial}=="0001""#;
    let pairs = [
        ("mkdir -p ~/.kube && sudo cat /etc/rancher/k3s/k3s.yaml >~/.kube/k3s && chmod 600 ~/.kube/k3s\n", ""),
        ("export KUBECONFIG=~/.kube/k3s\n", ""),
        (adapter, r#"SUBSYSTEM=="mem", KERNEL=="null""#),
        ("docker.io/library/busybox", BUSYBOX),
        (r#"exec cat "$UDEV_DEVNODE""#, "exec sleep 100000"),
    ];
    pairs.into_iter().fold(script.to_owned(), |script, (from, to)| script.replace(from, to))
}

/// Runs a block at the root of the repository, with the programs of the tests. Returns what it prints.
fn run(story: &Story, block: &Block) -> String {
    let directory = |name: &str| program(name).unwrap().parent().unwrap().to_path_buf();
    let paths = [directory("helm"), directory("kubectl"), PathBuf::from("/usr/bin"), PathBuf::from("/bin")];
    let mut command = Command::new("timeout");
    command.args(["180", "bash", "-euo", "pipefail", "-c", &replaced(&block.text)]);
    command.env("PATH", std::env::join_paths(paths).unwrap()).env("KUBECONFIG", story.kubeconfig());
    let output = command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).output().unwrap();
    let printed = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned()).concat();
    assert!(output.status.success(), "{}:\n{}\n{printed}", block.at, block.text);
    printed
}

#[tokio::test]
async fn documented_installations_run_as_they_stand() {
    let Some(story) = Story::begin_alone("documented").await else { return };
    let Some(place) = Installation::prepare(&story, &[]).await else { return };
    let (listed, others): (Vec<_>, Vec<_>) =
        pages().into_iter().partition(|page| PAGES.iter().any(|path| page.path == Path::new(path)));
    let is_ours = |block: &Block| block.info.ends_with(" cluster");
    assert!(!others.iter().flat_map(blocks).any(|block| is_ours(&block)), "a page is missing in PAGES");
    for page in PAGES {
        let page = listed.iter().find(|listed| listed.path == Path::new(page)).unwrap();
        let printed: String =
            blocks(page).iter().filter(|block| is_ours(block)).map(|block| run(&story, block)).collect();
        assert!(printed.contains(r#"daemon set "akri-agent" successfully rolled out"#), "{printed}");
        let uses_device = page.path.ends_with("k3s.md");
        assert_eq!(printed.contains("the device is /dev/null"), uses_device, "{printed}");
        place.uninstall().await;
    }
    place.end().await;
}
