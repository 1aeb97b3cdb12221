//! A node for stories: directories and, on demand, the real agent as a process.

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use akri_api::condition::{self, Condition};
use akri_api::{Configuration, DiscoveryHandlerStatus, Instance};
use akri_cluster::local::{read_configurations, read_handlers, read_instances};
use akri_model::names::resource_name;
use akri_remote::read_remote_handlers;

pub use super::agent::Agent;

/// Time limit of a wait; only failing tests reach it.
const DEADLINE: Duration = Duration::from_secs(90);

/// Returns the directory of the built components and their DiscoveryHandler manifests.
pub fn built_components() -> PathBuf {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/components");
    assert!(directory.join("udev.wasm").exists(), "no components in {}: run 'make components'", directory.display());
    directory
}

/// A cache (`XDG_CACHE_HOME`) of compiled components that all stories share. Compiling takes longer than most stories, and on a
/// busy machine longer than a story waits for anything.
pub fn compiled_components() -> PathBuf {
    built_components().join("../compiled-for-stories")
}

/// Returns the part of [`compiled_components`] that agents use, as an absolute path.
pub fn compiled_for_agents() -> PathBuf {
    let compiled = compiled_components().join("akri");
    create_private(&compiled);
    compiled.canonicalize().unwrap()
}

fn create_private(directory: &Path) {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).unwrap();
}

/// The component that misbehaves as its details say.
pub fn guest() -> PathBuf {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/target/wasm32-wasip2/release/akri_guest.wasm");
    assert!(file.exists(), "no test guest at {}: run 'make guests'", file.display());
    file
}

/// Returns the program from the same profile as these tests.
pub fn akri() -> PathBuf {
    let own = std::env::current_exe().unwrap(); // a test in deps/, or a program beside it
    let program = own.ancestors().skip(1).take(2).map(|directory| directory.join("akri")).find(|path| path.exists());
    program.unwrap_or_else(|| panic!("no program beside {}: run 'make build'", own.display()))
}

/// Returns manifest lines that grant everything below `/dev`, and by name what has to be named. The shipped manifest grants
/// less.
pub fn all_devices() -> String {
    let disks = (0..16).map(|number| format!("zram{number}"));
    let names = ["**", "kmsg"].map(str::to_owned).into_iter().chain(disks);
    let lines: String = names.map(|name| format!("    - /dev/{name}\n")).collect();
    format!("    devicePaths:\n{lines}")
}

/// A node: `manifests/`, `components/`, `state/`, `kubelet/`, `handlers/` in a temporary directory.
pub struct Node {
    directory: tempfile::TempDir,
}

impl Node {
    /// Creates a node with the built-in handlers and an interval of 200 ms.
    pub fn new() -> Self {
        let node = Self { directory: tempfile::tempdir().unwrap() };
        for name in ["manifests", "components", "kubelet", "handlers"] {
            fs::create_dir(node.path(name)).unwrap();
        }
        for handler in ["udev", "debug-echo"] {
            let manifest = fs::read_to_string(built_components().join(format!("{handler}.yaml"))).unwrap();
            let manifest = manifest.replace("    devicePaths:\n", &all_devices());
            node.write(&format!("components/{handler}.yaml"), &format!("{manifest}  interval: 200ms\n"));
        }
        for file in ["udev.wasm", "debug_echo.wasm"] {
            fs::copy(built_components().join(file), node.path("components").join(file)).unwrap();
        }
        node
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes a file atomically, as careful editors do.
    pub fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        let beside = path.with_extension("new");
        fs::write(&beside, text).unwrap();
        fs::rename(beside, path).unwrap();
    }

    pub fn remove(&self, name: &str) {
        fs::remove_file(self.path(name)).unwrap();
    }

    /// Writes a DiscoveryHandler for a file of `components/`; `spec` is indented lines of YAML.
    pub fn write_handler(&self, name: &str, file: &str, spec: &str) {
        let text = format!(
            "apiVersion: akri.sh/v0\nkind: DiscoveryHandler\nmetadata:\n  name: {name}\nspec:\n  component:\n    \
             file: {file}\n{spec}"
        );
        self.write(&format!("components/{name}.yaml"), &text);
    }

    /// Makes debugEcho's devices local; by default they are shared.
    pub fn make_echo_local(&self) {
        self.write_handler("debug-echo", "debug_echo.wasm", "  name: debugEcho\n  shared: false\n  interval: 200ms\n");
    }

    /// Adds the misbehaving component; `spec` as for [`Node::write_handler`].
    pub fn add_guest(&self, spec: &str) {
        fs::copy(guest(), self.path("components/guest.wasm")).unwrap();
        self.write_handler("guest", "guest.wasm", &format!("  interval: 200ms\n{spec}"));
    }

    /// Writes a Configuration named `name` for debugEcho with these devices.
    pub fn write_echo(&self, name: &str, capacity: u32, devices: &[&str]) {
        let descriptions: String = devices.iter().map(|device| format!("      - \"{device}\"\n")).collect();
        let details = if devices.is_empty() {
            "      descriptions: []\n".to_owned()
        } else {
            format!("      descriptions:\n{descriptions}")
        };
        let spec = format!("  capacity: {capacity}\n  offlineGracePeriod: 0s\n");
        self.write_configuration(name, "debugEcho", &details, &spec);
    }

    /// Writes a Configuration; `details` and `spec` are indented lines of YAML.
    pub fn write_configuration(&self, name: &str, handler: &str, details: &str, spec: &str) {
        let text = format!(
            "apiVersion: akri.sh/v0\nkind: Configuration\nmetadata:\n  name: {name}\nspec:\n  discoveryHandler:\n    \
             name: {handler}\n    discoveryDetails: |-\n{details}{spec}"
        );
        self.write(&format!("manifests/{name}.yaml"), &text);
    }

    /// Starts the agent.
    pub fn start(&self) -> Agent {
        self.start_with(&[])
    }

    /// Starts the agent with additional flags.
    pub fn start_with(&self, flags: &[&str]) -> Agent {
        self.start_by(Command::new(akri()), flags)
    }

    /// Starts the agent by a command that runs the program.
    pub fn start_by(&self, command: Command, flags: &[&str]) -> Agent {
        self.spawn(self.directory.path(), command, flags)
    }

    /// Starts the agent with relative paths.
    pub fn start_relative(&self) -> Agent {
        let up = std::env::current_dir().unwrap().components().skip(1).map(|_| "..").collect::<PathBuf>();
        self.spawn(&up.join(self.directory.path().strip_prefix("/").unwrap()), Command::new(akri()), &[])
    }

    fn spawn(&self, directory: &Path, mut command: Command, flags: &[&str]) -> Agent {
        command.arg("agent").arg("--local").arg(directory.join("manifests"));
        self.spawn_agent(directory, command, "node-a", flags)
    }

    /// Starts the agent as a node of a cluster.
    pub fn start_in(&self, kubeconfig: &Path, node: &str, flags: &[&str]) -> Agent {
        let mut command = Command::new(akri());
        command.arg("agent").env("KUBECONFIG", kubeconfig);
        self.spawn_agent(self.directory.path(), command, node, flags)
    }

    fn spawn_agent(&self, directory: &Path, mut command: Command, node: &str, flags: &[&str]) -> Agent {
        self.share_compiled();
        for (flag, name) in [
            ("--components", "components"),
            ("--state-dir", "state"),
            ("--kubelet-dir", "kubelet"),
            ("--handlers-dir", "handlers"),
        ] {
            command.arg(flag).arg(directory.join(name));
        }
        // Flags of the story win over these.
        command.env("AKRI_RECLAIM_DELAY_SECONDS", "0").env("AKRI_POLL_MILLISECONDS", "200");
        // Containers of a test kubelet have no cgroups.
        command.env("AKRI_RELEASE_DELAY_SECONDS", "0").env("AKRI_CGROUPS", directory.join("cgroups"));
        Agent::spawn(command.args(["--node-name", node, "-v"]).args(flags))
    }

    /// Makes agents use [`compiled_components`], unless there is a state directory already.
    pub fn share_compiled(&self) {
        let state = self.path("state");
        if !state.exists() {
            create_private(&state);
            symlink(compiled_for_agents(), state.join("compiled")).unwrap();
        }
    }

    /// Runs another subcommand to its end.
    pub fn akri(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(akri());
        command.env("XDG_CACHE_HOME", compiled_components()).args(arguments).stdin(Stdio::null()).output().unwrap()
    }

    /// Runs `akri discover` with this text as file.
    pub fn discover(&self, text: &str, flags: &[&str]) -> Output {
        self.write("try.yaml", text);
        let (file, components) = (self.path("try.yaml"), self.path("components"));
        let arguments = ["discover", file.to_str().unwrap(), "--components", components.to_str().unwrap()];
        self.akri(&[&arguments[..], flags].concat())
    }

    pub fn instances(&self) -> Vec<Instance> {
        read_instances(&self.path("state")).unwrap()
    }

    /// Returns the published Instance of a name in the namespace `default`.
    pub fn instance(&self, name: &str) -> Option<Instance> {
        self.instances().into_iter().find(|instance| name_of(instance) == name)
    }

    pub fn configurations(&self) -> Vec<Configuration> {
        read_configurations(&self.path("state")).unwrap()
    }

    /// Returns the reported status of a DiscoveryHandler.
    pub fn handler(&self, name: &str) -> Option<DiscoveryHandlerStatus> {
        let handlers = read_handlers(&self.path("state")).unwrap();
        handlers.into_iter().find(|handler| handler.metadata.name.as_deref() == Some(name))?.status
    }

    /// Waits until the status of a DiscoveryHandler satisfies a condition, and returns it.
    pub async fn wait_for_handler(
        &self,
        name: &str,
        what: &str,
        wanted: impl Fn(&DiscoveryHandlerStatus) -> bool,
    ) -> DiscoveryHandlerStatus {
        let is_wanted = |found: &Option<DiscoveryHandlerStatus>| found.as_ref().is_some_and(&wanted);
        wait_for(what, || self.handler(name), is_wanted).await.unwrap()
    }

    /// Returns the status of the remote handlers.
    pub fn remote_handlers(&self) -> Vec<DiscoveryHandlerStatus> {
        read_remote_handlers(&self.path("state")).unwrap()
    }

    /// Returns a condition of a Configuration in the namespace `default`.
    pub fn condition(&self, configuration: &str, kind: &str) -> Option<Condition> {
        let configurations = self.configurations();
        let found = configurations.iter().find(|c| c.metadata.name.as_deref() == Some(configuration))?;
        condition::find(&found.status.as_ref()?.conditions, kind).cloned()
    }

    /// Waits until the published Instances satisfy a condition, and returns them.
    pub async fn wait_for_instances(&self, what: &str, wanted: impl Fn(&[Instance]) -> bool) -> Vec<Instance> {
        wait_for(what, || self.instances(), |instances| wanted(instances)).await
    }

    /// Waits until an Instance satisfies a condition, and returns it.
    pub async fn wait_for_instance(&self, name: &str, what: &str, wanted: impl Fn(&Instance) -> bool) -> Instance {
        let is_wanted = |found: &Option<Instance>| found.as_ref().is_some_and(&wanted);
        wait_for(what, || self.instance(name), is_wanted).await.unwrap()
    }

    /// Returns the agents' sockets in the kubelet's directory, including those of killed agents.
    pub fn sockets(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path("kubelet/device-plugins")).unwrap();
        let names = entries.map(|entry| entry.unwrap().path());
        names.filter(|path| path.extension().is_some_and(|e| e == "sock") && !path.ends_with("kubelet.sock")).collect()
    }

    /// Waits until a Configuration's condition satisfies a test.
    pub async fn wait_for_condition(&self, configuration: &str, kind: &str, status: &str, reason: &str) -> Condition {
        let what = format!("{kind}={status} ({reason}) of {configuration}");
        let wanted =
            |found: &Option<Condition>| found.as_ref().is_some_and(|c| c.status == status && c.reason == reason);
        wait_for(&what, || self.condition(configuration, kind), wanted).await.unwrap()
    }
}

/// Polls until a value satisfies a condition.
///
/// # Panics
/// With the last value, after 90 s.
pub async fn wait_for<T: std::fmt::Debug>(what: &str, observe: impl Fn() -> T, wanted: impl Fn(&T) -> bool) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let seen = observe();
        if wanted(&seen) {
            return seen;
        }
        assert!(Instant::now() < deadline, "never saw {what}, but: {seen:#?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub fn name_of(instance: &Instance) -> &str {
    instance.metadata.name.as_deref().unwrap()
}

/// Returns the resource of an Instance.
pub fn resource_of(instance: &Instance) -> String {
    resource_name(name_of(instance))
}

/// Returns names and UIDs, which must be stable while the devices exist.
pub fn identities(instances: &[Instance]) -> Vec<(String, String)> {
    instances.iter().map(|i| (name_of(i).to_owned(), i.metadata.uid.clone().unwrap())).collect()
}

/// Returns the slots in use.
pub fn used(instance: &Instance) -> Vec<&str> {
    usage(instance).into_iter().filter(|(_, usage)| !usage.is_empty()).map(|(slot, _)| slot).collect()
}

/// Returns the slots and their usage.
pub fn usage(instance: &Instance) -> Vec<(&str, &str)> {
    instance.spec.device_usage.iter().map(|(slot, usage)| (slot.as_str(), usage.as_str())).collect()
}

/// Returns whether the Instance's device is online.
pub fn is_online(instance: &Instance) -> bool {
    let conditions = instance.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    condition::find(conditions, "Online").is_some_and(|condition| condition.status == "True")
}

/// Returns the resident memory of a process, in KiB.
pub fn rss_kib(pid: u32) -> usize {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}
