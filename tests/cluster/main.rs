//! The cluster of the tests, by hand: `make cluster` and `make cluster-down`.

use std::process::ExitCode;
use std::time::Instant;

use akri_tests::cluster::{Cluster, Extent};

const USAGE: &str = "usage: test-cluster up [control] | down | load";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let cluster = Cluster::new();
    let result = match arguments[..] {
        ["up"] => up(&cluster, Extent::Nodes),
        ["up", "control"] => up(&cluster, Extent::Control),
        ["down"] => cluster.down(),
        ["load"] => cluster.load_akri(),
        ["forward"] => cluster.forward(), // for itself
        _ => Err(anyhow::anyhow!(USAGE)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn up(cluster: &Cluster, extent: Extent) -> anyhow::Result<()> {
    if let Some(obstacle) = cluster.obstacle() {
        anyhow::bail!(obstacle);
    }
    let start = Instant::now();
    let fresh = cluster.up(extent)?;
    let what = if fresh { "started" } else { "was running" };
    println!(
        "the cluster {what}, {:.1} s; what its components print is in {}",
        start.elapsed().as_secs_f32(),
        cluster.logs().display()
    );
    println!("export KUBECONFIG={}", cluster.kubeconfig().display());
    Ok(())
}
