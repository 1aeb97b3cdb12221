//! Debian's Prometheus and its promtool.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::skip::{is_left_to_make_test, skip};

/// The program of Prometheus.
const PROGRAM: &str = "/usr/bin/prometheus";

/// A place to scrape, as a PodMonitor leads to it.
#[derive(Debug, Clone)]
pub struct Target {
    /// The address.
    pub address: String,
    /// `http` or `https`.
    pub scheme: &'static str,
    /// The name of the pod.
    pub pod: String,
}

/// A Prometheus that scrapes every second; it ends when this is dropped.
pub struct Prometheus {
    child: Child,
    url: String,
    entrance: Vec<String>,
    _directory: TempDir,
}

/// Returns whether Prometheus is installed, and skips the test if not.
pub fn is_installed() -> bool {
    if is_left_to_make_test() {
        return false;
    }
    let is_there = Path::new(PROGRAM).exists();
    if !is_there {
        skip("no Prometheus (Debian: prometheus)");
    }
    is_there
}

/// Runs promtool in a directory.
pub fn promtool(directory: &Path, arguments: &[&str]) -> Output {
    Command::new("promtool").args(arguments).current_dir(directory).output().unwrap()
}

impl Prometheus {
    /// Starts it by a command that runs others, such as one that enters a network; empty for none.
    pub fn start(targets: &[Target], entrance: &[String]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let config = directory.path().join("prometheus.yml");
        fs::write(&config, configuration(targets).to_string()).unwrap();
        let log = fs::File::create(directory.path().join("log")).unwrap();
        let mut command = within(entrance, PROGRAM);
        command.arg(format!("--config.file={}", config.display()));
        command.arg(format!("--storage.tsdb.path={}", directory.path().join("data").display()));
        command.arg(format!("--web.listen-address=127.0.0.1:{port}")).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.stderr(log).spawn().unwrap();
        Self { child, url: format!("http://127.0.0.1:{port}"), entrance: entrance.to_vec(), _directory: directory }
    }

    /// Returns the series of an expression.
    ///
    /// # Errors
    /// If it is none, or Prometheus does not answer.
    pub fn query(&self, expression: &str) -> Result<Vec<Value>, String> {
        let mut command = within(&self.entrance, "promtool");
        let output = command.args(["query", "instant", "--format=json", &self.url, expression]).output().unwrap();
        match output.status.success() {
            true => Ok(serde_json::from_slice(&output.stdout).unwrap()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

fn within(entrance: &[String], program: &str) -> Command {
    match entrance {
        [first, rest @ ..] => {
            let mut command = Command::new(first);
            command.args(rest).arg(program);
            command
        }
        [] => Command::new(program),
    }
}

/// As the operator makes it of a PodMonitor of the chart.
fn configuration(targets: &[Target]) -> Value {
    let job = |(number, Target { address, scheme, pod }): (usize, &Target)| {
        json!({
            "job_name": format!("{number}"), "scheme": scheme, "honor_labels": true,
            "tls_config": {"insecure_skip_verify": true},
            "static_configs": [{"targets": [address], "labels": {"pod": pod, "namespace": "akri-system"}}],
        })
    };
    let jobs: Vec<Value> = targets.iter().enumerate().map(job).collect();
    json!({"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs})
}
